#include "shoal/train/command/generate.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/emulation.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/text_stream.h"
#include "shoal/train/tasks/make_task.h"

namespace shoal::command {
namespace {

// Loads a mesh's checkpoint, whose shards together contain every tensor.
void load_parts(const std::string& directory, nn::CausalLm& model) {
  const auto checkpoint = ShardedCheckpoint::open(directory);
  std::set<std::string> wanted;
  for (nn::Parameter* parameter : model.parameters()) {
    wanted.insert(parameter->name());
    checkpoint.read(whole_tensor(parameter->name(), parameter->shape(), parameter->value.dtype()),
                    parameter->value.view());
  }
  nn::LoadReport report;
  for (const auto& [name, description] : checkpoint.tensors())
    if (!is_state_name(name) && !wanted.contains(name)) report.unexpected.push_back(name);
  if (!report.unexpected.empty()) log::warn("{}: {}", directory, nn::describe(report));
}

std::unique_ptr<nn::CausalLm> built(const std::string& directory) {
  const std::string source = directory + "/config.json";
  const nlohmann::json config = nn::with_model_type(read_json_file(source), source);
  nn::check_sizes(config, source, directory);
  const std::optional<TaskKind> kind = task_of(config);
  if (kind == TaskKind::text_classification || kind == TaskKind::question_answering ||
      kind == TaskKind::token_classification)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a model for {}, which continues no text", directory, to_string(*kind)),
        fmt::format("use `shoal predict --model {} FILE`", directory));
  return nn::make_causal_lm(config, source);
}

// A model with its memory and kernels, in f32 or bf16.
struct LoadedModel {
  LoadedModel(const std::string& directory, bool bf16)
      : host(make_host_memory()),
        pool(*host),
        kernels(kernels::make_cpu_kernels(
            {.threads = env::get_integer(env::kThreads) > 0
                            ? static_cast<int>(env::get_integer(env::kThreads))
                            : available_cores(),
             .memory = &pool})),
        context(*kernels, pool, dispatcher),
        owned(built(directory)),
        model(*owned) {
    context.mode = nn::Mode::evaluate;
    if (const std::string why = kernels::emulation(*kernels, DType::bf16); bf16 && !why.empty())
      log::warn("bf16 is emulated ({}): f32 is faster; leave --bf16 out", why);
    model.materialize(context, bf16 ? DType::bf16 : DType::f32);
    if (find_shards(directory).ranks > 0) {
      load_parts(directory, model);
      return;
    }
    const nn::LoadReport report = model.load(directory, nn::assign_values(context));
    if (!report.missing.empty())
      throw Error(
          ErrorCode::not_found,
          fmt::format("{} has no weights for {}", directory, fmt::join(report.missing, ", ")),
          "train it for causal-lm first");
    if (!report.unexpected.empty()) log::warn("{}: {}", directory, nn::describe(report));
  }
  std::unique_ptr<MemoryResource> host;
  PoolMemory pool;
  std::unique_ptr<kernels::Kernels> kernels;
  nn::DirectDispatcher dispatcher;
  nn::Context context;
  std::unique_ptr<nn::CausalLm> owned;
  nn::CausalLm& model;
};

Tensor ids_tensor(const std::vector<std::int32_t>& ids, std::int64_t rows, MemoryResource& memory) {
  const auto columns = static_cast<std::int64_t>(ids.size()) / rows;
  Tensor tensor = Tensor::empty({rows, columns}, DType::i32, memory, MemoryTag::data);
  std::copy(ids.begin(), ids.end(), tensor.data<std::int32_t>());
  return tensor;
}

void check_ids(const std::vector<std::int32_t>& ids, std::int64_t length,
               const nn::CausalLm& model) {
  SHOAL_CHECK(!ids.empty(), "the prompt is empty: a model continues at least one token");
  SHOAL_CHECK(length <= model.positions(), "the prompt has {} tokens, the model {} positions",
              length, model.positions());
  for (const std::int32_t id : ids)
    SHOAL_CHECK(id >= 0 && id < model.vocabulary(),
                "token id {} is outside the model's vocabulary of {}", id, model.vocabulary());
}

std::string write_logits(LoadedModel& loaded, const std::string& path, const Tensor& ids) {
  const Tensor logits = loaded.model.logits(loaded.context, ids);
  Tensor wide = Tensor::empty(logits.shape(), DType::f32, loaded.pool, MemoryTag::workspace);
  loaded.kernels->elementwise().cast(logits, wide.view(), {});
  Tensor ids64 = Tensor::empty(ids.shape(), DType::i64, loaded.pool, MemoryTag::workspace);
  const auto* from = ids.const_data<std::int32_t>();
  std::copy(from, from + ids.count(), ids64.data<std::int64_t>());
  write_safetensors(path, {{"input_ids", ids64.const_view()}, {"logits", wide.const_view()}});
  return fmt::format("logits {} of {} tokens: {}", to_string(wide.shape()), ids.count(), path);
}

// Reads the ids for --input-ids, [B, T] i64 or i32.
Tensor read_ids(const std::string& path, MemoryResource& memory, const nn::CausalLm& model) {
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

// The prompt's tokens, after the special tokens that begin a text of this model (Llama: <s>).
std::vector<TokenId> prompt_ids(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<TokenId> ids;
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

nn::GenerationOptions settled(const GenerateOptions& options, const Tokenizer& tokenizer,
                              std::int64_t length, std::int64_t positions) {
  nn::GenerationOptions how = options.generation;
  const std::int64_t room = positions - length;
  SHOAL_CHECK(how.max_new_tokens >= 0, "max_new_tokens is {}; it is at least 0",
              how.max_new_tokens);
  SHOAL_CHECK(room > 0 || how.max_new_tokens == 0,
              "the prompt's {} tokens fill all {} positions of the model; shorten it", length,
              positions);
  if (how.max_new_tokens > room)
    log::warn("{} new tokens are asked for; only {} fit into the model's {} positions",
              how.max_new_tokens, room, positions);
  how.max_new_tokens = std::min(how.max_new_tokens, room);
  SHOAL_CHECK(how.temperature >= 0, "the temperature is {}; it is at least 0", how.temperature);
  SHOAL_CHECK(how.top_k >= 0, "top_k is {}; it is at least 0", how.top_k);
  SHOAL_CHECK(how.top_p > 0, "--top-p {} leaves no token; use --greedy for the likeliest one",
              how.top_p);
  how.do_sample = !options.greedy && how.temperature > 0;
  if (!how.do_sample) how.temperature = 1;
  if (!options.no_stop && tokenizer.roles().eos) how.stop_tokens = {*tokenizer.roles().eos};
  return how;
}

}  // namespace

void generate(const GenerateOptions& options, const GenerateOutput& output) {
  const std::string directory = model_directory(local_model(options.model));
  if (!options.input_ids.empty()) {
    SHOAL_CHECK(!options.prompt, "--prompt and --input-ids are both given; choose one");
    SHOAL_CHECK(!options.logits_out.empty(), "--input-ids needs --logits-out");
    LoadedModel loaded(directory, options.bf16);
    output.on_message(write_logits(loaded, options.logits_out,
                                   read_ids(options.input_ids, loaded.pool, loaded.model)));
    return;
  }
  SHOAL_CHECK(options.prompt, "give --prompt TEXT (or --input-ids FILE with --logits-out)");
  const auto tokenizer = load_tokenizer(options.tokenizer.empty() ? directory : options.tokenizer);
  const std::vector<TokenId> ids = prompt_ids(*tokenizer, *options.prompt);
  LoadedModel loaded(directory, options.bf16);
  const auto length = static_cast<std::int64_t>(ids.size());
  check_ids(ids, length, loaded.model);
  if (!options.logits_out.empty())
    output.on_message(write_logits(loaded, options.logits_out, ids_tensor(ids, 1, loaded.pool)));
  const nn::GenerationOptions how = settled(options, *tokenizer, length, loaded.model.positions());
  if (how.max_new_tokens == 0) return;
  output.on_text(*options.prompt);
  TextStream stream(*tokenizer, ids);
  nn::generate(loaded.context, loaded.model, ids, how, 0,
               [&](std::int32_t token) { return output.on_text(stream.add(token)); });
  output.on_text(stream.finish());
}

}  // namespace shoal::command
