#include "shoal/train/command/generation_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/nn/models/generation/read_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/tokenizer/text_stream.h"

namespace shoal::command {
namespace {

std::string source_of(const ModelPlace& place) {
  const std::string own = place.files + "/generation_config.json";
  return path_exists(own) ? own : place.config;
}

void choose_strategy(const GenerateOptions& options, bool encodes, nlohmann::json& fields) {
  const nlohmann::json& asked = options.fields;
  const auto beams = field_or<std::int64_t>(asked, "num_beams", 0, "the options");
  SHOAL_CHECK(!options.greedy || beams <= 1,
              "--greedy and --num-beams {} are both given; choose one", beams);
  SHOAL_CHECK(field_or(asked, "top_p", 1.0, "the options") > 0,
              "--top-p 0 leaves no token; use --greedy for the likeliest one");
  const bool cold = field_or(asked, "temperature", 1.0, "the options") == 0;
  const bool sampling_asked =
      std::ranges::any_of(std::vector{"temperature", "top_k", "top_p", "min_p"},
                          [&](const char* name) { return asked.contains(name); });
  SHOAL_CHECK(beams <= 1 || !sampling_asked || cold,
              "--num-beams {} with --temperature, --top-k, --top-p or --min-p: beams are searched, "
              "not sampled; leave one of them out",
              beams);
  if (options.greedy || cold) {
    fields["do_sample"] = false;
    fields.erase("temperature");
    if (options.greedy) fields["num_beams"] = 1;
  } else if (asked.contains("do_sample")) {
    return;
  } else if (sampling_asked) {
    fields["do_sample"] = true;
  } else if (beams > 1) {
    fields["do_sample"] = false;
  } else if (find_field(fields, "do_sample") == nullptr) {
    fields["do_sample"] =
        !encodes && field_or<std::int64_t>(fields, "num_beams", 1, "the options") == 1;
  }
}

std::vector<std::string> stop_strings(const nlohmann::json& fields, const std::string& source) {
  const nlohmann::json* stops = find_field(fields, "stop_strings");
  if (stops == nullptr) return {};
  if (stops->is_string()) return {stops->get<std::string>()};
  return field_as<std::vector<std::string>>(*stops, "stop_strings", source);
}

}  // namespace

nn::GenerationOptions choose_generation(const GenerateOptions& options, const ModelPlace& place,
                                        const Tokenizer& tokenizer, const TextLimits& limits) {
  const std::string source = source_of(place);
  nlohmann::json fields = read_json_file(source);
  SHOAL_CHECK(fields.is_object(), "{} is not a JSON object", source);
  fields.update(options.fields);
  choose_strategy(options, limits.encodes, fields);
  nn::GenerationOptions how;
  how.seed = options.seed;
  nn::read_options(fields, source, limits.context, how);
  if (how.max_new_tokens > limits.room)
    log::warn("{} new tokens are wanted; only {} fit into the model's {} positions",
              how.max_new_tokens, limits.room, limits.room + limits.context);
  how.max_new_tokens = std::min(how.max_new_tokens, limits.room);
  if (const auto end = tokenizer.roles().eos; end && std::ranges::count(how.stop_tokens, *end) == 0)
    how.stop_tokens.push_back(*end);
  if (options.no_stop) how.stop_tokens.clear();
  std::vector<std::string> stops = stop_strings(fields, source);
  SHOAL_CHECK(
      std::ranges::count(stops, "") == 0,
      "an empty stop string, which every text contains; give --stop a text, or leave it out");
  if (!stops.empty())
    how.ends = [&tokenizer, stops = std::move(stops)](std::span<const TokenId> tokens) {
      const std::string text = tokenizer.decode(tokens);
      return std::ranges::any_of(
          stops, [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
    };
  return how;
}

std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt,
                                bool encodes) {
  std::vector<TokenId> ids;
  if (encodes) {
    tokenizer.append_ids(prompt, ids, true);
    return ids;
  }
  // Stop at the text: special tokens after it would end the prompt.
  for (const auto& piece : tokenizer.sequence_template().single) {
    if (piece.text != SequenceTemplate::kSpecial) break;
    ids.push_back(piece.id);
  }
  tokenizer.append_ids(prompt, ids);
  // An empty prompt starts a new text.
  if (ids.empty() && tokenizer.roles().bos) ids.push_back(*tokenizer.roles().bos);
  return ids;
}

std::string text_after(const Tokenizer& tokenizer, std::span<const TokenId> before,
                       std::span<const TokenId> tokens) {
  TextStream stream(tokenizer, before);
  std::string text;
  for (const TokenId token : tokens) text += stream.add(token);
  return text + stream.finish();
}

}  // namespace shoal::command
