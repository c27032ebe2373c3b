// Helpers of the tensor-parallel tests: a rank's part of an activation or of a parameter, and
// distances relative to a norm.
#pragma once

#include <cmath>
#include <cstring>

#include "nn/rig.h"
#include "support/rank_device.h"
#include "support/ranks.h"
#include <fmt/format.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/parallel/tensor/tensor_parallel.h"

namespace shoal::parallel {

struct Layout {
  int tp;
  ActivationSplit split;
};
inline void PrintTo(const Layout& layout, std::ostream* out) {
  *out << "tp " << layout.tp << " " << to_string(layout.split);
}
inline std::string name_of(const Layout& layout) {
  return fmt::format("tp{}{}", layout.tp, to_string(layout.split));
}
inline std::vector<Layout> layouts(const std::vector<int>& degrees) {
  std::vector<Layout> all;
  for (const int tp : degrees)
    for (const auto split :
         {ActivationSplit::none, ActivationSplit::sequence, ActivationSplit::batch})
      all.push_back({tp, split});
  return all;
}

// Runs body(group) on `layout.tp` threads.
template <class Body>
void on_group(const Layout& layout, const Body& body) {
  test::run_thread_ranks(layout.tp, [&](const World& world, Store& store) {
    collectives::CommunicatorOptions options;
    options.deadline_seconds = 60;
    const auto communicator = testing::make_test_communicator(world, store, options);
    const TensorParallel group{*communicator, layout.split};
    body(group);
  });
}

// One rank's rig. On a device, its results are in the device's memory.
struct Rig : nn::Rig {
  Rig() : nn::Rig(testing::make_test_kernels(1), nullptr, testing::make_test_device_memory()) {}
};

// This rank's part of a whole activation, or of ids [B, T].
inline Tensor local_part(nn::Rig& rig, const TensorParallel& group, const Tensor& whole) {
  if (group.split == ActivationSplit::none) return rig.copy(whole);
  const int dim = group.split == ActivationSplit::sequence ? 1 : 0;
  const std::int64_t own = whole.shape()[dim] / group.size();
  const Tensor part = whole.narrowed(dim, group.rank() * own, own);
  if (dim == 0) return rig.copy(part);
  std::vector<std::byte> bytes;
  for (std::int64_t b = 0; b < part.shape()[0]; ++b) {
    const Tensor from = part.narrowed(0, b, 1);
    const std::size_t before = bytes.size();
    bytes.resize(before + from.bytes());
    testing::copy_to_test(bytes.data() + before, from);
  }
  Tensor made = whole.device() == rig.memory.device()
                    ? Tensor::empty(part.shape(), part.dtype(), rig.memory, MemoryTag::data)
                    : rig.input(part.shape(), part.dtype());
  testing::copy_from_test(made, bytes.data());
  return made;
}

// Calls fn(element of the part, element of the whole) for each of a parameter's elements.
template <class Fn>
void each_element(const nn::Parameter& part, const Fn& fn) {
  const Shape own = contiguous_strides(part.shape()),
              whole = contiguous_strides(part.whole_shape());
  for (const nn::ParameterPiece& piece : part.pieces())
    for (std::int64_t i = 0; i < piece.sizes.count(); ++i) {
      std::int64_t rest = i, from = 0, to = 0;
      for (int dim = piece.sizes.rank(); dim-- > 0;) {
        const std::int64_t at = rest % piece.sizes[dim];
        rest /= piece.sizes[dim];
        from += (piece.local[dim] + at) * own[dim];
        to += (piece.whole[dim] + at) * whole[dim];
      }
      fn(from, to);
    }
}

// |a - b| / |b|
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::nan("");
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

// The values of `part` within those of the whole parameter (value or gradient).
inline std::vector<float> boxes_of(const nn::Parameter& part, const std::vector<float>& whole) {
  std::vector<float> expected(static_cast<std::size_t>(part.shape().count()));
  each_element(part, [&](std::int64_t from, std::int64_t to) {
    expected[static_cast<std::size_t>(from)] = whole[static_cast<std::size_t>(to)];
  });
  return expected;
}

inline void give_boxes(const nn::Parameter& part, const nn::Parameter& whole) {
  const auto give = [&](auto values, const auto& wholes) {
    each_element(part, [&](std::int64_t from, std::int64_t to) {
      values[static_cast<std::size_t>(from)] = wholes[static_cast<std::size_t>(to)];
    });
    testing::set_values(part.value, values);
  };
  if (part.value.dtype() == DType::f32)
    give(testing::values_of<float>(part.value), testing::values_of<float>(whole.value));
  else
    give(testing::values_of<bfloat16>(part.value), testing::values_of<bfloat16>(whole.value));
}

// A rank's gradient, summed over the group if each rank has only a contribution.
inline std::vector<float> complete_gradient(const TensorParallel& group,
                                            const nn::Parameter& parameter) {
  std::vector<float> gradient = nn::floats(parameter.gradient);
  if (gradient_is_partial(parameter, group.split))
    group.tp.host()
        .all_reduce(gradient.data(), gradient.data(), static_cast<std::int64_t>(gradient.size()),
                    DType::f32, collectives::ReduceOp::sum)
        ->wait();
  return gradient;
}

}  // namespace shoal::parallel
