#include "shoal/parallel/pipeline/chain_stage.h"

#include <numeric>
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

std::vector<std::int64_t> ChainStage::lengths(int index, int unit) const {
  const nn::ChainInput& input = microbatch(index).input;
  SHOAL_CHECK(input.ids.shape().rank() == 2, "ids {}, not [B, T]", to_string(input.ids.shape()));
  std::vector<std::int64_t> all = chain_.lengths(unit, input);
  for (std::int64_t& length : all) {
    SHOAL_CHECK(length % options_.sequence_parts == 0,
                "a sequence of {} positions does not divide into {} parts (sequence parallelism); "
                "pad it to a multiple of {}, or use optimize=speed",
                length, options_.sequence_parts, options_.sequence_parts);
    length /= options_.sequence_parts;
  }
  return all;
}

Stage::Message ChainStage::message(int index, int unit) const {
  const std::vector<nn::Parameter*> parameters = chain_.unit_parameters(units_.first);
  SHOAL_CHECK(!parameters.empty() && parameters.front()->value.defined(),
              "units [{}, {}) have not been materialised", units_.first, units_.last);
  const std::vector<std::int64_t> all = lengths(index, unit);
  return {{microbatch(index).input.ids.shape()[0],
           std::accumulate(all.begin(), all.end(), std::int64_t{0}), chain_.channels()},
          parameters.front()->value.dtype()};
}

std::vector<Tensor> ChainStage::split(int index, int unit, const Tensor& message) const {
  const std::vector<std::int64_t> all = lengths(index, unit);
  if (all.size() == 1) return {message};
  const std::int64_t samples = message.shape()[0], channels = message.shape()[2];
  const Tensor rows = message.reshaped({message.count() / channels, channels});
  std::vector<Tensor> tensors;
  std::int64_t first = 0;
  for (const std::int64_t length : all) {
    tensors.push_back(
        rows.narrowed(0, first, samples * length).reshaped({samples, length, channels}));
    first += samples * length;
  }
  return tensors;
}

Tensor ChainStage::joined(int index, int unit, std::vector<Tensor> tensors) const {
  if (tensors.size() == 1 && tensors[0].defined()) return std::move(tensors[0]);
  const Message whole = message(index, unit);
  const Tensor all = context_.empty(whole.shape, whole.dtype);
  const std::vector<Tensor> places = split(index, unit, all);
  tensors.resize(2);
  context_.run("stage.message", {tensors[0], tensors[1]}, {all}, [&] {
    auto& elementwise = context_.kernels().elementwise();
    for (std::size_t i = 0; i < places.size(); ++i)
      if (tensors[i].defined())
        elementwise.cast(tensors[i], places[i].view(), context_.stream);
      else
        elementwise.fill(places[i].view(), 0, context_.stream);
  });
  return all;
}

Tensor ChainStage::allocate(const Message& message) {
  return context_.empty(message.shape, message.dtype);
}

Tensor ChainStage::forward(int index, Tensor input) {
  const Microbatch& batch = microbatch(index);
  const bool records = context_.training();
  Record record;
  if (records && options_.offloader) {
    record.offloaded = options_.offloader->begin_batch();
    record.tape->set_saved_tensor_hooks(options_.offloader->hooks(record.offloaded));
  }
  const Coordinates coordinates(context_, records ? record.tape.get() : nullptr);
  context_.begin_forward();
  context_.random.sample_first = batch.sample_first;
  // Of the ids' positions, whose length is the last one. The head's lengths are all that there are.
  context_.activation.first_position =
      lengths(index, chain_.units() - 1).back() * options_.sequence_part;
  if (batch.host_targets.defined())
    context_.cache<HostTargets>() = {batch.input.targets, batch.host_targets};

  nn::ResidualStream stream;
  if (units_.first > 0) {
    const Message shape = message(index, units_.first);
    SHOAL_CHECK(input.shape() == shape.shape && input.dtype() == shape.dtype,
                "stage input {} {}, not {} {}", to_string(input.dtype()), to_string(input.shape()),
                to_string(shape.dtype), to_string(shape.shape));
    std::vector<nn::Value> values;
    for (Tensor& tensor : split(index, units_.first, std::exchange(input, {}))) {
      values.push_back(records ? record.tape->leaf(std::move(tensor))
                               : nn::Value{std::move(tensor)});
      record.inputs.push_back(without_tensor(values.back()));
    }
    stream = nn::ResidualStream::of(std::move(values));
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
    if (out.loss_sum.defined()) losses_.push_back(out.loss_sum);
    targets_ += out.targets;
    record.outputs = {out.loss};  // one element; backward starts from it
  } else {
    std::vector<Tensor> tensors;
    for (nn::Value& value : std::move(stream).carried(context_)) {
      tensors.push_back(std::move(value.tensor));
      record.outputs.push_back(without_tensor(std::move(value)));
    }
    sent = joined(index, units_.last, std::move(tensors));
  }
  if (records) records_.emplace(index, std::move(record));
  return sent;
}

Tensor ChainStage::backward(int index, Tensor gradient, bool weights_later) {
  const auto found = records_.find(index);
  SHOAL_CHECK(found != records_.end(), "backward of microbatch {} without its forward", index);
  Record& record = found->second;
  const Coordinates coordinates(context_, nullptr);
  std::vector<Tensor> gradients(1);
  if (!is_head()) gradients = split(index, units_.last, std::exchange(gradient, {}));
  // Outputs without a gradient come only from frozen units.
  for (std::size_t i = record.outputs.size(); i-- > 0;) {
    if (record.outputs[i].needs_gradient()) continue;
    record.outputs.erase(record.outputs.begin() + static_cast<std::ptrdiff_t>(i));
    gradients.erase(gradients.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (!record.outputs.empty())
    record.tape->backward(context_, record.outputs, std::move(gradients), {weights_later});
  record.outputs.clear();
  Tensor to_input;
  if (units_.first > 0) {
    std::vector<Tensor> to_inputs;
    for (const nn::Value& value : record.inputs)
      to_inputs.push_back(record.tape->take_gradient(value));
    to_input = joined(index, units_.first, std::move(to_inputs));
  }
  if (weights_later && record.tape->deferred() > 0)
    record.inputs.clear();
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
