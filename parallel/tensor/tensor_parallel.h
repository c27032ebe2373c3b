// Tensor parallelism: layers whose parameters are split over the ranks of a group, which compute
// the same samples together (Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022).
//
// Ordinary layers (norms, dropouts, residual sums) run between distributed layers, on each rank's
// part of the activation. A distributed layer begins with enter(), which gives every rank the whole
// activation. It ends with leave(), which sums the ranks' contributions and gives each rank its
// part.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/autograd/context.h"
#include "shoal/parallel/tensor/host_to_device.h"

namespace shoal::parallel {

// A rank's part of an activation [B, T, C] between distributed layers.
enum class ActivationSplit : std::uint8_t {
  none,      // all of it, the same on every rank (SMP: prescaled_batch, optimize = speed)
  sequence,  // positions [r·T/tp, (r+1)·T/tp) of every sample (prescaled_batch, optimize = memory)
  batch,     // its own batch: samples [r·B, (r+1)·B) of the group's tp·B (no prescaled_batch)
};
std::string_view to_string(ActivationSplit split);

// `tp` must outlive the modules that hold this and all of their tapes. All its ranks run the same
// forwards and backwards: each distributed layer is a collective call.
struct TensorParallel {
  collectives::Communicator& tp;
  ActivationSplit split = ActivationSplit::none;
  std::shared_ptr<HostToDevice> uploads =
      std::make_shared<HostToDevice>();  // shared by the group's layers
  int rank() const { return tp.rank(); }
  int size() const { return tp.size(); }
};

// During its lifetime, the context knows which positions of a microbatch this rank's activations
// cover. The caller of a forward creates one around it. Throws if T is no multiple of tp. (Under
// `batch`, random.sample_first is this rank's own first sample, as on any other rank.)
class ForwardCoordinates {
 public:
  ForwardCoordinates(nn::Context& context, const TensorParallel& group, std::int64_t positions);
  ~ForwardCoordinates() { context_.activation = before_; }
  ForwardCoordinates(const ForwardCoordinates&) = delete;
  ForwardCoordinates& operator=(const ForwardCoordinates&) = delete;

 private:
  nn::Context& context_;
  nn::ActivationCoordinates before_;
};

// The same between enter() and leave(), where activations are the group's: all positions of all its
// samples. `batch`: number of this rank's own samples.
class GroupCoordinates {
 public:
  GroupCoordinates(nn::Context& context, const TensorParallel& group, std::int64_t batch);
  ~GroupCoordinates();
  GroupCoordinates(const GroupCoordinates&) = delete;
  GroupCoordinates& operator=(const GroupCoordinates&) = delete;

 private:
  nn::Context& context_;
  nn::ActivationCoordinates activation_;
  nn::RandomCoordinates random_;
};

// True if a rank's gradient of this parameter is a partial sum, to be summed over tp. This holds
// for replicated parameters when the ranks' activations differ, or when each rank applies them to
// its own channels (Parameter::applies_to_part).
bool gradient_is_partial(const nn::Parameter& parameter, ActivationSplit split);

// `count` / tp; if it does not divide, throws with the numbers and the remedy. `what`: "heads".
std::int64_t divided(std::int64_t count, const TensorParallel& group, std::string_view what,
                     std::string_view path);

}  // namespace shoal::parallel
