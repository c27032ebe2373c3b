#include "shoal/parallel/tensor/tensor_parallel.h"

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {

std::string_view to_string(ActivationSplit split) {
  switch (split) {
    case ActivationSplit::none:
      return "none";
    case ActivationSplit::sequence:
      return "sequence";
    case ActivationSplit::batch:
      return "batch";
  }
  throw_error(ErrorCode::internal, "unknown activation split {}", static_cast<int>(split));
}

ForwardCoordinates::ForwardCoordinates(nn::Context& context, const TensorParallel& group,
                                       std::int64_t positions)
    : context_(context), before_(context.activation) {
  if (group.split != ActivationSplit::sequence) return;
  if (positions % group.size() != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} positions do not divide over tensor_parallel_degree {}", positions,
                            group.size()),
                "pad or shorten the sequences to a multiple of it, or use optimize = speed");
  context.activation.first_position += group.rank() * (positions / group.size());
}

GroupCoordinates::GroupCoordinates(nn::Context& context, const TensorParallel& group,
                                   std::int64_t batch)
    : context_(context), activation_(context.activation), random_(context.random) {
  if (group.split == ActivationSplit::sequence) context.activation.first_position = 0;
  if (group.split != ActivationSplit::batch) return;
  nn::RandomCoordinates& random = context.random;
  const auto before = static_cast<std::uint32_t>(group.rank() * batch) * random.sample_stride;
  SHOAL_CHECK(!context.training() || random.sample_first >= before,
              "rank {} of a tensor-parallel group has {} samples of its own from number {}, so the "
              "group's first would be {} before 0; number the samples of a group one after another",
              group.rank(), batch, random.sample_first, before - random.sample_first);
  random.sample_first -= before;
}

GroupCoordinates::~GroupCoordinates() {
  context_.activation = activation_;
  context_.random = random_;
}

bool gradient_is_partial(const nn::Parameter& parameter, ActivationSplit split) {
  return parameter.applies_to_part() || (split != ActivationSplit::none && !parameter.is_part());
}

std::int64_t divided(std::int64_t count, const TensorParallel& group, std::string_view what,
                     std::string_view path) {
  if (count % group.size() != 0)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}{}{} {} do not divide over tensor_parallel_degree {}", path,
                            path.empty() ? "" : ": ", count, what, group.size()),
                "choose a degree that divides them");
  return count / group.size();
}

}  // namespace shoal::parallel
