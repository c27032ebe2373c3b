// Tensor parallelism: layers whose parameters are cut over the ranks of a group, which work on the
// same samples together (Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing
// Activation Recomputation in Large Transformer Models", 2022).
//
// Between distributed layers run the ordinary ones (norms, dropouts, residual sums), each rank on
// what it holds of an activation. A distributed layer starts by enter(), which gives every rank all
// of it, and ends by leave(), which sums the ranks' contributions and takes each its own.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/nn/autograd/context.h"
#include "shoal/parallel/tensor/uploads.h"

namespace shoal::parallel {

// What a rank holds of an activation [B, T, C] between distributed layers.
enum class ActivationSplit : std::uint8_t {
  none,      // all of it, the same on every rank (SMP: prescaled_batch, optimize = speed)
  sequence,  // positions [r·T/tp, (r+1)·T/tp) of every sample (prescaled_batch, optimize = memory)
  batch,     // a batch of its own: samples [r·B, (r+1)·B) of the group's tp·B (no prescaled_batch)
};
std::string_view to_string(ActivationSplit split);

// `tp` must outlive the modules that hold this and every tape of theirs. All its ranks run the same
// forwards and backwards: each distributed layer is a collective call.
struct TensorParallel {
  collectives::Communicator& tp;
  ActivationSplit split = ActivationSplit::none;
  std::shared_ptr<Uploads> uploads = std::make_shared<Uploads>();  // of all layers of the group
  int rank() const { return tp.rank(); }
  int size() const { return tp.size(); }
};

// For as long as it lives the context says which part of a microbatch of T positions this rank's
// activations are. Whoever runs a forward makes one around it. Throws where T does not divide.
// (Under `batch` random.sample_first is this rank's own first sample, as for any other rank.)
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
// samples. `batch`: this rank's own samples.
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

// Whether a rank's gradient of this parameter is only a contribution, to be summed over tp: that of
// what is replicated, where the ranks' activations differ.
bool gradient_is_partial(const nn::Parameter& parameter, ActivationSplit split);

// `count` / tp; throws with the numbers and the remedy where it does not divide. `what`: "heads".
std::int64_t divided(std::int64_t count, const TensorParallel& group, std::string_view what,
                     std::string_view path);

}  // namespace shoal::parallel
