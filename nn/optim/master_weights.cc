#include "shoal/nn/optim/master_weights.h"

#include "shoal/nn/optim/parameter_place.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kMasterAlignment = 16;  // in f32 elements: one cache line

}  // namespace

MasterWeights::MasterWeights(std::span<Parameter* const> parameters, DType compute,
                             kernels::Kernels& kernels, MemoryResource& memory,
                             const std::function<void(Parameter&)>& fill, MemoryResource* masters,
                             std::optional<std::uint64_t> rounding_seed)
    : compute_(compute), rounding_seed_(rounding_seed), kernels_(kernels) {
  SHOAL_CHECK(!rounding_seed || compute == DType::bf16,
              "stochastic rounding is of bf16 parameters, not of {}", to_string(compute));
  std::int64_t total = 0;
  for (const Parameter* parameter : parameters)
    if (parameter->trainable())
      total +=
          (parameter->shape().count() + kMasterAlignment - 1) / kMasterAlignment * kMasterAlignment;
  Tensor block;
  if (has_masters())
    block = Tensor::empty({total}, DType::f32, masters != nullptr ? *masters : memory,
                          MemoryTag::optimizer, kernels.stream());
  std::int64_t offset = 0;
  for (Parameter* parameter : parameters) {
    if (fill && !parameter->value.defined()) fill(*parameter);
    SHOAL_CHECK(parameter->value.defined() && parameter->value.dtype() == DType::f32,
                "{} must hold f32 numbers before masters are made of them", parameter->name());
    Tensor master = parameter->value;
    if (compute != DType::f32) {
      Tensor value = Tensor::empty(parameter->shape(), compute, memory, MemoryTag::parameters,
                                   kernels.stream());
      kernels.elementwise().cast(master, value.view(), {});
      if (parameter->trainable() && has_masters()) {
        const Tensor slot =
            block.narrowed(0, offset, parameter->shape().count()).reshaped(parameter->shape());
        kernels.elementwise().cast(master, slot.view(), {});
        master = slot;
        offset += (parameter->shape().count() + kMasterAlignment - 1) / kMasterAlignment *
                  kMasterAlignment;
      } else {
        master = value;
      }
      parameter->value = value;  // frees the f32 memory of this parameter
    }
    entries_.push_back({parameter, master});
  }
}

std::vector<Segment> MasterWeights::segments() const {
  std::vector<Segment> segments;
  for (const Entry& entry : entries_) {
    if (!entry.parameter->trainable()) continue;
    Segment segment{.name = entry.parameter->name(),
                    .master = entry.master,
                    .gradient = entry.parameter->gradient,
                    .value = {},
                    .decays = entry.parameter->decays(),
                    .parameter = entry.parameter};
    if (has_masters()) segment.value = entry.parameter->value;
    if (rounding_seed_) segment.rounding = rounding_place(*entry.parameter, *rounding_seed_);
    segments.push_back(std::move(segment));
  }
  return segments;
}

std::vector<NamedTensor> MasterWeights::masters() const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) tensors.push_back({entry.parameter->name(), entry.master});
  return tensors;
}

void MasterWeights::refresh() {
  if (!has_masters()) return;
  for (const Entry& entry : entries_)
    if (entry.parameter->trainable())
      kernels_.elementwise().cast(entry.master, entry.parameter->value.view(), {});
}

}  // namespace shoal::nn
