#include "shoal/nn/models/generation/read_options.h"

#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/config_reader.h"

namespace shoal::nn {
namespace {

class OptionReader : public ConfigReader {
 public:
  using ConfigReader::ConfigReader;

  void id(std::string_view key, std::optional<std::int32_t>& out) const {
    std::optional<std::int64_t> first;
    first_integer(key, first);
    if (!first) return;
    const auto fits = integer_in<std::int32_t>(nlohmann::json(*first));
    if (!fits) wrong(key, *find(key), "a token id");
    out = *fits;
  }
  // A list, or for eos_token_id also a single id.
  void ids(std::string_view key, std::vector<std::int32_t>& out) const {
    const nlohmann::json* value = find(key);
    if (value == nullptr) return;
    const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
    out.clear();
    for (const nlohmann::json& one : list) {
      const auto fits = integer_in<std::int32_t>(one);
      if (!fits) wrong(key, *value, "token ids");
      out.push_back(*fits);
    }
  }
  void early_stopping(EarlyStopping& out) const {
    const nlohmann::json* value = find("early_stopping");
    if (value == nullptr) return;
    if (*value == "never")
      out = EarlyStopping::never;
    else if (value->is_boolean())
      out = value->get<bool>() ? EarlyStopping::immediately : EarlyStopping::heuristic;
    else
      wrong("early_stopping", *value, "true, false or \"never\"");
  }
  void refuse_other(const char* key, double neutral) const {
    double value = neutral;
    number(key, value);
    if (value != neutral)
      fail(fmt::format("has {}: {}, which is not supported; set it to {}", key, value, neutral));
  }
};

void refuse_unsupported(const OptionReader& read) {
  for (const auto& [key, neutral] : {std::pair{"typical_p", 1.0},
                                     {"encoder_repetition_penalty", 1.0},
                                     {"guidance_scale", 1.0},
                                     {"epsilon_cutoff", 0.0},
                                     {"eta_cutoff", 0.0},
                                     {"encoder_no_repeat_ngram_size", 0.0},
                                     {"penalty_alpha", 0.0},
                                     {"diversity_penalty", 0.0},
                                     {"num_beam_groups", 1.0}})
    read.refuse_other(key, neutral);
  for (const char* key : {"renormalize_logits", "token_healing"}) read.refuse_true(key);
  for (const char* key : {"top_h", "max_time", "exponential_decay_length_penalty", "sequence_bias",
                          "constraints", "force_words_ids", "dola_layers", "watermarking_config"})
    if (read.has(key)) read.fail(fmt::format("has {}, which is not supported", key));
}

}  // namespace

void read_options(const nlohmann::json& fields, std::string_view source, std::int64_t context,
                  GenerationOptions& options) {
  const OptionReader read(fields, source);
  refuse_unsupported(read);
  if (read.has("max_new_tokens")) {
    read.integer("max_new_tokens", options.max_new_tokens);
  } else if (read.has("max_length")) {
    std::int64_t length = 0;
    read.integer("max_length", length);
    if (length <= context)
      read.fail(
          fmt::format("has max_length: {}, and {} ids come before the first new one; give "
                      "max_new_tokens",
                      length, context));
    options.max_new_tokens = length - context;
  }
  read.integer("min_length", options.min_length);
  read.integer("min_new_tokens", options.min_new_tokens);
  if (options.min_new_tokens > 0) options.min_length = 0;
  read.boolean("do_sample", options.do_sample);
  read.number("temperature", options.temperature);
  read.integer("top_k", options.top_k);
  read.number("top_p", options.top_p);
  read.number("min_p", options.min_p);
  read.ids("eos_token_id", options.stop_tokens);
  read.integer("num_beams", options.num_beams);
  read.integer("num_return_sequences", options.num_return_sequences);
  read.number("length_penalty", options.length_penalty);
  read.early_stopping(options.early_stopping);
  read.number("repetition_penalty", options.repetition_penalty);
  read.integer("no_repeat_ngram_size", options.no_repeat_ngram_size);
  if (const nlohmann::json* words = read.find("bad_words_ids"))
    options.bad_words_ids =
        field_as<std::vector<std::vector<std::int32_t>>>(*words, "bad_words_ids", source);
  read.id("forced_bos_token_id", options.forced_bos_token_id);
  read.id("forced_eos_token_id", options.forced_eos_token_id);
  read.ids("suppress_tokens", options.suppress_tokens);
  read.ids("begin_suppress_tokens", options.begin_suppress_tokens);
}

}  // namespace shoal::nn
