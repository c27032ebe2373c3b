// A pipeline's stage that computes consecutive units of a model: one tape a microbatch.
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
  std::uint32_t sample_first = 0;  // random coordinates of its row 0 (decision 10)
};

struct ChainStageOptions {
  int checkpoint_group = 0;  // nn::forward_units()
  // Where the residual stream is split along the sequence: into how many parts, and which one is
  // here.
  int sequence_parts = 1, sequence_part = 0;
  Offloader* offloader = nullptr;        // takes what tapes save; may be null
  nn::UnitObserver* observer = nullptr;  // may be null; must outlive the stage
};

// Of the last stage, over the microbatches since begin(). Not scaled.
struct StageLoss {
  double sum = 0;
  std::int64_t targets = 0;
};

class ChainStage final : public Stage {
 public:
  // `context` gives kernels, memory, dispatcher, mode and seed; tape, random coordinates and
  // activation coordinates are the stage's while it computes. In Mode::evaluate nothing is
  // recorded: forward only. Units must be materialised before begin(). All outlive the stage.
  ChainStage(nn::Context& context, nn::Chain& chain, UnitRange units, ChainStageOptions options);

  const UnitRange& units() const { return units_; }
  // Before each run of the executor. What earlier microbatches left is dropped. `microbatches`
  // stays valid until the run has ended. `scores`: the head keeps its scores (evaluation).
  void begin(std::span<const Microbatch> microbatches, bool scores = false);
  // Of the head, of each microbatch since begin(), as Chain::head_logits(); empty: none were kept.
  std::vector<Tensor> take_logits() { return std::move(logits_); }
  StageLoss loss() const;  // on a device it waits for the numbers
  // Lets go of the losses of the head's microbatches since begin(), into f32 [n] where it is
  // defined.
  void take_losses(const Tensor& into);
  int microbatches_in_flight() const { return static_cast<int>(records_.size()); }

  Message input(int microbatch) const override { return message(microbatch); }
  Message output(int microbatch) const override { return message(microbatch); }
  Tensor allocate(const Message& message) override;
  Tensor forward(int microbatch, Tensor input) override;
  Tensor backward(int microbatch, Tensor gradient, bool weights_later) override;
  void weight_backward(int microbatch) override;
  void expect_backward(int microbatch) override;

 private:
  void copy_losses(const Tensor& into) const;  // f32 [n]
  struct Record {
    std::unique_ptr<nn::Tape> tape = std::make_unique<nn::Tape>();
    nn::Value input, output;                      // without their tensors
    std::shared_ptr<Offloader::Batch> offloaded;  // null: nothing is
  };
  Message message(int microbatch) const;
  bool is_head() const { return units_.last == chain_.units(); }
  const Microbatch& microbatch(int index) const;

  nn::Context& context_;
  nn::Chain& chain_;
  UnitRange units_;
  ChainStageOptions options_;
  std::span<const Microbatch> microbatches_;
  std::map<int, Record> records_;
  std::vector<Tensor> losses_;  // [1] f32, of each microbatch of the head
  std::vector<Tensor> logits_;  // of the head, where they are kept
  std::int64_t targets_ = 0;
};

}  // namespace shoal::parallel
