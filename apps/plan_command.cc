// shoal plan: predicts the time, memory and cost of a step before it is paid for.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "command_line.h"
#include "commands.h"
#include "plan_calibrate.h"
#include "plan_page.h"
#include "plan_spot_command.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/model.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/parallel/predict/predict.h"
#include "shoal/parallel/predict/search.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/records.h"
#include "shoal/train/run/model_config.h"
#include "shoal/train/trainer/optimizers.h"

namespace shoal::app {
namespace {

using nlohmann::ordered_json;
using parallel::Machine;
using parallel::ParallelPlan;
using parallel::Prediction;

struct ValidateWords {
  std::string file, machine;
  bool json = false;
};

// One measured step of a GPT model, as the published tables give it.
struct Point {
  std::int64_t devices, batch, microbatch, channels, heads, layers, length;
  int tensor, data, pipeline;
  double measured;  // seconds
};

Point read_point(const Record& row) {
  const auto degree = [&row](const char* name) {
    const std::int64_t value = row.integer(name);
    SHOAL_CHECK(value >= 1 && value <= 1'000'000, "{}: {} is {}", row.place(), name, value);
    return static_cast<int>(value);
  };
  const double measured = row.number("iteration time (ms)") * 1e-3;
  SHOAL_CHECK(std::isfinite(measured) && measured > 0, "{}: iteration time (ms) is {}", row.place(),
              row.value("iteration time (ms)"));
  return {.devices = degree("# GPUs"),
          .batch = degree("global batch"),
          .microbatch = degree("micro batch"),
          .channels = degree("hidden size"),
          .heads = degree("attention heads"),
          .layers = degree("# layers"),
          .length = degree("sequence length"),
          .tensor = degree("tensor parallelism"),
          .data = degree("data parallelism"),
          .pipeline = degree("pipeline parallelism"),
          .measured = measured};
}

// Megatron-DeepSpeed's layout of a point: f16, every block recomputed, 1F1B with as many blocks in
// each stage, replicas before pipelines over the ranks.
ParallelPlan plan_of(const Point& point, const Record& row) {
  const std::int64_t replica_batch = point.batch / point.data;
  SHOAL_CHECK(point.batch % point.data == 0 && replica_batch % point.microbatch == 0,
              "{}: a batch of {} does not divide into {} replicas and microbatches of {}",
              row.place(), point.batch, point.data, point.microbatch);
  SHOAL_CHECK(std::int64_t{point.tensor} * point.data * point.pipeline == point.devices,
              "{}: {} GPUs are not tensor {} x data {} x pipeline {}", row.place(), point.devices,
              point.tensor, point.data, point.pipeline);
  SHOAL_CHECK(point.layers % point.pipeline == 0, "{}: {} layers do not divide into {} stages",
              row.place(), point.layers, point.pipeline);
  ParallelPlan plan;
  plan.mesh = {
      .pipeline = point.pipeline, .tensor = point.tensor, .placement = parallel::Placement("PDT")};
  plan.pipeline.schedule = parallel::ScheduleKind::one_f_one_b;
  plan.pipeline.microbatches = static_cast<int>(replica_batch / point.microbatch);
  plan.tensor = {.prescaled_batch = true, .speed = true};
  plan.activations.checkpoint_group = 1;
  plan.precision.dtype = DType::f16;
  if (point.pipeline > 1) {  // embeddings with the first blocks, the head with the last
    const std::int64_t blocks = point.layers / point.pipeline;
    for (int stage = 0; stage < point.pipeline; ++stage)
      plan.pipeline.partition.counts +=
          fmt::format("{}{}", stage > 0 ? "," : "",
                      blocks + (stage == 0 || stage == point.pipeline - 1 ? 1 : 0));
  }
  return plan;
}

constexpr int kVocabulary = 51200;  // Megatron's GPT-2 vocabulary, padded

Prediction predict_point(const Point& point, const Machine& machine, const Record& row) {
  const nlohmann::json config = {{"model_type", "gpt2"},     {"vocab_size", kVocabulary},
                                 {"n_embd", point.channels}, {"n_head", point.heads},
                                 {"n_layer", point.layers},  {"n_positions", point.length}};
  const auto model = nn::make_causal_lm(config, row.place());
  const parallel::ModelShape shape = parallel::model_shape(*model);
  const ParallelPlan plan = plan_of(point, row);
  return parallel::predict({.model = shape,
                            .machine = machine,
                            .plan = plan,
                            .run = {.ranks = static_cast<int>(point.devices),
                                    .batch = point.batch / point.data,
                                    .length = point.length}});
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (at - std::floor(at)) * (values[above] - values[below]);
}

int validate(const ValidateWords& words) {
  const Machine machine = parallel::find_machine(words.machine);
  const RecordFile file(words.file);
  file.need_rows();
  ordered_json points = ordered_json::array();
  std::vector<double> errors;
  for (std::int64_t i = 0; i < file.size(); ++i) {
    const Record row = file.get(i);
    const Point point = read_point(row);
    const Prediction prediction = predict_point(point, machine, row);
    const double error = prediction.seconds / point.measured - 1;
    errors.push_back(std::abs(error));
    points.push_back({{"predicted_ms", prediction.seconds * 1e3},
                      {"measured_ms", point.measured * 1e3},
                      {"error", error},
                      {"block_ms", prediction.block_seconds * 1e3},
                      {"gpus", point.devices},
                      {"batch", point.batch},
                      {"micro_batch", point.microbatch},
                      {"hidden", point.channels},
                      {"layers", point.layers},
                      {"tensor", point.tensor},
                      {"data", point.data},
                      {"pipeline", point.pipeline},
                      {"limit", prediction.limit}});
  }
  const double median = quantile(errors, 0.5), p95 = quantile(errors, 0.95);
  if (words.json) {
    print_json({{"machine", words.machine},
                {"points", points},
                {"median_error", median},
                {"p95_error", p95}});
    return 0;
  }
  terminal::print("{} points on {}: median error {:.1f} %, 95th percentile {:.1f} %\n",
                  errors.size(), words.machine, 100 * median, 100 * p95);
  return 0;
}

constexpr int kMostRanks = 4096;  // at which the search for more nodes ends

struct PlanWords {
  std::string model, overrides, machine, save, fit, html, dtype = "bf16", optim = "adamw";
  nn::LoraOptions lora{.r = 0};  // 0: the whole model is trained
  int nodes = 1, keep = 10, explain = 0;
  std::int64_t batch = 0, length = 0;
  double memory_gb = 0, price = -1, tokens = 0;
  bool json = false;
  bool has_targets = false;  // the model is an encoder-decoder
};

// The configuration that words.model names: a .json file, a directory with a config.json (a path
// with
// '/', or "."), or a model_type.
nlohmann::json config_of(const PlanWords& words) {
  const std::string& model = words.model;
  nlohmann::json config;
  if (model.ends_with(".json"))
    config = read_json_file(model);
  else if (model.find('/') != std::string::npos || model == ".")
    config = read_json_file(model + "/config.json");
  else
    config = config_of_type(model);
  return overridden_config(completed_config(config, model), words.overrides, model);
}

std::unique_ptr<nn::UpdateRule> rule_of(const std::string& optim) {
  TrainingArguments arguments;
  std::vector<std::string> names;
  for (const auto& [name, first] : optimizer_words()) {
    names.emplace_back(name);
    arguments.optim = first;
    if (optim == name) return make_rule(arguments);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("there is no update rule '{}'", optim),
              fmt::format("take one of {}", fmt::join(names, ", ")));
}

struct ReadModel {
  parallel::ModelShape shape;
  std::int64_t positions = 0;
  bool limited = true;  // false: --length may exceed the positions
};
// Encoders have the head of a masked language model. The source and the target of an
// encoder-decoder have the same length: that of a T5, whose positions have no limit, is 1024.
ReadModel read_model(const nlohmann::json& config, const PlanWords& words) {
  const std::string& source = words.model;
  const std::unique_ptr<nn::UpdateRule> rule = rule_of(words.optim);
  const auto shape_of = [&](nn::Chain& model) {
    if (words.lora.r > 0) nn::add_lora(model, words.lora);
    return parallel::model_shape(model, rule.get());
  };
  if (is_decoder_config(config)) {
    const auto model = nn::make_causal_lm(config, source);
    return {shape_of(*model), model->positions()};
  }
  if (is_encoder_decoder_config(config)) {
    const nn::EncoderDecoderConfig both = nn::EncoderDecoderConfig::from_json(config, source);
    nn::EncoderDecoder model(both);
    return {shape_of(model), both.max_position_embeddings, !both.family().relative_positions};
  }
  const nn::EncoderConfig encoder = nn::EncoderConfig::from_json(config, source);
  const bool after_padding = nn::encoder_family(encoder.model_type).positions_from_ids;
  nn::Encoder model(encoder, nn::EncoderTask::masked_lm);
  return {shape_of(model), encoder.max_position_embeddings -
                               (after_padding ? encoder.pad_token_id.value_or(0) + 1 : 0)};
}

// Throws with what the smallest layout lacks, and the nodes that would do.
[[noreturn]] void refuse(parallel::SearchRequest request, const PlanWords& words, double limit,
                         const parallel::SearchResult& result) {
  SHOAL_CHECK(result.layouts > 0, "a batch of {} has no legal layout on {} ranks", request.batch,
              request.ranks);
  std::string remedy = "use a machine with more memory, or a smaller batch";
  request.keep = 1;
  for (int nodes = 2 * words.nodes; nodes * request.machine.devices <= kMostRanks; nodes *= 2) {
    request.ranks = nodes * request.machine.devices;
    if (parallel::search(request).fastest.empty()) continue;
    remedy = fmt::format("use {} nodes, a machine with more memory, or a smaller batch", nodes);
    break;
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("no layout of {} fits {} ranks of {}: the smallest needs {:.1f} GB a "
                  "rank, {:.1f} GB too much",
                  words.model, words.nodes * request.machine.devices, words.machine,
                  result.least_memory / kGigabyte, (result.least_memory - limit) / kGigabyte),
      remedy);
}

ordered_json json_of(const parallel::Candidate& one, const Machine& machine) {
  const Prediction& p = one.prediction;
  const parallel::StepParts& parts = p.parts;
  return {{"plan", parallel::plan_json(one.plan)},
          {"data", one.run.ranks / (one.plan.mesh.tensor * one.plan.mesh.pipeline)},
          {"batch_of_replica", one.run.batch},
          {"predicted_ms", p.seconds * 1e3},
          {"samples_per_second", p.samples_per_second},
          {"tokens_per_second", p.tokens_per_second},
          {"mfu", p.mfu},
          {"hfu", p.hfu},
          {"memory_bytes", p.memory},
          {"activation_bytes", p.activations},
          {"memory_share", p.memory / machine.memory},
          {"dollars_per_step", p.dollars_per_step},
          {"limit", p.limit},
          {"parts_ms",
           {{"products", parts.products * 1e3},
            {"attention", parts.attention * 1e3},
            {"passes", parts.passes * 1e3},
            {"loss", parts.loss * 1e3},
            {"tensor_exchanges", parts.tensor_exchanges * 1e3},
            {"recomputation", parts.recomputation * 1e3},
            {"launches", parts.launches * 1e3},
            {"bubble", parts.bubble * 1e3},
            {"gradients", parts.gradients * 1e3},
            {"optimizer", parts.optimizer * 1e3},
            {"fixed", parts.fixed * 1e3}}}};
}

// The options of `shoal train` that give a run this layout.
void save_plan(const parallel::Candidate& one, const PlanWords& words) {
  const DType dtype = one.plan.precision.dtype;
  ordered_json options = {{"_plan",
                           {{"model", words.model},
                            {"machine", words.machine},
                            {"ranks", one.run.ranks},
                            {"predicted_ms", one.prediction.seconds * 1e3},
                            {"memory_bytes", one.prediction.memory}}},
                          {"mp_parameters", parallel::plan_json(one.plan)},
                          {"per_device_train_batch_size", one.run.batch},
                          {"gradient_accumulation_steps", one.run.accumulated},
                          {words.has_targets ? "max_source_length" : "block_size", one.run.length},
                          {"gradient_checkpointing", one.plan.activations.checkpoint_group > 0},
                          {"bf16", dtype == DType::bf16},
                          {"fp16", dtype == DType::f16}};
  if (words.optim != PlanWords{}.optim) options["optim"] = words.optim;
  if (words.lora.r > 0) options["lora_r"] = words.lora.r;
  if (!words.lora.target_modules.empty())
    options["lora_target_modules"] = words.lora.target_modules;
  write_file_atomically(words.save, options.dump(2) + "\n");
}

void print_table(const parallel::SearchResult& result, const PlanWords& words) {
  terminal::print("{:>5} {:>4} {:>4} {:>5} {:>6}  {:<20} {:>5} {:>9} {:>11} {:>6} {:>8}{}  {}\n",
                  "data", "pipe", "tens", "zero", "micro", "schedule", "ckpt", "step ms",
                  "tokens/s", "MFU", "GB/rank", words.tokens > 0 ? "     hours   dollars" : "",
                  "largest part beside products");
  for (const parallel::Candidate& one : result.fastest) {
    const ParallelPlan& plan = one.plan;
    const Prediction& p = one.prediction;
    std::string schedule(parallel::name(plan.pipeline.schedule));
    if (plan.mesh.pipeline == 1) schedule = "-";
    if (plan.pipeline.chunks > 1) schedule += fmt::format(" x{}", plan.pipeline.chunks);
    const double steps =
        words.tokens / (static_cast<double>(words.batch) * static_cast<double>(words.length));
    terminal::print(
        "{:>5} {:>4} {:>4} {:>5} {:>6}  {:<20} {:>5} {:>9.1f} {:>11.0f} {:>5.1f}% {:>8.1f}{}  {}\n",
        one.run.ranks / (plan.mesh.tensor * plan.mesh.pipeline), plan.mesh.pipeline,
        plan.mesh.tensor, plan.sharding.level, one.run.batch / plan.pipeline.microbatches, schedule,
        plan.activations.checkpoint_group > 0 ? "yes" : "no", p.seconds * 1e3, p.tokens_per_second,
        100 * p.mfu, p.memory / kGigabyte,
        words.tokens > 0 ? fmt::format(" {:>9.1f} {:>9.0f}", steps * p.seconds / 3600,
                                       steps * p.dollars_per_step)
                         : "",
        p.limit);
  }
}

int plan_layouts(PlanWords words) {
  Machine machine = parallel::find_machine(words.machine);
  if (words.price >= 0) machine.price.dollars_per_hour = words.price;
  const nlohmann::json config = config_of(words);
  words.has_targets = is_encoder_decoder_config(config);
  const auto [shape, positions, limited] = read_model(config, words);
  if (words.length == 0) words.length = positions;
  SHOAL_CHECK(words.length <= positions || !limited, "--length {} exceeds the model's {} positions",
              words.length, positions);
  const int ranks = words.nodes * machine.devices;
  if (words.batch == 0) words.batch = ranks;
  const auto start = Clock::now();
  const parallel::SearchRequest request{.model = shape,
                                        .machine = machine,
                                        .ranks = ranks,
                                        .batch = words.batch,
                                        .length = words.length,
                                        .dtype = parse_dtype(words.dtype),
                                        .memory = words.memory_gb * kGigabyte,
                                        .keep = words.keep};
  const parallel::SearchResult result = parallel::search(request);
  const double limit = words.memory_gb > 0 ? words.memory_gb * kGigabyte : 0.94 * machine.memory;
  if (result.fastest.empty()) refuse(request, words, limit, result);
  // Before anything is written: there may be no such layout.
  const std::string explanation =
      words.explain > 0 ? "\n" + explained(result, machine, words.explain) : "";
  if (!words.save.empty()) save_plan(result.fastest.front(), words);
  const std::string head = fmt::format(
      "{} ({:.3g} parameters) on {} x {} ({} ranks), {} samples of {} positions a step, {}",
      words.model, static_cast<double>(shape.elements()), words.nodes, words.machine, ranks,
      words.batch, words.length, words.dtype);
  if (!words.html.empty())
    write_file_atomically(
        words.html,
        plan_page({.title = fmt::format("{} on {} x {}", words.model, words.nodes, words.machine),
                   .subtitle = head,
                   .request = request,
                   .result = result,
                   .tokens = words.tokens}));
  if (words.json) {
    ordered_json layouts = ordered_json::array();
    for (const parallel::Candidate& one : result.fastest) layouts.push_back(json_of(one, machine));
    print_json({{"machine", words.machine},
                {"ranks", ranks},
                {"parameters", shape.elements()},
                {"batch", words.batch},
                {"length", words.length},
                {"optim", words.optim},
                {"layouts", layouts},
                {"considered", result.layouts},
                {"predicted", result.predicted},
                {"too_large", result.too_large}});
    return 0;
  }
  terminal::print("{}\n", head);
  if (machine.price.dollars_per_hour > 0 && words.price < 0)
    terminal::print(
        "price: {:.2f} dollars an hour and node, an example ({}, {}); --price gives yours\n",
        machine.price.dollars_per_hour, machine.price.region, machine.price.date);
  print_table(result, words);
  terminal::print("{} layouts in {:.1f} s: {} predicted, {} found too large for {:.1f} GB\n",
                  result.layouts, seconds_since(start), result.predicted, result.too_large,
                  limit / kGigabyte);
  terminal::print("{}", explanation);
  if (!words.html.empty()) terminal::print("page: {}\n", words.html);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  CLI::App* const plan = app.add_subcommand(
      "plan", "Predict the time, memory and cost of a training step before it is paid for");
  plan->require_subcommand(0, 1);
  const auto wanted = std::make_shared<PlanWords>();
  plan->add_option("model", wanted->model,
                   "gpt2, llama, bert, albert, ..., a model's directory, or a config.json");
  plan->add_option("--config_overrides", wanted->overrides, "n_layer=48,n_embd=1600");
  plan->add_option("--machine", wanted->machine, "a machine's name, or its .json");
  plan->add_option("--nodes", wanted->nodes, "machines")->check(from_to(1, 100'000));
  plan->add_option("--batch", wanted->batch, "samples of a step, of all ranks; 0: one a rank")
      ->check(at_least(0));
  plan->add_option("--length", wanted->length, "positions of a sample; 0: the model's")
      ->check(at_least(0));
  plan->add_option("--dtype", wanted->dtype, "f32, bf16 or f16");
  plan->add_option("--optim", wanted->optim, "update rule, as of `shoal train`");
  plan->add_option("--lora_r", wanted->lora.r, "train only adapters of this rank; 0: all")
      ->check(at_least(0));
  plan->add_option("--lora_target_modules", wanted->lora.target_modules,
                   "as of `shoal train`, separated by a comma")
      ->delimiter(',');
  plan->add_option("--memory_gb", wanted->memory_gb, "GB of a device that may be used; 0: 94 %")
      ->check(at_least(0));
  plan->add_option("--price", wanted->price, "dollars an hour and node")->check(at_least(0));
  plan->add_option("--tokens", wanted->tokens, "of the whole run: prints its hours and dollars")
      ->check(at_least(0));
  plan->add_option("--top", wanted->keep, "layouts to print")->check(from_to(1, 1000));
  plan->add_flag("--json", wanted->json, "the layouts, as JSON");
  plan->add_option("--save", wanted->save, "write the fastest layout for shoal train --plan");
  plan->add_option(
          "--explain", wanted->explain,
          "number of a layout in the table: its step by part, its memory, what it gives up")
      ->check(at_least(1));
  plan->add_option("--html", wanted->html,
                   "a page to write: parts, memory, a pipeline's timeline, cost over nodes");
  plan->add_option("--fit", wanted->fit,
                   "the output_dir of a run that --machine predicted: writes that machine, as the "
                   "run measured it, to --save");
  rarely(*plan, {"--lora_target_modules", "--config_overrides", "--memory_gb", "--price",
                 "--tokens", "--top", "--fit"});
  plan->final_callback([&action, wanted, plan] {
    if (!plan->get_subcommands().empty()) return;
    action = [wanted] {
      if (!wanted->fit.empty()) return fit_plan_machine(wanted->fit, wanted->machine, wanted->save);
      SHOAL_CHECK(!wanted->model.empty() && !wanted->machine.empty(),
                  "shoal plan needs a model and --machine; machines: {}",
                  fmt::join(parallel::machine_names(), ", "));
      SHOAL_CHECK(wanted->explain == 0 || !wanted->json,
                  "--explain prints text; leave --json out, which has every part already");
      return plan_layouts(*wanted);
    };
  });
  add_plan_calibrate(*plan, action);
  CLI::App* const command =
      plan->add_subcommand("validate", "Compare predictions with measured steps");
  const auto words = std::make_shared<ValidateWords>();
  command->add_option("file", words->file, "CSV of measured steps, in vTrain's form")->required();
  command->add_option("--machine", words->machine, "a machine's name, or its .json")->required();
  command->add_flag("--json", words->json, "each point, as JSON");
  command->callback([&action, words] { action = [words] { return validate(*words); }; });
  add_plan_spot(*plan, action);
}

}  // namespace shoal::app
