// Trains one model on random tokens and reports tokens per second and memory by tag. With
// --profile, also reports each operation's time on the device (README.md).
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "step_model.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/autograd/device_values.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/nn/capture/step_capture.h"
#include "shoal/nn/optim/master_weights.h"
#include "shoal/parallel/activation/offload.h"
#include "shoal/parallel/apply/layout_memory.h"
#include "shoal/parallel/pipeline/generate.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/parallel/pipeline/partition.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::bench {
namespace {

using nlohmann::ordered_json;

struct Arguments : StepModelOptions {
  std::string dtype = "bf16", device = "cuda", json, algorithm_cache, save;
  std::int64_t accumulation = 1;
  int steps = 20, warmup = 5, threads = 0;
  double memory_cap = 0;  // GB
  std::string capture = "off";
  bool checkpoint_layers = false, offload = false, predict = false, check = false, profile = false;
};

// Rejects allocations that would exceed `limit` bytes from upstream.
class LimitedMemory final : public MemoryResource {
 public:
  LimitedMemory(MemoryResource& upstream, std::size_t limit) : upstream_(upstream), limit_(limit) {}
  void* allocate(std::size_t bytes, MemoryTag tag, Stream stream) override {
    if (limit_ > 0 && held_ + bytes > limit_)
      throw_error(ErrorCode::out_of_memory,
                  "{} bytes of {} beside {} held would pass --memory-cap ({} bytes)", bytes,
                  to_string(tag), held_, limit_);
    void* const pointer = upstream_.allocate(bytes, tag, stream);
    peak_ = std::max(peak_, held_ += bytes);
    return pointer;
  }
  void deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                  Stream stream) noexcept override {
    upstream_.deallocate(pointer, bytes, tag, stream);
    held_ -= bytes;
  }
  Device device() const override { return upstream_.device(); }
  std::string name() const override { return upstream_.name() + ", limited"; }
  std::size_t peak() const { return peak_; }

 private:
  MemoryResource& upstream_;
  std::size_t limit_, held_ = 0, peak_ = 0;
};

// Times each operation on the stream by events around it. Also sums the bytes of the operation's
// tensors. This is its memory traffic if it accesses each tensor once and no other memory.
class EventDispatcher final : public nn::Dispatcher {
 public:
  explicit EventDispatcher(Stream stream) : stream_(stream) {}
  bool on = false;
  void run(const nn::Operation& operation, const std::function<void()>& body) override {
    if (!on) return body();
    Entry entry{std::string(operation.name), Event(stream_.device, EventKind::timing),
                Event(stream_.device, EventKind::timing)};
    for (const auto& tensors : {operation.inputs, operation.outputs})
      for (const Tensor& tensor : tensors)
        if (tensor.defined()) entry.bytes += static_cast<double>(tensor.bytes());
    entry.start.record(stream_);
    body();
    entry.stop.record(stream_);
    entries_.push_back(std::move(entry));
  }
  // Milliseconds per step, slowest first; resets the entries.
  ordered_json take(int steps) {
    struct Sum {
      double ms = 0, bytes = 0;
      int calls = 0;
    };
    std::map<std::string, Sum> sums;
    for (const Entry& entry : entries_) {
      entry.stop.synchronize();
      Sum& sum = sums[entry.name];
      sum.ms += entry.stop.elapsed_ms_since(entry.start) / steps;
      sum.bytes += entry.bytes / steps;
      ++sum.calls;
    }
    entries_.clear();
    std::vector<std::pair<double, std::string>> order;
    for (const auto& [name, sum] : sums) order.emplace_back(sum.ms, name);
    std::sort(order.rbegin(), order.rend());
    ordered_json out;
    for (const auto& [ms, name] : order)
      out[name] = {
          {"ms", ms}, {"calls", sums[name].calls / steps}, {"megabytes", sums[name].bytes * 1e-6}};
    return out;
  }

 private:
  struct Entry {
    std::string name;
    Event start, stop;
    double bytes = 0;
  };
  Stream stream_;
  std::vector<Entry> entries_;
};

class Training {
 public:
  Training(StepModel model, const Arguments& arguments, kernels::Kernels& kernels,
           MemoryResource& memory, nn::StepCapture* capture)
      : capture_(capture),
        dispatcher_(kernels.stream()),
        context_(kernels, memory, dispatcher_),
        state_(kernels, memory),
        model_(std::move(model)),
        accumulation_(arguments.accumulation) {
    context_.random.state = state_.pointer();
    if (capture_ != nullptr && !kernels.device().is_cpu() &&
        nn::wants_weight_branch(arguments.batch * arguments.length))
      branch_.emplace(kernels.device());
    if (arguments.checkpoint_layers) model_.checkpoint_layers();
    const auto parameters = model_.chain->parameters();
    masters_.emplace(
        parameters, parse_dtype(arguments.dtype), kernels, memory,
        [this](nn::Parameter& parameter) { nn::materialize(context_, {&parameter}, DType::f32); });
    nn::allocate_gradients(context_, parameters);
    optimizer_ = std::make_unique<nn::Optimizer>(kernels, memory, masters_->segments(),
                                                 nn::adamw({.weight_decay = 0.1}));
    input_ = model_.input;
    const auto upload = [&](Tensor& tensor) {
      if (tensor.defined())
        tensor = context_.upload(tensor.const_view().data, tensor.shape(), tensor.dtype());
    };
    for (Tensor* tensor : input_.tensors()) upload(*tensor);
    upload(input_.target_rows);
    input_.loss.loss_scale = 1 / static_cast<float>(targets());
    losses_ = context_.empty({accumulation_}, DType::f32, MemoryTag::data);
    if (arguments.offload)
      offloader_.emplace(context_.memory(), parallel::OffloadOptions{.min_bytes = 1},
                         context_.stream);
  }

  // Saves the initial weights and the batch, so that another program can start from them.
  void save(const std::string& directory) const {
    std::vector<std::byte> bytes;
    const auto masters = masters_->masters();
    model_.save(directory, [&](const nn::Parameter& parameter) {
      for (const nn::NamedTensor& master : masters) {
        if (master.name != parameter.name()) continue;
        bytes.resize(master.tensor.bytes());
        nn::copy_to_host(bytes.data(), master.tensor, context_.stream);
        return ConstView{bytes.data(), master.tensor.shape(), DType::f32};
      }
      throw_error(ErrorCode::internal, "{} has no master", parameter.name());
    });
    std::vector<NamedView> batch{{"input_ids", model_.input.ids.const_view()},
                                 {"labels", model_.input.targets.const_view()}};
    if (model_.input.token_types.defined())
      batch.push_back({"token_type_ids", model_.input.token_types.const_view()});
    write_safetensors(directory + "/batch.safetensors", batch);
  }

  Stream stream() const { return context_.stream; }
  EventDispatcher& dispatcher() { return dispatcher_; }
  const StepModel& model() const { return model_; }
  // Per step.
  std::int64_t tokens() const { return input_.ids.count() * accumulation_; }
  std::int64_t targets() const { return model_.targets * accumulation_; }

  // Queues a step without waiting.
  void step() {
    optimizer_->set_step(*state_, options_);
    context_.branch = branch_ && !dispatcher_.on ? &*branch_ : nullptr;
    if (capture_ != nullptr && !dispatcher_.on)
      capture_->run("step", [this] { work(); });
    else
      work();
  }
  // Loss per target of the last step; waits for it.
  double loss() const {
    std::vector<float> sums(static_cast<std::size_t>(accumulation_));
    nn::copy_to_host(sums.data(), losses_, context_.stream);
    double total = 0;
    for (const float sum : sums) total += static_cast<double>(sum);
    return total / static_cast<double>(targets());
  }
  nn::StepOutcome outcome() const { return optimizer_->outcome(); }
  const std::optional<parallel::Offloader>& offloader() const { return offloader_; }

 private:
  const nn::StepOptions options_{.learning_rate = 3e-4, .max_gradient_norm = 1};

  // The part of a step that may be captured.
  void work() {
    for (nn::Parameter* parameter : model_.chain->parameters()) parameter->clear_gradient();
    for (std::int64_t i = 0; i < accumulation_; ++i) {
      std::shared_ptr<parallel::Offloader::Batch> offloaded;
      nn::Tape tape;
      if (offloader_) {
        offloaded = offloader_->begin_batch();
        tape.set_saved_tensor_hooks(offloader_->hooks(offloaded));
      }
      context_.tape = &tape;
      const nn::LossOutput out = model_.loss(context_, input_);
      context_.tape = nullptr;
      context_.kernels().elementwise().cast(out.loss_sum, losses_.narrowed(0, i, 1).view(),
                                            context_.stream);
      if (offloaded) offloader_->expect(*offloaded);
      tape.backward(context_, out.loss);
    }
    context_.run("optimizer", {}, {}, [&] { optimizer_->queue_step(*state_, options_); });
  }

  nn::StepCapture* capture_;  // null: eager steps
  EventDispatcher dispatcher_;
  nn::Context context_;
  nn::StepStateMemory state_;
  StepModel model_;
  std::int64_t accumulation_;
  std::optional<nn::MasterWeights> masters_;
  std::unique_ptr<nn::Optimizer> optimizer_;
  nn::ChainInput input_;  // on the kernels' device
  Tensor losses_;
  std::optional<parallel::Offloader> offloader_;
  std::optional<nn::WeightBranch> branch_;  // for captured steps
};

// Peak of a step's activations in bytes, computed by the formula of docs/internals/layouts.md from
// measured costs of each kind of unit.
double predicted_activations(const Arguments& a, kernels::Kernels& kernels,
                             CountingMemory& memory) {
  nn::DirectDispatcher dispatcher;
  nn::Context context(kernels, memory, dispatcher);
  const nn::StepStateMemory state(kernels, memory);
  context.random.state = state.pointer();
  const auto host = make_host_memory();
  StepModel model = make_step_model(a, *host);
  for (Tensor* tensor : model.input.tensors())
    if (tensor->defined())
      *tensor = context.upload(tensor->const_view().data, tensor->shape(), tensor->dtype());
  const DType dtype = parse_dtype(a.dtype);
  const auto store = make_hash_store();
  const auto alone = collectives::make_communicator({}, *store);
  const auto units = parallel::measure_units(context, *model.chain, {.input = model.input}, *alone,
                                             {.dtype = dtype, .repetitions = 1});
  const std::vector<parallel::UnitRange> stages{{0, static_cast<int>(units.size())}};
  const double bytes = parallel::peak_activations(
      parallel::make_schedule({.ranks = 1, .microbatches = 1}), stages, 0,
      {.units = units,
       .stream_bytes = static_cast<double>(a.batch * a.length * model.channels) *
                       static_cast<double>(size_of(dtype)),
       .checkpoint_group = a.checkpoint_layers ? 1 : 0,
       .offloads = a.offload,
       .offload = {.min_bytes = 1}});
  device_backend(context.stream.device.type).synchronize(context.stream);
  return bytes;
}

ordered_json memory_of(const CountingMemory& memory, const LimitedMemory& limited) {
  ordered_json out;
  for (std::size_t i = 0; i < kMemoryTags; ++i) {
    const auto tag = static_cast<MemoryTag>(i);
    if (const MemoryUsage usage = memory.usage(tag); usage.peak > 0)
      out[std::string(to_string(tag))] = {{"bytes", usage.current}, {"peak", usage.peak}};
  }
  out["all"] = {{"bytes", memory.total().current}, {"peak", memory.total().peak}};
  out["held_peak"] = limited.peak();
  return out;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct Timing {
  std::vector<double> ms;                     // by step, on the stream
  double wall_seconds = 0, host_seconds = 0;  // total; until all steps were queued
};

Timing measure(Training& training, int steps) {
  const Stream stream = training.stream();
  DeviceBackend& backend = device_backend(stream.device.type);
  std::vector<Event> marks;
  for (int i = 0; i <= steps; ++i) marks.emplace_back(stream.device, EventKind::timing);
  backend.synchronize(stream);
  const auto began = Clock::now();
  Timing timing;
  for (int i = 0; i < steps; ++i) {
    marks[static_cast<std::size_t>(i)].record(stream);
    training.step();
  }
  marks.back().record(stream);
  timing.host_seconds = seconds_since(began);
  backend.synchronize(stream);
  timing.wall_seconds = seconds_since(began);
  for (std::size_t i = 1; i < marks.size(); ++i)
    timing.ms.push_back(marks[i].elapsed_ms_since(marks[i - 1]));
  return timing;
}

void print(const ordered_json& report) {
  const double gib = 0x1p30;
  std::printf("%s on %s\n", report["model"].get<std::string>().c_str(),
              report["kernels"].get<std::string>().c_str());
  std::printf(
      "batch %ld x %ld, %s: %.0f tokens/s, %.1f sequences/s, %.3f ms a step (median of %d), "
      "%.1f TFLOP/s, host %.3f ms a step\n",
      report["batch"].get<long>(), report["length"].get<long>(),
      report["dtype"].get<std::string>().c_str(), report["tokens_per_second"].get<double>(),
      report["sequences_per_second"].get<double>(), report["step_ms"].get<double>(),
      report["steps"].get<int>(), report["tflops"].get<double>(), report["host_ms"].get<double>());
  std::printf("loss %.4f -> %.4f, gradient norm %.3f\n", report["first_loss"].get<double>(),
              report["loss"].get<double>(), report["gradient_norm"].get<double>());
  for (const auto& [name, usage] : report["memory"].items())
    if (usage.is_object())
      std::printf("  %-14s %8.3f GiB, peak %8.3f\n", name.c_str(),
                  usage["bytes"].get<double>() / gib, usage["peak"].get<double>() / gib);
  std::printf("  held from the device at most %.3f GiB\n",
              report["memory"]["held_peak"].get<double>() / gib);
  if (report.contains("profile"))
    for (const auto& [name, row] : report["profile"].items())
      std::printf("  %-32s %9.3f ms in %d calls, %.1f MB\n", name.c_str(), row["ms"].get<double>(),
                  row["calls"].get<int>(), row["megabytes"].get<double>());
}

int run(const Arguments& a) {
  const Device device = a.device == "cpu" ? Device::cpu() : Device::cuda(0);
  const auto raw = make_device_memory(device);
  LimitedMemory limited(*raw, static_cast<std::size_t>(a.memory_cap * 1e9));
  PoolMemory pool(limited);
  nn::PlannedMemory planned(pool, limited);
  CountingMemory memory(planned);
  const auto kernels =
      device.is_cpu()
          ? kernels::make_cpu_kernels({.threads = a.threads, .memory = &memory})
          : kernels::make_cuda_kernels(
                {.device = device, .memory = &memory, .cache_directory = a.algorithm_cache});
  const double predicted = a.predict ? predicted_activations(a, *kernels, memory) : 0;
  pool.trim();
  memory.reset_peaks();
  std::optional<nn::StepCapture> capture;
  if (a.capture == "on")
    capture.emplace(*kernels, planned,
                    nn::StepCaptureOptions{
                        .warmup = std::clamp(a.warmup - 1, 2, 3),
                        .say = [](const std::string& line) { std::printf("%s\n", line.c_str()); }});
  const auto host = make_host_memory();
  Training training(make_step_model(a, *host), a, *kernels, memory, capture ? &*capture : nullptr);
  if (!a.save.empty()) training.save(a.save);
  training.step();
  const double first_loss = training.loss();
  for (int i = 1; i < a.warmup; ++i) training.step();
  const Timing timing = measure(training, a.steps);
  const double ms = median(timing.ms), loss = training.loss();
  const double tokens_per_second = static_cast<double>(training.tokens()) / ms * 1e3;
  const StepModel& model = training.model();
  std::int64_t parameters = 0;
  for (const nn::Parameter* parameter : model.chain->parameters())
    parameters += parameter->shape().count();

  ordered_json report{{"model", a.model},
                      {"layers", model.layers},
                      {"channels", model.channels},
                      {"parameters", parameters},
                      {"kernels", kernels->describe()},
                      {"dtype", a.dtype},
                      {"batch", a.batch},
                      {"length", a.length},
                      {"accumulation", a.accumulation},
                      {"dropout", a.dropout},
                      {"checkpoint_layers", a.checkpoint_layers},
                      {"offloads", a.offload},
                      {"steps", a.steps},
                      {"step_ms", ms},
                      {"wall_ms", timing.wall_seconds * 1e3 / a.steps},
                      {"host_ms", timing.host_seconds * 1e3 / a.steps},
                      {"tokens_per_second", tokens_per_second},
                      {"sequences_per_second", tokens_per_second / static_cast<double>(a.length)},
                      {"targets", training.targets()},
                      {"tflops", model.flops * static_cast<double>(a.accumulation) / ms * 1e-9},
                      {"first_loss", first_loss},
                      {"loss", loss},
                      {"gradient_norm", training.outcome().gradient_norm},
                      {"memory", memory_of(memory, limited)}};
  if (capture) {
    const nn::StepCapture::Statistics s = capture->statistics();
    report["capture"] = {{"replayed", s.replayed},       {"served", s.served},
                         {"arena_bytes", s.arena_bytes}, {"live_bytes", s.live_bytes},
                         {"pool_bytes", s.pool_bytes},   {"allocations", s.allocations},
                         {"before_ms", s.before_ms},     {"after_ms", s.after_ms}};
    if (s.replayed + s.served == 0) throw_error(ErrorCode::internal, "no step was captured");
  }
  if (const auto& offloader = training.offloader()) {
    const parallel::OffloadStatistics s = offloader->statistics();
    report["offload"] = {{"tensors", s.tensors}, {"held_bytes", s.peak_bytes}};
  }
  if (a.predict) report["predicted_activations"] = predicted;
  if (a.profile) {
    constexpr int kProfiled = 3;
    training.dispatcher().on = true;
    for (int i = 0; i < kProfiled; ++i) training.step();
    report["profile"] = training.dispatcher().take(kProfiled);
    training.dispatcher().on = false;
  }
  print(report);
  if (!a.json.empty()) write_file_atomically(a.json, report.dump(2) + "\n");
  if (a.check && !(loss < first_loss)) {
    std::fprintf(stderr, "gpt2_gpu_step: the loss did not fall: %.4f, then %.4f\n", first_loss,
                 loss);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::restart_with_short_spins(argv);  // as `shoal train` does
  shoal::bench::Arguments a;
  CLI::App app(
      "Training steps of GPT-2, BERT (masked tokens) or a Llama on random tokens: tokens a second "
      "and memory");
  app.add_option("--model", a.model)
      ->capture_default_str()
      ->check(CLI::IsMember(shoal::bench::step_models()));
  app.add_option("--layers", a.layers, "instead of the model's");
  app.add_option("--heads", a.heads, "instead of the model's");
  app.add_option("--channels", a.channels, "instead of the model's");
  app.add_option("--vocabulary", a.vocabulary, "instead of the model's");
  app.add_option("--batch", a.batch, "sequences a microbatch")->capture_default_str();
  app.add_option("--length", a.length, "tokens a sequence")->capture_default_str();
  app.add_option("--accumulation", a.accumulation, "microbatches a step")->capture_default_str();
  app.add_option("--steps", a.steps, "measured")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--warmup", a.warmup, "steps before, at least one")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--dtype", a.dtype, "f32, bf16, f16")
      ->capture_default_str()
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  app.add_option("--dropout", a.dropout)->capture_default_str();
  app.add_option("--capture", a.capture, "step capture: a graph, or on the CPU a memory plan")
      ->capture_default_str()
      ->check(CLI::IsMember({"on", "off"}));
  CLI::Option* const checkpoints = app.add_flag("--checkpoint-layers", a.checkpoint_layers,
                                                "keep each block's input only and run it again");
  app.add_flag("--offload", a.offload,
               "what --checkpoint-layers keeps waits in pinned host memory (on the CPU in a file)")
      ->needs(checkpoints);
  app.add_flag("--predict", a.predict, "also the formula's peak of activations (--accumulation 1)");
  app.add_option("--memory-cap", a.memory_cap, "GB (1e9 bytes) that may be taken; 0: no cap");
  app.add_option("--device", a.device)
      ->capture_default_str()
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--threads", a.threads, "of the CPU's kernels; 0: available cores");
  app.add_option("--algorithm-cache", a.algorithm_cache,
                 "directory in which the GPU's choices of algorithms are kept");
  app.add_option("--json", a.json, "a file for the report");
  app.add_option("--save", a.save,
                 "a directory that exists: the weights that training starts from, and its batch");
  app.add_flag("--check", a.check, "fail unless the loss fell");
  app.add_flag("--profile", a.profile, "afterwards, time each operation on the device");
  CLI11_PARSE(app, argc, argv);
  try {
    return shoal::bench::run(a);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt2_gpu_step: %s\n", error.what());
    return 1;
  }
}
