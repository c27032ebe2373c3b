#include "shoal/nn/autograd/parameter.h"

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

Shape origin(const Shape& shape) {
  const std::vector<std::int64_t> zeros(static_cast<std::size_t>(shape.rank()), 0);
  return Shape(std::span<const std::int64_t>(zeros));
}

bool lies_within(const Shape& corner, const Shape& sizes, const Shape& shape) {
  if (corner.rank() != shape.rank() || sizes.rank() != shape.rank()) return false;
  for (int dim = 0; dim < shape.rank(); ++dim)
    if (sizes[dim] > shape[dim] || corner[dim] > shape[dim] - sizes[dim]) return false;
  return true;
}

bool overlap(const ParameterPiece& a, const ParameterPiece& b) {
  for (int dim = 0; dim < a.sizes.rank(); ++dim)
    if (a.local[dim] + a.sizes[dim] <= b.local[dim] || b.local[dim] + b.sizes[dim] <= a.local[dim])
      return false;
  return true;
}

}  // namespace

std::uint32_t hash_name(std::string_view name) {
  std::uint32_t hash = 0x811c9dc5u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x01000193u;
  return hash;
}

Parameter::Parameter(std::string name, Shape shape, Initializer initializer)
    : name_(std::move(name)),
      shape_(shape),
      whole_shape_(shape),
      pieces_{{shape, origin(shape), origin(shape)}},
      initializer_(initializer) {}

void Parameter::set_part(const Shape& whole, std::vector<ParameterPiece> pieces) {
  SHOAL_CHECK(!value.defined(), "{} is cut after it was materialised", name_);
  for (const ParameterPiece& piece : pieces)
    SHOAL_CHECK(lies_within(piece.local, piece.sizes, shape_) &&
                    lies_within(piece.whole, piece.sizes, whole),
                "{}: a piece {} at {} of {} and {} of {} does not lie within", name_,
                to_string(piece.sizes), to_string(piece.local), to_string(shape_),
                to_string(piece.whole), to_string(whole));
  std::int64_t covered = 0;
  for (const ParameterPiece& piece : pieces) {
    for (const ParameterPiece& other : pieces)
      SHOAL_CHECK(&other == &piece || !overlap(piece, other), "{}: two pieces overlap at {}", name_,
                  to_string(piece.local));
    covered += piece.sizes.count();
  }
  SHOAL_CHECK(covered == shape_.count(), "{}: the pieces have {} elements, the parameter {}", name_,
              covered, shape_.count());
  whole_shape_ = whole;
  pieces_ = std::move(pieces);
  is_part_ = true;
}

bool Parameter::accumulate() {
  if (!has_gradient_ && prepare_) prepare_(*this);
  if (!gradient.defined())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("parameter {} has no gradient memory", name_),
                "allocate gradients (Reducer, or allocate_gradients) before the first forward");
  SHOAL_CHECK(gradient.dtype() == DType::f32 && gradient.shape() == shape_,
              "the gradient of {} is {} {}, not f32 {}", name_, to_string(gradient.dtype()),
              to_string(gradient.shape()), to_string(shape_));
  const bool had = has_gradient_;
  has_gradient_ = true;
  return had;
}

void Parameter::end_use() {
  SHOAL_ASSERT(uses_ > 0);
  if (--uses_ > 0 || !armed_) return;
  armed_ = false;
  if (hook_) hook_(*this);
}

}  // namespace shoal::nn
