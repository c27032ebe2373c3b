#include "shoal/train/command/generate.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/emulation.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/nn/models/encoder_decoder/generate.h"
#include "shoal/nn/models/generate.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/command/generation_choice.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/text_stream.h"
#include "shoal/train/tasks/make_task.h"

namespace shoal::command {
namespace {

// Loads a mesh's checkpoint, whose shards together contain every tensor, or all of an adapter.
void load_parts(const std::string& directory, nn::Chain& model, bool adapts) {
  const auto checkpoint = ShardedCheckpoint::open(directory);
  std::set<std::string> wanted;
  for (nn::Parameter* parameter : model.parameters()) {
    if (adapts && !parameter->trainable()) continue;
    wanted.insert(parameter->name());
    checkpoint.read(whole_tensor(parameter->name(), parameter->shape(), parameter->value.dtype()),
                    parameter->value.view());
  }
  nn::LoadReport report;
  for (const auto& [name, description] : checkpoint.tensors())
    if (!is_state_name(name) && !wanted.contains(name)) report.unexpected.push_back(name);
  if (!report.unexpected.empty()) log::warn("{}: {}", directory, nn::describe(report));
}

nlohmann::json checked_config(const ModelPlace& place) {
  const std::string &directory = place.weights, &source = place.config;
  nlohmann::json config = nn::with_model_type(read_json_file(source), source);
  nn::check_sizes(config, source, place.whole());
  const std::optional<TaskKind> kind = task_of(config);
  if (kind == TaskKind::text_classification || kind == TaskKind::question_answering ||
      kind == TaskKind::token_classification)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a model for {}, which continues no text", directory, to_string(*kind)),
        fmt::format("use `shoal predict --model {} FILE`", directory));
  return config;
}

// A model with its memory and kernels, in f32 or bf16.
struct LoadedModel {
  LoadedModel(const ModelPlace& place, bool bf16)
      : host(make_host_memory()),
        pool(*host),
        kernels(kernels::make_cpu_kernels(
            {.threads = env::get_integer(env::kThreads) > 0
                            ? static_cast<int>(env::get_integer(env::kThreads))
                            : available_cores(),
             .memory = &pool})),
        context(*kernels, pool, dispatcher) {
    const std::string& source = place.config;
    const nlohmann::json config = checked_config(place);
    context.mode = nn::Mode::evaluate;
    if (const std::string why = kernels::emulation(*kernels, DType::bf16); bf16 && !why.empty())
      log::warn("bf16 is emulated ({}): f32 is faster; leave --bf16 out", why);
    const DType dtype = bf16 ? DType::bf16 : DType::f32;
    if (nn::is_encoder_decoder_type(nn::model_type_of(config)))
      load(place, dtype,
           *(encoder_decoder = std::make_unique<nn::EncoderDecoder>(
                 nn::EncoderDecoderConfig::from_json(config, source))));
    else
      load(place, dtype, *(decoder = nn::make_causal_lm(config, source)));
  }
  template <typename Model>
  void load(const ModelPlace& place, DType dtype, Model& model) {
    const std::string& directory = place.weights;
    const bool adapts = place.lora.has_value(), in_parts = find_shards(directory).ranks > 0;
    if (adapts) nn::add_lora(model, *place.lora);
    model.materialize(context, dtype);
    nn::LoadReport report;
    if (adapts || !in_parts)
      report = model.load(in_parts ? place.whole() : directory, nn::assign_values(context));
    if (in_parts) load_parts(directory, model, adapts);
    if (!report.missing.empty())
      throw Error(
          ErrorCode::not_found,
          fmt::format("{} has no weights for {}", directory, fmt::join(report.missing, ", ")),
          "train it for its language-modeling task first");
    if (!report.unexpected.empty()) log::warn("{}: {}", directory, nn::describe(report));
  }
  std::int64_t vocabulary() const {
    return decoder ? decoder->vocabulary() : encoder_decoder->config().vocab_size;
  }
  // Positions of a decoder, or of an encoder; a model with relative positions has no bound.
  std::int64_t positions() const {
    if (decoder) return decoder->positions();
    const nn::EncoderDecoderConfig& config = encoder_decoder->config();
    return config.family().relative_positions ? std::numeric_limits<std::int64_t>::max()
                                              : config.max_position_embeddings;
  }
  std::unique_ptr<MemoryResource> host;
  PoolMemory pool;
  std::unique_ptr<kernels::Kernels> kernels;
  nn::DirectDispatcher dispatcher;
  nn::Context context;
  std::unique_ptr<nn::CausalLm> decoder;  // or
  std::unique_ptr<nn::EncoderDecoder> encoder_decoder;
};

Tensor ids_tensor(const std::vector<std::int32_t>& ids, std::int64_t rows, MemoryResource& memory) {
  const auto columns = static_cast<std::int64_t>(ids.size()) / rows;
  Tensor tensor = Tensor::empty({rows, columns}, DType::i32, memory, MemoryTag::data);
  std::copy(ids.begin(), ids.end(), tensor.data<std::int32_t>());
  return tensor;
}

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t length,
               const LoadedModel& model) {
  SHOAL_CHECK(!ids.empty(), "the prompt is empty: a model continues at least one token");
  SHOAL_CHECK(length <= model.positions(), "the prompt has {} tokens, the model {} positions",
              length, model.positions());
  for (const std::int32_t id : ids)
    SHOAL_CHECK(id >= 0 && id < model.vocabulary(),
                "token id {} is outside the model's vocabulary of {}", id, model.vocabulary());
}

std::string write_logits(LoadedModel& loaded, const std::string& path, const Tensor& ids) {
  if (!loaded.decoder)
    throw Error(ErrorCode::invalid_argument, "logits of an encoder-decoder's prompts",
                "leave --logits-out out; only decoders have them");
  const Tensor logits = loaded.decoder->logits(loaded.context, ids);
  Tensor wide = Tensor::empty(logits.shape(), DType::f32, loaded.pool, MemoryTag::workspace);
  loaded.kernels->elementwise().cast(logits, wide.view(), {});
  Tensor ids64 = Tensor::empty(ids.shape(), DType::i64, loaded.pool, MemoryTag::workspace);
  const auto* from = ids.const_data<std::int32_t>();
  std::copy(from, from + ids.count(), ids64.data<std::int64_t>());
  write_safetensors(path, {{"input_ids", ids64.const_view()}, {"logits", wide.const_view()}});
  return fmt::format("logits {} of {} tokens: {}", to_string(wide.shape()), ids.count(), path);
}

// Reads the ids for --input-ids, [B, T] i64 or i32.
Tensor read_ids(const std::string& path, MemoryResource& memory, const LoadedModel& model) {
  const Tensor saved = SafetensorsFile::open(path)->tensor("input_ids");
  SHOAL_CHECK(saved.shape().rank() == 2 && saved.count() > 0, "{}: input_ids is {}, not [B, T]",
              path, to_string(saved.shape()));
  std::vector<std::int32_t> ids;
  if (saved.dtype() == DType::i64) {
    const auto* from = saved.const_data<std::int64_t>();
    for (std::int64_t i = 0; i < saved.count(); ++i) {
      SHOAL_CHECK(from[i] >= 0 && from[i] < model.vocabulary(),
                  "token id {} is outside the model's vocabulary of {}", from[i],
                  model.vocabulary());
      ids.push_back(static_cast<std::int32_t>(from[i]));
    }
  } else {
    const auto* from = saved.const_data<std::int32_t>();
    ids.assign(from, from + saved.count());
  }
  check_ids(ids, saved.shape()[1], model);
  return ids_tensor(ids, saved.shape()[0], memory);
}

using Texts = std::vector<std::vector<TokenId>>;

// A tokenizer with a model, and the user's options.
class Generator {
 public:
  Generator(const GenerateOptions& options, const ModelPlace& place)
      : options_(options),
        place_(place),
        tokenizer_(load_tokenizer(options.tokenizer.empty() ? place.tokenizer : options.tokenizer)),
        loaded_(place, options.bf16) {}

  void continue_one(const std::string& prompt, const GenerateOutput& output) {
    const Texts prompts = {checked_ids(prompt)};
    if (!options_.logits_out.empty())
      output.on_message(
          write_logits(loaded_, options_.logits_out, ids_tensor(prompts[0], 1, loaded_.pool)));
    nn::GenerationOptions how = chosen(prompts);
    if (how.max_new_tokens == 0) return;
    if (how.num_return_sequences > 1) {
      const Texts all = generated(prompts, how, 0);
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (i > 0) output.on_text("\n");
        if (!encodes()) output.on_text(prompt);
        output.on_text(text_of(prompts[0], all[i]));
      }
      return;
    }
    if (!encodes()) output.on_text(prompt);
    TextStream stream(*tokenizer_, known(prompts[0]));
    std::size_t shown = 0;
    bool wanted = true;
    const auto show = [&](TokenId token) {
      ++shown;
      wanted = output.on_text(stream.add(token));
      return wanted;
    };
    if (!how.searches_beams())
      how.ends = [&, stops = how.ends](std::span<const TokenId> tokens) {
        return !show(tokens.back()) || (stops && stops(tokens));
      };
    const Texts all = generated(prompts, how, 0);
    // All tokens of a search for beams. Otherwise the last one, if the limit ends the text: `ends`
    // is not called for it.
    while (wanted && shown < all[0].size()) show(all[0][shown]);
    if (wanted) output.on_text(stream.finish());
  }

  // One line of JSON for each sequence.
  void continue_all(const std::vector<std::string>& lines, const GenerateOutput& output) {
    for (std::size_t first = 0; first < lines.size();) {
      Texts prompts;
      const std::size_t end =
          std::min(lines.size(), first + static_cast<std::size_t>(options_.batch_size));
      for (std::size_t line = first; line < end; ++line)
        prompts.push_back(checked_ids(lines[line]));
      const nn::GenerationOptions how = chosen(prompts);
      const Texts all = generated(prompts, how, static_cast<std::uint32_t>(first));
      for (std::size_t i = 0; i < all.size(); ++i) {
        const std::size_t line = i / static_cast<std::size_t>(how.num_return_sequences);
        const nlohmann::ordered_json row = {{"prompt", lines[first + line]},
                                            {"text", text_of(prompts[line], all[i])}};
        if (first + i > 0) output.on_text("\n");
        if (!output.on_text(row.dump())) return;
      }
      first = end;
    }
  }

 private:
  bool encodes() const { return loaded_.encoder_decoder != nullptr; }
  // The tokens whose text precedes the new one's.
  std::vector<TokenId> known(const std::vector<TokenId>& prompt) const {
    return encodes() ? std::vector<TokenId>() : prompt;
  }
  std::string text_of(const std::vector<TokenId>& prompt, const std::vector<TokenId>& tokens) {
    return text_after(*tokenizer_, known(prompt), tokens);
  }
  std::vector<TokenId> checked_ids(const std::string& prompt) const {
    std::vector<TokenId> ids = prompt_ids(*tokenizer_, prompt, encodes());
    check_ids(ids, std::ssize(ids), loaded_);
    return ids;
  }
  nn::GenerationOptions chosen(const Texts& prompts) const {
    TextLimits limits{.encodes = encodes()};
    std::int64_t longest = 0;
    for (const auto& prompt : prompts) longest = std::max(longest, std::ssize(prompt));
    limits.context = encodes() ? 1 : longest;
    limits.room = loaded_.positions() - (encodes() ? 0 : longest);
    SHOAL_CHECK(limits.room > 0 || field_or<std::int64_t>(options_.fields, "max_new_tokens", 1,
                                                          "the options") == 0,
                "the prompt's {} tokens fill all {} positions of the model; shorten it", longest,
                loaded_.positions());
    return choose_generation(options_, place_, *tokenizer_, limits);
  }
  Texts generated(const Texts& prompts, const nn::GenerationOptions& how, std::uint32_t first) {
    if (loaded_.decoder)
      return nn::generate_batch(loaded_.context, *loaded_.decoder, prompts, how, {.first = first});
    std::size_t longest = 0;
    for (const auto& prompt : prompts) longest = std::max(longest, prompt.size());
    std::vector<TokenId> ids, lengths;
    for (const auto& prompt : prompts) {
      ids.insert(ids.end(), prompt.begin(), prompt.end());
      ids.resize(ids.size() + longest - prompt.size(), 0);
      lengths.push_back(static_cast<TokenId>(prompt.size()));
    }
    const Tensor sizes = ids_tensor(lengths, 1, loaded_.pool).reshaped({std::ssize(lengths)});
    return nn::generate(loaded_.context, *loaded_.encoder_decoder,
                        ids_tensor(ids, std::ssize(prompts), loaded_.pool), sizes, how,
                        {.first = first});
  }

  const GenerateOptions& options_;
  const ModelPlace& place_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  LoadedModel loaded_;
};

std::vector<std::string> read_lines(const std::string& path) {
  std::istringstream text(read_text_file(path));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(line);
  }
  SHOAL_CHECK(!lines.empty(), "{} has no prompt; write one a line", path);
  return lines;
}

}  // namespace

void generate(const GenerateOptions& options, const GenerateOutput& output) {
  const ModelPlace place = place_of(model_directory(local_model(options.model)));
  if (!options.input_ids.empty()) {
    SHOAL_CHECK(!options.prompt, "--prompt and --input-ids are both given; choose one");
    SHOAL_CHECK(!options.logits_out.empty(), "--input-ids needs --logits-out");
    LoadedModel loaded(place, options.bf16);
    output.on_message(
        write_logits(loaded, options.logits_out, read_ids(options.input_ids, loaded.pool, loaded)));
    return;
  }
  SHOAL_CHECK(!options.prompt || options.prompts.empty(),
              "--prompt and --prompts are both given; choose one");
  if (!options.prompts.empty()) {
    SHOAL_CHECK(options.logits_out.empty(), "--logits-out takes --prompt or --input-ids");
    const std::vector<std::string> lines = read_lines(options.prompts);
    Generator(options, place).continue_all(lines, output);
    return;
  }
  SHOAL_CHECK(options.prompt,
              "give --prompt TEXT or --prompts FILE (or --input-ids FILE with --logits-out)");
  Generator(options, place).continue_one(*options.prompt, output);
}

}  // namespace shoal::command
