// The Trainer's interface to the model on this rank and to the way ranks share the work.
//
// The Trainer decides what to compute and when. An Engine holds weights, gradients and optimizer
// state, and turns batches into losses and updates. Unless stated otherwise, every rank makes the
// same calls in the same order, and calls block.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/layers/functional.h"
#include "shoal/nn/optim/loss_scaler.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/parallel/activation/offload.h"
#include "shoal/parallel/data/reducer.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/step_clock.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal {

// Which samples a rank reads. Ranks of one index read the same samples and form one model.
struct DataShare {
  int count = 1;  // number of indices
  int index = 0;
  // Number of device batches per index (tensor-parallel ranks may bring one each).
  int devices = 1;
  bool counts = true;  // true on one rank per index, which counts the samples in sums over ranks
  // Name of a device: "rank", "replica" (a model on several ranks), "data-parallel rank".
  std::string_view device = "rank";
  std::string text() const {  // "2 replicas"
    return fmt::format("{} {}{}", count * devices, device, count * devices == 1 ? "" : "s");
  }
  std::int64_t samples(std::int64_t per_device) const { return per_device * devices * count; }
};

struct StepWork {
  std::span<const Batch> batches;  // of this index: 1 to gradient_accumulation_steps
  std::int64_t number = 1;         // of the step
  std::int64_t first_ordinal = 0;  // of the step's first sample, in the epoch's list
  double targets = 1;              // of the step on all ranks
  nn::LossOptions loss = {};       // loss_scale: 1 / targets; an engine may multiply its own scale
  // learning_rate belongs to the zero-based update `update`, the highest that this step can be if
  // earlier steps are not known yet. A device then uses the rate of the update it actually reached,
  // from the rates it was given before.
  double learning_rate = 0;
  std::int64_t update = 0;
  // False: on a device the step's results may come later, with collect(), so the host does not wait
  // for the step. With several ranks, the host waits for the sums of LateSteps::kAhead steps
  // before.
  bool wait = true;
};

struct StepDone {
  bool known = true;    // false: the results come with collect()
  double loss_sum = 0;  // over the step's targets on all ranks, not scaled
  // If updates run during the next forward, the norm is NaN; settle() returns it.
  nn::StepOutcome outcome = {};
};

struct LossSums {
  double loss = 0, targets = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  virtual DataShare data_share() const = 0;
  // Lines for the head of a log: how ranks share the work, and how gradients are summed.
  virtual std::vector<std::string> describe_layout() const = 0;
  virtual std::vector<std::string> describe_gradients() const = 0;
  // For sums of host values over all ranks between steps, while updates may still be running.
  virtual collectives::Communicator& beside() = 0;
  // Call when this rank fails: aborts every group of ranks that the engine uses, so that the other
  // ranks end too (Communicator::abort()). Any thread.
  virtual void abort(const std::exception& why) noexcept = 0;

  // --- training --------------------------------------------------------------------------------
  // Call before the first step: allocates gradients and the optimizer. May be called again.
  virtual void prepare_training() = 0;
  virtual StepDone step(const StepWork& work) = 0;
  // Results of the steps that step() returned as unknown, in order, each once; waits for them.
  // Excludes a last step that was waited for. Throws like scaler().
  virtual std::vector<StepDone> collect() { return {}; }
  // Tries the memory of a step with such a batch on this rank alone: runs a forward and a backward
  // that change nothing. Throws out_of_memory; unavailable if ranks share a model.
  virtual void try_step(const Batch& batch);
  // The f16 loss scale after the last step; 1 for other dtypes. Waits for the device, so do not
  // call it in every step. Throws invalid_argument if gradients have overflowed for too long.
  virtual const nn::LossScaler& scaler() = 0;
  virtual void restore_scaler(const nn::LossScalerState& state) = 0;
  // Ends updates that run during a forward. Call it before anything except a step reads weights or
  // optimizer state. Returns the gradients' norm if there were such updates.
  virtual std::optional<double> settle() { return std::nullopt; }
  // Describes how steps are captured; empty: no step was captured.
  virtual std::string describe_capture() { return {}; }
  // Statistics of gradient reduction since prepare_training(); nullopt if they are not measured.
  virtual std::optional<parallel::ReducerStatistics> reduced() const { return std::nullopt; }
  // Statistics of offloaded activations on this rank; nullopt without offloading. Graph replays are
  // not counted.
  virtual std::optional<parallel::OffloadStatistics> offloaded() const { return std::nullopt; }
  virtual bool has_pipeline() const { return false; }  // with more than one stage
  // Time of a step by phase. Phases are meaningless for a device that runs asynchronously to its
  // host.
  StepClock& clock() { return clock_; }
  virtual bool knows_phases() const = 0;

  // --- evaluation ------------------------------------------------------------------------------
  // Number of batches per index that are evaluated at a time. If evaluates_together(), forwards
  // communicate, so every rank must call evaluate() equally often, with fewer or no batches when it
  // has no more.
  virtual int batches_at_a_time() const { return 1; }
  virtual bool evaluates_together() const { return false; }
  // The head's scores for rows [first_row, first_row + n) of batches[batch], f32 [n, ..] in host
  // memory, including padding positions.
  using Scores =
      std::function<void(std::size_t batch, std::int64_t first_row, const Tensor& scores)>;
  // Returns this rank's contribution to the sums over all ranks. `scores`, unless empty, gets each
  // row on one of the ranks that read it. Either every rank passes `scores` or none does.
  virtual LossSums evaluate(std::span<const Batch> batches, const Scores& scores) = 0;

  // --- checkpoints -----------------------------------------------------------------------------
  // True: every rank writes a part of a checkpoint; false: rank 0 writes all of it.
  virtual bool writes_parts() const = 0;
  // Copies this rank's data, so that the next step may begin. The returned function writes the copy
  // into a directory of the checkpoint and may run on any thread. Empty if this rank writes
  // nothing.
  using Write = std::function<void(const std::string& directory)>;
  virtual Write snapshot(bool with_optimizer) = 0;
  // Loads weights from a Hugging Face directory or a checkpoint of any layout.
  virtual void load_weights(const std::string& directory) = 0;
  // Loads optimizer state, which has seen `updates` updates. Throws not_found if the checkpoint has
  // none.
  virtual void load_optimizer(const std::string& directory, std::int64_t updates) = 0;
  // Writes the model in Hugging Face's format into an existing directory; rank 0 writes.
  virtual void save_model(const std::string& directory) = 0;

 protected:
  Engine() = default;
  StepClock clock_;
};

// Constructor arguments of both engines.
struct EngineParts {
  TrainingArguments arguments;  // resolved
  TrainerParts trainer;
  std::function<void(const std::string&)> say;  // tells the user; rank 0's lines are printed
  // The checkpoint that training will resume from, on rank 0; empty: none, or another rank.
  std::string continues = {};
};
// `states`: memory for make_adamw()'s states and those of the other rules; null: the parameters'
// memory.
std::unique_ptr<nn::Optimizer> make_optimizer(const EngineParts& parts,
                                              std::vector<nn::Segment> segments,
                                              MemoryResource* states = nullptr);
parallel::ReducerOptions reducer_options(const EngineParts& parts);
// For nn::StepCaptureOptions::exchange, through the ranks' hosts. Blocks; `all` must outlive the
// result.
std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange_over(
    collectives::Communicator& all);
DType compute_dtype(const TrainingArguments& arguments);
// For stochastic rounding; nullopt: there are masters, or parameters are f32.
std::optional<std::uint64_t> rounding_seed(const TrainingArguments& arguments);
// "native"; between devices also the transport, as in "native over CUDA IPC".
std::string carried_by(const collectives::Communicator& communicator);
// Reports missing and unused tensors. Refuses a new head that is not trained.
void note_loaded(const EngineParts& parts, const std::string& directory,
                 const nn::LoadReport& report);
// Logits in the form of Engine::Scores; waits for them.
Tensor scores_on_host(const nn::Context& context, const Tensor& logits, MemoryResource& host);
// For f16 unless mp_parameters set it: torch.amp.GradScaler's defaults, unless other values are
// given.
nn::LossScalerOptions loss_scaling(const TrainingArguments& arguments);

// Text before the reason in the head of a log, and a reason of both engines.
inline constexpr std::string_view kCallByCall =
    "steps run call by call, though step_capture is on: ";
inline constexpr std::string_view kOffloadedBetweenGraphs =
    "what is offloaded is on its way where one graph ends and the next begins (over native)";

// The data-parallel engine, or the mesh engine if mp_parameters are given. Creates the weights.
std::unique_ptr<Engine> make_engine(const EngineParts& parts);

}  // namespace shoal
