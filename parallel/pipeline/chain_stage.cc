#include "shoal/parallel/pipeline/chain_stage.h"

#include <utility>

#include "shoal/nn/autograd/device_values.h"
#include "shoal/parallel/tensor/host_to_device.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Sets the stage's coordinates for one microbatch; restores the previous ones.
class Coordinates {
 public:
  Coordinates(nn::Context& context, nn::Tape* tape)
      : context_(context),
        tape_(context.tape),
        random_(context.random),
        activation_(context.activation),
        cached_(context.cached) {
    context.tape = tape;
  }
  ~Coordinates() {
    context_.tape = tape_;
    context_.random = random_;
    context_.activation = activation_;
    context_.cached = std::move(cached_);
  }
  Coordinates(const Coordinates&) = delete;
  Coordinates& operator=(const Coordinates&) = delete;

 private:
  nn::Context& context_;
  nn::Tape* tape_;
  nn::RandomCoordinates random_;
  nn::ActivationCoordinates activation_;
  std::shared_ptr<nn::Context::Cache> cached_;
};

nn::Value without_tensor(nn::Value value) {
  value.tensor = {};
  return value;
}

}  // namespace

ChainStage::ChainStage(nn::Context& context, nn::Chain& chain, UnitRange units,
                       ChainStageOptions options)
    : context_(context), chain_(chain), units_(units), options_(options) {
  SHOAL_CHECK(0 <= units.first && units.first < units.last && units.last <= chain.units(),
              "a stage of units [{}, {}) of a model of {}", units.first, units.last, chain.units());
  SHOAL_CHECK(options.sequence_parts > 0 && options.sequence_part >= 0 &&
                  options.sequence_part < options.sequence_parts,
              "part {} of {} of a sequence", options.sequence_part, options.sequence_parts);
}

void ChainStage::begin(std::span<const Microbatch> microbatches, bool scores) {
  microbatches_ = microbatches;
  logits_.assign(scores && is_head() ? microbatches.size() : 0, Tensor());
  records_.clear();
  losses_.clear();
  targets_ = 0;
}

void ChainStage::copy_losses(const Tensor& into) const {
  SHOAL_CHECK(into.count() == std::ssize(losses_), "{} losses into room for {}", losses_.size(),
              into.count());
  for (std::size_t i = 0; i < losses_.size(); ++i)
    context_.kernels().elementwise().cast(
        losses_[i], into.narrowed(0, static_cast<std::int64_t>(i), 1).view(), context_.stream);
}

void ChainStage::take_losses(const Tensor& into) {
  if (into.defined()) copy_losses(into);
  losses_.clear();
}

StageLoss ChainStage::loss() const {
  StageLoss loss{.targets = targets_};
  if (losses_.empty()) return loss;
  if (context_.kernels().device().is_cpu()) {
    for (const Tensor& sum : losses_) loss.sum += context_.read(sum);
    return loss;
  }
  // Gathers all losses, so that the host waits for the device only once.
  std::vector<float> sums(losses_.size());
  const Tensor all = context_.empty({std::ssize(losses_)}, DType::f32, MemoryTag::workspace);
  copy_losses(all);
  nn::copy_to_host(sums.data(), all, context_.stream);
  for (const float sum : sums) loss.sum += static_cast<double>(sum);
  return loss;
}

const Microbatch& ChainStage::microbatch(int index) const {
  SHOAL_CHECK(index >= 0 && static_cast<std::size_t>(index) < microbatches_.size(),
              "microbatch {} of {}: begin() with as many as the schedule has", index,
              microbatches_.size());
  return microbatches_[static_cast<std::size_t>(index)];
}

Stage::Message ChainStage::message(int index) const {
  const Shape& ids = microbatch(index).input.ids.shape();
  SHOAL_CHECK(ids.rank() == 2 && ids[1] % options_.sequence_parts == 0,
              "a sequence of {} positions does not divide into {} parts (sequence parallelism); "
              "pad it to a multiple of {}, or use optimize=speed",
              ids.rank() == 2 ? ids[1] : 0, options_.sequence_parts, options_.sequence_parts);
  const std::vector<nn::Parameter*> parameters = chain_.unit_parameters(units_.first);
  SHOAL_CHECK(!parameters.empty() && parameters.front()->value.defined(),
              "units [{}, {}) have not been materialised", units_.first, units_.last);
  return {{ids[0], ids[1] / options_.sequence_parts, chain_.channels()},
          parameters.front()->value.dtype()};
}

Tensor ChainStage::allocate(const Message& message) {
  return context_.empty(message.shape, message.dtype);
}

Tensor ChainStage::forward(int index, Tensor input) {
  const Microbatch& batch = microbatch(index);
  const Message shape = message(index);
  const bool records = context_.training();
  Record record;
  if (records && options_.offloader) {
    record.offloaded = options_.offloader->begin_batch();
    record.tape->set_saved_tensor_hooks(options_.offloader->hooks(record.offloaded));
  }
  const Coordinates coordinates(context_, records ? record.tape.get() : nullptr);
  context_.begin_forward();
  context_.random.sample_first = batch.sample_first;
  context_.activation.first_position = shape.shape[1] * options_.sequence_part;
  if (batch.host_targets.defined())
    context_.cache<HostTargets>() = {batch.input.targets, batch.host_targets};

  nn::ResidualStream stream;
  if (units_.first > 0) {
    SHOAL_CHECK(input.shape() == shape.shape && input.dtype() == shape.dtype,
                "stage input {} {}, not {} {}", to_string(input.dtype()), to_string(input.shape()),
                to_string(shape.dtype), to_string(shape.shape));
    stream.residual = records ? record.tape->leaf(std::move(input)) : nn::Value{std::move(input)};
    record.input = without_tensor(stream.residual);
  }
  const int last = is_head() ? units_.last - 1 : units_.last;
  stream = nn::forward_units(context_, chain_, units_.first, last, std::move(stream), batch.input,
                             options_.checkpoint_group, options_.observer);
  Tensor sent;
  if (is_head()) {
    nn::LossOutput out;
    if (logits_.empty()) {
      out = nn::forward_head(context_, chain_, units_.first, std::move(stream), batch.input,
                             options_.checkpoint_group, options_.observer);
    } else {
      nn::ScoredOutput scored =
          nn::score_head(context_, chain_, std::move(stream), batch.input, options_.observer);
      out = std::move(scored.loss);
      logits_[static_cast<std::size_t>(index)] = std::move(scored.logits);
    }
    losses_.push_back(out.loss_sum);
    targets_ += out.targets;
    record.output = out.loss;  // one element; backward starts from it
  } else {
    nn::Value value = std::move(stream).collapse(context_);
    sent = std::move(value.tensor);
    record.output = without_tensor(std::move(value));
  }
  if (records) records_.emplace(index, std::move(record));
  return sent;
}

Tensor ChainStage::backward(int index, Tensor gradient, bool weights_later) {
  const auto found = records_.find(index);
  SHOAL_CHECK(found != records_.end(), "backward of microbatch {} without its forward", index);
  Record& record = found->second;
  const Message shape = message(index);
  const Coordinates coordinates(context_, nullptr);
  // If the output needs no gradient, everything before it is frozen and backward has no work.
  if (record.output.needs_gradient())
    record.tape->backward(context_, record.output, std::move(gradient), {weights_later});
  record.output = {};
  Tensor to_input;
  if (units_.first > 0) {
    to_input = record.tape->take_gradient(record.input);
    if (!to_input.defined()) {
      to_input = context_.empty(shape.shape, shape.dtype);
      context_.kernels().elementwise().fill(to_input.view(), 0, context_.stream);
    }
  }
  if (weights_later && record.tape->deferred() > 0)
    record.input = {};
  else
    records_.erase(found);
  return to_input;
}

void ChainStage::expect_backward(int index) {
  const auto found = records_.find(index);
  if (found != records_.end() && found->second.offloaded)
    options_.offloader->expect(*found->second.offloaded);
}

void ChainStage::weight_backward(int index) {
  const auto found = records_.find(index);
  if (found == records_.end()) return;  // its backward left no deferred work
  const Coordinates coordinates(context_, nullptr);
  found->second.tape->run_deferred();
  records_.erase(found);
}

}  // namespace shoal::parallel
