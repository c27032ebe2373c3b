#include "shoal/train/trainer/captured_steps.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "shoal/collectives/watch.h"
#include "shoal/nn/autograd/weight_branch.h"
#include "shoal/runtime/base/error.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/microbatches.h"

namespace shoal {
namespace {

// Limit of batch shapes whose inputs and graphs are kept. SQuAD samples of up to 384 tokens, padded
// to multiples of 8, have about 25 shapes, each of which recurs.
constexpr std::size_t kMostShapes = 32;

// For nn::StepCaptureOptions::exchange; communicates in host memory.
std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange_over(
    collectives::Communicator& all) {
  return [&all](std::span<const std::uint64_t> own) {
    std::vector<std::uint64_t> gathered(own.size() * static_cast<std::size_t>(all.size()));
    all.host().all_gather(own.data(), gathered.data(), std::ssize(own), DType::i64)->wait();
    return gathered;
  };
}

}  // namespace

bool wants_capture(const EngineParts& parts) {
  const StepCaptureMode mode = parts.arguments.step_capture;
  if (mode == StepCaptureMode::off || parts.trainer.planned_memory == nullptr) return false;
  // `automatic` captures only where that is known to be faster.
  return mode == StepCaptureMode::on ||
         (!parts.arguments.model_parallel && !parts.trainer.kernels->device().is_cpu() &&
          parts.trainer.communicator->size() == 1);
}

// True if the host reads targets: the head computes only rows with a target, or tensor-parallel
// ranks divide the samples of an unsplit head. Targets then stay in host memory, and the step
// cannot be captured.
bool CapturedSteps::reads_on_host() const {
  const nn::Chain* const chain = parts_.trainer.task->chain();
  const auto is_part = [](const nn::Parameter* parameter) { return parameter->is_part(); };
  return on_device() && plan_.mesh.tensor > 1 &&
         (chain->reads_target_rows() ||
          std::ranges::none_of(chain->unit_parameters(chain->units() - 1), is_part));
}

std::string CapturedSteps::why_not() const {
  if (reads_on_host())
    return "with tensor_parallel_degree > 1 the host reads the targets of this model's head";
  if (replayed_ != nullptr && plan_.activations.offload && !replayed_->can_capture())
    return "what is offloaded is on its way where one graph ends and the next begins (over native)";
  return {};
}

void CapturedSteps::begin() {
  if (!wants_capture(parts_) || !why_not().empty()) return;
  // Only for one rank. With several, the all-reduce of a bucket begins when its last gradient is
  // queued, regardless of that gradient's stream.
  if (on_device() && mesh_.world().size() == 1 && !parts_.arguments.model_parallel) {
    (void)nn::wants_weight_branch(0);  // reports a wrong value of the setting now
    branch_ = std::make_unique<nn::WeightBranch>(context_.stream.device);
  }
  begin_capture();
}

void CapturedSteps::begin_capture() {
  collectives::Communicator& all = mesh_.world();
  // Graphs with and without branch_ for each shape.
  nn::StepCaptureOptions options{.most_kept = static_cast<int>(2 * kMostShapes),
                                 .say = [this](const std::string& line) { parts_.say(line); },
                                 .operations = &recorder_};
  if (replayed_ != nullptr) options.beside = replayed_->memories();
  options.before_waiting = [this, &all] { collectives::watch(all, context_.stream); };
  if (all.size() > 1 && all.can_capture()) options.exchange = exchange_over(all);
  ++captures_made_;
  in_line_.clear();
  capture_.reset();  // gives the arenas back before the next capture
  capture_ = std::make_unique<nn::StepCapture>(context_.kernels(), *parts_.trainer.planned_memory,
                                               std::move(options));
}

void CapturedSteps::upload(std::span<parallel::Microbatch> microbatches, StepResults* results) {
  if (!on_device()) return;
  const bool keeps = reads_on_host();
  std::vector<Tensor*> all;
  for (parallel::Microbatch& microbatch : microbatches) {
    nn::ChainInput& input = microbatch.input;
    if (keeps) microbatch.host_targets = input.targets;
    for (Tensor* tensor : input.tensors())
      if (tensor->defined()) all.push_back(tensor);
    if (input.target_rows.defined()) all.push_back(&input.target_rows);
  }
  std::vector<Tensor> host;
  std::string shapes;
  for (const Tensor* tensor : all) {
    host.push_back(*tensor);
    shapes += fmt::format("{} {} ", to_string(tensor->dtype()), to_string(tensor->shape()));
  }
  if (!staged_.contains(shapes) && staged_.size() >= kMostShapes) {
    if (results != nullptr) results->wait_for_ranks();
    device_backend(context_.stream.device.type).synchronize(context_.stream);
    staged_.clear();
    if (capture_) begin_capture();  // the old graphs read inputs that no longer exist
  }
  auto& staged =
      staged_
          .try_emplace(shapes, context_.kernels(), context_.memory(), parts_.trainer.pinned_memory)
          .first->second;
  const std::vector<Tensor>& device = staged.fill(host);
  for (std::size_t i = 0; i < all.size(); ++i) *all[i] = device[i];
}

// Identifies all values that are constant in a graph. Includes captures_made_, because a new
// StepCapture has seen no kinds yet: ranks agree on kinds, so all ranks must capture again.
std::string CapturedSteps::kind_of(std::span<const parallel::Microbatch> microbatches) const {
  std::string kind =
      fmt::format("{} {}", captures_made_, microbatches.front().input.loss.label_smoothing);
  for (const parallel::Microbatch& microbatch : microbatches) {
    nn::ChainInput input = microbatch.input;
    for (const Tensor* tensor : input.tensors())
      kind += tensor->defined()
                  ? fmt::format(" {} {}", to_string(tensor->dtype()), to_string(tensor->shape()))
                  : std::string(" none");
    kind += fmt::format(" {} {}", input.target_rows.defined() ? input.target_rows.count() : -1,
                        microbatch.sample_first);
    // On the host, a split head skips rows without a target.
    if (!on_device() && plan_.mesh.tensor > 1 && input.targets.dtype() == DType::i32) {
      const auto* const targets = input.targets.const_data<std::int32_t>();
      kind += fmt::format(" {}", std::count_if(targets, targets + input.targets.count(),
                                               [](std::int32_t one) { return one >= 0; }));
    }
  }
  return kind;
}

void CapturedSteps::abandon(const Step& step) {
  if (std::exchange(open_, false)) step.abandon();
}

void CapturedSteps::run(std::span<const parallel::Microbatch> microbatches, const Step& step) {
  const auto run = [&] {
    abandon(step);
    open_ = true;
    updates_ = false;
    step.run();
    open_ = false;
  };
  if (!capture_) return run();
  const TraceSpan span(on_device() ? parts_.trainer.tracer : nullptr, "step", "captured step");
  const Tensor& ids = microbatches.front().input.ids;
  last_batch_ = {ids.shape()[0], ids.count()};
  last_kind_ = kind_of(microbatches);
  ran_beside_ = run_with_branch(last_kind_, microbatches, step, run);
  if (ran_beside_) return;
  capture_->run(last_kind_, run);
  if (!branch_ || capture_->planned().empty() || in_line_.contains(last_kind_)) return;
  if (in_line_.size() >= kMostShapes) in_line_.clear();
  in_line_.emplace(last_kind_, capture_->planned().front());
}

// Captures and runs a step with its weight gradients on branch_'s stream. This needs an earlier
// step of this kind on one stream, whose memory is in in_line_. False: nothing was queued, and the
// caller must capture the step on one stream. A step with branch_ needs more memory. If it does not
// fit, branch_ is destroyed and the result is false.
bool CapturedSteps::run_with_branch(const std::string& kind,
                                    std::span<const parallel::Microbatch> microbatches,
                                    const Step& step, const std::function<void()>& run) {
  std::int64_t most = 0;
  for (const parallel::Microbatch& microbatch : microbatches)
    most = std::max(most, microbatch.input.ids.count());
  if (!branch_ || !in_line_.contains(kind) || !nn::wants_weight_branch(most)) return false;
  context_.branch = branch_.get();
  std::string problem;
  bool ran = true;
  try {
    capture_->run(kind + " beside", run, true);
    if (capture_->planned().empty()) problem = "such steps cannot be captured";
  } catch (const Error& error) {
    context_.branch = nullptr;
    if (error.code() != ErrorCode::out_of_memory || updates_) throw;
    problem = error.message();
    ran = false;
    abandon(step);  // frees its memory for the step on one stream
  }
  context_.branch = nullptr;
  if (problem.empty()) return true;
  parts_.say("step capture: no gradients of weights beside backward, they run in line: " + problem);
  branch_.reset();
  return ran;
}

// The bytes that the text gives for a step include the arenas of the mesh's groups. The first steps
// of a kind run call by call, so the text also gives the largest batch that fits this way.
std::string CapturedSteps::describe() {
  if (!capture_) return {};
  std::string text = capture_->describe();
  const auto in_line = in_line_.find(last_kind_);
  const std::span<const nn::MemorySequence> planned =
      in_line != in_line_.end() ? std::span(&in_line->second, 1) : capture_->planned();
  if (ran_beside_ && !text.empty()) text += "; gradients of weights beside backward";
  std::optional<std::int64_t> room = parts_.trainer.planned_memory->available_bytes();
  if (text.empty() || planned.empty() || !room) return text;
  if (replayed_ != nullptr)
    for (const nn::PlannedMemory* memory : replayed_->memories()) *room += memory->arena_bytes();
  const nn::LargestBatch largest =
      nn::largest_batch(planned, last_batch_, *room, context_.kernels().device());
  const bool whole = !parts_.arguments.model_parallel;
  return text + fmt::format(
                    "; of {} for a step{}, {} of up to about {} {} fit captured, {} call by call, "
                    "as their first steps run",
                    format_bytes(*room), whole ? "" : " of this rank",
                    whole ? "batches" : "microbatches", largest.planned, whole ? "samples" : "rows",
                    largest.call_by_call);
}

}  // namespace shoal
