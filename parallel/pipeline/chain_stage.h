// A pipeline stage that computes consecutive units of a model, with one tape per microbatch.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/parallel/activation/offload.h"
#include "shoal/parallel/pipeline/stage.h"

namespace shoal::parallel {

struct UnitRange {
  int first = 0, last = 0;  // [first, last) of Chain::units()
  bool operator==(const UnitRange&) const = default;
};

struct Microbatch {
  nn::ChainInput input;
  std::uint32_t sample_first = 0;  // random coordinates of its first row (decision 10)
  // input.targets in host memory, if they are on a device and a split head reads them on the host.
  // Undefined: such a head waits for a copy.
  Tensor host_targets{};
};

struct ChainStageOptions {
  int checkpoint_group = 0;  // nn::forward_units()
  // If the residual stream is split along the sequence: the number of parts, and this stage's part.
  int sequence_parts = 1, sequence_part = 0;
  Offloader* offloader = nullptr;        // stores the tensors that tapes save; may be null
  nn::UnitObserver* observer = nullptr;  // may be null; must outlive the stage
};

// Loss of the last stage over the microbatches since begin(). Not scaled.
struct StageLoss {
  double sum = 0;
  std::int64_t targets = 0;
};

class ChainStage final : public Stage {
 public:
  // `context` provides kernels, memory, dispatcher, mode and seed. While the stage computes, it
  // sets the context's tape, random coordinates and activation coordinates. In Mode::evaluate it
  // records nothing, so only forward works. Units must be materialised before begin(). All
  // arguments must outlive the stage.
  ChainStage(nn::Context& context, nn::Chain& chain, UnitRange units, ChainStageOptions options);

  const UnitRange& units() const { return units_; }
  // Call before each run of the executor. Drops data left from earlier microbatches. `microbatches`
  // must stay valid until the run ends. `scores`: the head keeps its scores (evaluation).
  void begin(std::span<const Microbatch> microbatches, bool scores = false);
  // The head's scores of each microbatch since begin(), as Chain::head_logits(); empty: none were
  // kept.
  std::vector<Tensor> take_logits() { return std::move(logits_); }
  StageLoss loss() const;  // on a device it waits for the values
  // Moves the losses of the head's microbatches since begin() into `into`, f32 [n]. If `into` is
  // undefined, only drops them.
  void take_losses(const Tensor& into);
  int microbatches_in_flight() const { return static_cast<int>(records_.size()); }

  Message input(int microbatch) const override { return message(microbatch, units_.first); }
  Message output(int microbatch) const override { return message(microbatch, units_.last); }
  Tensor allocate(const Message& message) override;
  Tensor forward(int microbatch, Tensor input) override;
  Tensor backward(int microbatch, Tensor gradient, bool weights_later) override;
  void weight_backward(int microbatch) override;
  void expect_backward(int microbatch) override;

 private:
  void copy_losses(const Tensor& into) const;  // f32 [n]
  struct Record {
    std::unique_ptr<nn::Tape> tape = std::make_unique<nn::Tape>();
    std::vector<nn::Value> inputs, outputs;       // values without their tensors
    std::shared_ptr<Offloader::Batch> offloaded;  // null: nothing is offloaded
  };
  // What enters `unit`: the tensors of ResidualStream::carried() one after another, with as many
  // positions as all of them.
  Message message(int microbatch, int unit) const;
  std::vector<Tensor> split(int microbatch, int unit, const Tensor& message) const;
  // Joins tensors to a message. Undefined ones are zeros.
  Tensor joined(int microbatch, int unit, std::vector<Tensor> tensors) const;
  std::vector<std::int64_t> lengths(int microbatch, int unit) const;
  bool is_head() const { return units_.last == chain_.units(); }
  const Microbatch& microbatch(int index) const;

  nn::Context& context_;
  nn::Chain& chain_;
  UnitRange units_;
  ChainStageOptions options_;
  std::span<const Microbatch> microbatches_;
  std::map<int, Record> records_;
  std::vector<Tensor> losses_;  // f32 [1] per microbatch of the head
  std::vector<Tensor> logits_;  // of the head, if scores are kept
  std::int64_t targets_ = 0;
};

}  // namespace shoal::parallel
