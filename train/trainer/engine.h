// What computes: the Trainer's one view of the model on this rank, and of how ranks share the work.
//
// The Trainer decides what is computed and when; an Engine holds weights, gradients and optimizer
// state, and turns batches into losses and updates. Every rank makes the same calls in the same
// order, but where said; calls block.
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

// Whose samples a rank has. Ranks of one index read the same samples: together they are a model.
struct DataShare {
  int count = 1;  // of indices
  int index = 0;
  // A batch of an index is so many devices' (tensor-parallel ranks may bring one each).
  int devices = 1;
  bool counts = true;  // one rank of each index: it speaks for the samples in sums over ranks
  // What a device is: "rank", "replica" (of the model, on several ranks), "data-parallel rank".
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
  nn::LossOptions loss = {};       // loss_scale: 1 / targets; an engine that scales adds its own
  // learning_rate is that of update number `update`, from 0: the highest that the step may be,
  // where steps before it are not known yet. A device then takes its own update's, of those given
  // before.
  double learning_rate = 0;
  std::int64_t update = 0;
  // False: where the step runs on a device, its numbers may come with collect(), so that nobody
  // waits for it; of several ranks, for what they summed LateSteps::kAhead steps before.
  bool wait = true;
};

struct StepDone {
  bool known = true;    // false: the rest comes with collect()
  double loss_sum = 0;  // over the step's targets on all ranks, not scaled
  // The norm is NaN where updates run behind the next forward: then settle() knows it.
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
  // How the ranks share the work, and how gradients are summed: lines for the head of a log.
  virtual std::vector<std::string> describe_layout() const = 0;
  virtual std::vector<std::string> describe_gradients() const = 0;
  // For sums of host values over all ranks between steps, while updates may be under way.
  virtual collectives::Communicator& beside() = 0;
  // This rank fails: gives up every group of ranks that the engine knows, so that the others end
  // too (Communicator::abort()). Any thread.
  virtual void abort(const std::exception& why) noexcept = 0;

  // --- training --------------------------------------------------------------------------------
  // Before the first step: gradients' memory and the optimizer. May be called again.
  virtual void prepare_training() = 0;
  virtual StepDone step(const StepWork& work) = 0;
  // Of the steps whose numbers step() did not know, in their order, each once; waits for them. Not
  // of a last one that was waited for. Throws, too, as scaler() does.
  virtual std::vector<StepDone> collect() { return {}; }
  // The memory of a step with such a batch, by this rank alone: a forward and a backward after
  // which everything is as before. out_of_memory; unavailable where ranks share a model.
  virtual void try_step(const Batch& batch);
  // Of f16; else it says 1. As the last step left it, for which a device is waited for: not in
  // every step. Throws invalid_argument where gradients have overflowed for too long.
  virtual const nn::LossScaler& scaler() = 0;
  virtual void restore_scaler(const nn::LossScalerState& state) = 0;
  // Ends updates that run behind a forward: before anything but a step reads weights or optimizer
  // state. The gradients' norm, where there were such updates.
  virtual std::optional<double> settle() { return std::nullopt; }
  // How steps are captured, once they are; empty: they are not.
  virtual std::string describe_capture() { return {}; }
  // Of gradients' way over the ranks since prepare_training(); none where it is not measured.
  virtual std::optional<parallel::ReducerStatistics> reduced() const { return std::nullopt; }
  // Of what this rank's tapes have sent away until their backward; none: it stays. What a graph
  // replays is not counted.
  virtual std::optional<parallel::OffloadStatistics> offloaded() const { return std::nullopt; }
  virtual bool has_pipeline() const { return false; }  // of more than one stage
  // Where the time of steps goes. Phases of a device that works behind its host say nothing.
  StepClock& clock() { return clock_; }
  virtual bool knows_phases() const = 0;

  // --- evaluation ------------------------------------------------------------------------------
  // So many batches of an index are evaluated at a time. Where forwards communicate (true), every
  // rank must call equally often, with fewer batches or none when it has no more.
  virtual int batches_at_a_time() const { return 1; }
  virtual bool evaluates_together() const { return false; }
  // Of rows [first_row, first_row + n) of batches[batch]: what the head says of each, f32 [n, ..]
  // in host memory, padding's positions too.
  using Scores =
      std::function<void(std::size_t batch, std::int64_t first_row, const Tensor& scores)>;
  // What this rank adds to the sums over all ranks. `scores`, where it is not empty, gets each row
  // on one of the ranks that read it; every rank gives one or none does.
  virtual LossSums evaluate(std::span<const Batch> batches, const Scores& scores) = 0;

  // --- checkpoints -----------------------------------------------------------------------------
  // True: every rank has a part of a checkpoint to write; false: rank 0 has all of it.
  virtual bool writes_parts() const = 0;
  // A copy of what this rank writes, so that the next step may begin: called from any thread, the
  // function puts it into a directory of the checkpoint. Empty where this rank writes nothing.
  using Write = std::function<void(const std::string& directory)>;
  virtual Write snapshot(bool with_optimizer) = 0;
  // Weights from a Hugging Face directory or a checkpoint of any layout.
  virtual void load_weights(const std::string& directory) = 0;
  // Optimizer state, and how many updates it has seen. not_found where the checkpoint has none.
  virtual void load_optimizer(const std::string& directory, std::int64_t updates) = 0;
  // The model in Hugging Face's format, into a directory that exists; rank 0 writes.
  virtual void save_model(const std::string& directory) = 0;

 protected:
  Engine() = default;
  StepClock clock_;
};

// What both kinds are made of.
struct EngineParts {
  TrainingArguments arguments;  // resolved
  TrainerParts trainer;
  std::function<void(const std::string&)> say;  // to the user; rank 0's is printed
  // The checkpoint that training will go on from, as rank 0 sees it; empty: none, or not rank 0.
  std::string continues = {};
};
// `states`: nn::make_adamw()'s.
std::unique_ptr<nn::Optimizer> make_optimizer(const EngineParts& parts,
                                              std::vector<nn::Segment> segments,
                                              MemoryResource* states = nullptr);
parallel::ReducerOptions reducer_options(const EngineParts& parts);
// nn::StepCaptureOptions::exchange, on the ranks' hosts. Blocks; `all` outlives it.
std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange_over(
    collectives::Communicator& all);
DType compute_dtype(const TrainingArguments& arguments);
// Of stochastic rounding; none: there are masters, or parameters are f32.
std::optional<std::uint64_t> rounding_seed(const TrainingArguments& arguments);
// "native", and between devices what carries the bytes: "native over CUDA IPC".
std::string carried_by(const collectives::Communicator& communicator);
// Says what was missing or had no place. A new head that nobody trains is refused.
void note_loaded(const EngineParts& parts, const std::string& directory,
                 const nn::LoadReport& report);
// Logits as Engine::Scores gets them; waits for them.
Tensor scores_on_host(const nn::Context& context, const Tensor& logits, MemoryResource& host);
// Of f16 where mp_parameters say nothing: torch.amp.GradScaler's numbers, unless others are given.
nn::LossScalerOptions loss_scaling(const TrainingArguments& arguments);

// In the head of a log, before the reason; and one that both have.
inline constexpr std::string_view kCallByCall =
    "steps run call by call, though step_capture is on: ";
inline constexpr std::string_view kOffloadedBetweenGraphs =
    "what is offloaded is on its way where one graph ends and the next begins (over native)";

// The data-parallel one, or where mp_parameters are given the one on a mesh. Makes the weights.
std::unique_ptr<Engine> make_engine(const EngineParts& parts);

}  // namespace shoal
