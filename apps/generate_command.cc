// shoal generate: continues a prompt, token by token.
#include <cstdio>
#include <memory>
#include <set>

#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/kernels/emulation.h"
#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/generate.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/command/setup.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/text_stream.h"

namespace shoal::app {
namespace {

struct Options {
  std::string model, tokenizer, prompt, logits_out, input_ids;
  bool has_prompt = false, greedy = false, bf16 = false, no_stop = false;
  nn::GenerationOptions generation;
};

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
        held(built(directory)),
        model(*held) {
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
  std::unique_ptr<nn::CausalLm> held;
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

void write_logits(LoadedModel& loaded, const std::string& path, const Tensor& ids) {
  const Tensor logits = loaded.model.logits(loaded.context, ids);
  Tensor wide = Tensor::empty(logits.shape(), DType::f32, loaded.pool, MemoryTag::workspace);
  loaded.kernels->elementwise().cast(logits, wide.view(), {});
  Tensor ids64 = Tensor::empty(ids.shape(), DType::i64, loaded.pool, MemoryTag::workspace);
  const auto* from = ids.const_data<std::int32_t>();
  std::copy(from, from + ids.count(), ids64.data<std::int64_t>());
  write_safetensors(path, {{"input_ids", ids64.const_view()}, {"logits", wide.const_view()}});
  terminal::print("logits {} of {} tokens: {}\n", to_string(wide.shape()), ids.count(), path);
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

int generate(Options options) {
  const std::string directory = command::model_directory(command::local_model(options.model));
  if (!options.input_ids.empty()) {
    SHOAL_CHECK(!options.has_prompt, "--prompt and --input-ids are both given; choose one");
    SHOAL_CHECK(!options.logits_out.empty(), "--input-ids needs --logits-out");
    LoadedModel loaded(directory, options.bf16);
    write_logits(loaded, options.logits_out,
                 read_ids(options.input_ids, loaded.pool, loaded.model));
    return 0;
  }
  SHOAL_CHECK(options.has_prompt, "give --prompt TEXT (or --input-ids FILE with --logits-out)");
  const auto tokenizer = load_tokenizer(options.tokenizer.empty() ? directory : options.tokenizer);
  std::vector<TokenId> ids;
  // Starts with the special tokens before a text (Llama: <s>), and omits those after it.
  for (const auto& piece : tokenizer->sequence_template().single) {
    if (piece.text != SequenceTemplate::kSpecial) break;
    ids.push_back(piece.id);
  }
  tokenizer->append_ids(options.prompt, ids);
  LoadedModel loaded(directory, options.bf16);
  // An empty prompt starts a new text.
  if (ids.empty() && tokenizer->roles().bos) ids.push_back(*tokenizer->roles().bos);
  const auto length = static_cast<std::int64_t>(ids.size());
  check_ids(ids, length, loaded.model);
  if (!options.logits_out.empty())
    write_logits(loaded, options.logits_out, ids_tensor(ids, 1, loaded.pool));

  nn::GenerationOptions& how = options.generation;
  const std::int64_t room = loaded.model.positions() - length;
  SHOAL_CHECK(room > 0 || how.max_new_tokens == 0,
              "the prompt's {} tokens fill all {} positions of the model; shorten it", length,
              loaded.model.positions());
  if (how.max_new_tokens > room)
    log::warn("{} new tokens are asked for; only {} fit into the model's {} positions",
              how.max_new_tokens, room, loaded.model.positions());
  how.max_new_tokens = std::min(how.max_new_tokens, room);
  SHOAL_CHECK(how.top_p > 0, "--top-p 0 leaves no token; use --greedy for the likeliest one");
  how.do_sample = !options.greedy && how.temperature > 0;
  if (!how.do_sample) how.temperature = 1;
  if (!options.no_stop && tokenizer->roles().eos) how.stop_tokens = {*tokenizer->roles().eos};
  if (how.max_new_tokens <= 0) return 0;
  terminal::write_result(stdout, options.prompt);
  TextStream stream(*tokenizer, ids);
  const auto print = [](const std::string& text) {
    terminal::write_result(stdout, text);
    std::fflush(stdout);
    return std::ferror(stdout) == 0;
  };
  nn::generate(loaded.context, loaded.model, ids, how, 0,
               [&](std::int32_t token) { return print(stream.add(token)); });
  print(stream.finish() + '\n');
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("generate", "Continue a prompt with a trained model");
  auto o = std::make_shared<Options>();
  command->add_option("--model,-m", o->model, "Hugging Face directory, or a run with checkpoints")
      ->required();
  auto* prompt = command->add_option("--prompt,-p", o->prompt, "text to continue");
  command->add_option("--tokenizer", o->tokenizer, "where it is not in the model's directory");
  command
      ->add_option("--max-new-tokens,--max_new_tokens", o->generation.max_new_tokens,
                   "at most so many")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--temperature", o->generation.temperature, "0: always the likeliest token")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-k,--top_k", o->generation.top_k, "of the likeliest tokens; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--top-p,--top_p", o->generation.top_p, "of the probability; 1: all")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", o->generation.seed, "of the sampling")->capture_default_str();
  command->add_flag("--greedy", o->greedy, "always the likeliest token");
  command->add_flag("--bf16", o->bf16, "compute in bfloat16");
  command->add_flag("--no-stop", o->no_stop, "go on after the end-of-text token");
  command->add_option("--logits-out", o->logits_out,
                      "write input_ids and the logits of every position (safetensors)");
  command->add_option("--input-ids", o->input_ids,
                      "take input_ids [B, T] from this safetensors file instead of a prompt");
  command->callback([&action, o, prompt] {
    o->has_prompt = prompt->count() > 0;
    action = [o] { return generate(*o); };
  });
}

}  // namespace shoal::app
