#include "shoal/torch/tensors.h"

#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {
namespace {

using Op = c10d::ReduceOp;
using collectives::ReduceOp;
using collectives::Reduction;

const char* name_of(Op::RedOpType op) {
  switch (op) {
    case Op::SUM:
      return "SUM";
    case Op::AVG:
      return "AVG";
    case Op::PRODUCT:
      return "PRODUCT";
    case Op::MIN:
      return "MIN";
    case Op::MAX:
      return "MAX";
    case Op::BAND:
      return "BAND";
    case Op::BOR:
      return "BOR";
    case Op::BXOR:
      return "BXOR";
    case Op::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "UNUSED";
  }
}

bool is_bitwise(Op::RedOpType op) { return op == Op::BAND || op == Op::BOR || op == Op::BXOR; }

[[noreturn]] void refuse(Op::RedOpType op, at::ScalarType type, const char* remedy) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("shoal has no ReduceOp.{} of {}", name_of(op), c10::toString(type)),
              remedy);
}

double factor_of(const Op& op) {
  const auto* supplement = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  SHOAL_CHECK(supplement, "ReduceOp.PREMUL_SUM without a factor");
  return supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                             : supplement->double_factor;
}

Reduction arithmetic(const Op& op, at::ScalarType type) {
  switch (op.op_) {
    case Op::SUM:
      return ReduceOp::sum;
    case Op::AVG:
      return ReduceOp::avg;
    case Op::PRODUCT:
      return ReduceOp::prod;
    case Op::MIN:
      return ReduceOp::min;
    case Op::MAX:
      return ReduceOp::max;
    case Op::PREMUL_SUM:
      return Reduction::premultiplied_sum(factor_of(op));
    default:
      refuse(op.op_, type, "use SUM, AVG, PRODUCT, MIN, MAX or PREMUL_SUM");
  }
}

Reduced of_integers(at::ScalarType type, at::ScalarType view, at::ScalarType wide, const Op& op) {
  if (is_bitwise(op.op_)) return {at::kByte, at::kByte, ReduceOp::sum, op.op_};
  if (op.op_ == Op::AVG || op.op_ == Op::PREMUL_SUM)
    refuse(op.op_, type, "reduce floating-point tensors, or use SUM and divide");
  return {view, wide, arithmetic(op, type), {}};
}

// Reductions of bool are logical. A bool is a byte of 0 or 1.
Reduced of_bool(const Op& op) {
  switch (op.op_) {
    case Op::SUM:
    case Op::MAX:
    case Op::BOR:
      return {at::kByte, at::kByte, ReduceOp::max, {}};
    case Op::PRODUCT:
    case Op::MIN:
    case Op::BAND:
      return {at::kByte, at::kByte, ReduceOp::min, {}};
    case Op::BXOR:
      return {at::kByte, at::kByte, ReduceOp::sum, Op::BXOR};
    default:
      refuse(op.op_, at::kBool, "reductions of bool are logical");
  }
}

Reduced of_complex(at::ScalarType type, at::ScalarType real, const Op& op) {
  if (op.op_ != Op::SUM && op.op_ != Op::AVG && op.op_ != Op::PREMUL_SUM)
    refuse(op.op_, type, "complex numbers have SUM, AVG and PREMUL_SUM");
  return {real, real, arithmetic(op, type), {}};
}

}  // namespace

Moved moved(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return {DType::f32};
    case at::kDouble:
      return {DType::f64};
    case at::kHalf:
      return {DType::f16};
    case at::kBFloat16:
      return {DType::bf16};
    case at::kLong:
      return {DType::i64};
    case at::kInt:
      return {DType::i32};
    case at::kChar:
      return {DType::i8};
    case at::kComplexFloat:
      return {DType::f32, 2};
    case at::kComplexDouble:
      return {DType::f64, 2};
    default:
      return {DType::u8, static_cast<std::int64_t>(c10::elementSize(type))};
  }
}

Reduced reduced(at::ScalarType type, const Op& op) {
  switch (type) {
    case at::kFloat:
    case at::kDouble:
    case at::kHalf:
    case at::kBFloat16:
      return {type, type, arithmetic(op, type), {}};
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
      return of_integers(type, type, type, op);
    case at::kShort:
    case at::kUInt16:  // sums modulo 2^32 are also correct modulo 2^16
      return of_integers(type, type, at::kInt, op);
    case at::kUInt32:
      return of_integers(type, type, at::kLong, op);
    case at::kUInt64:
      if (op.op_ == Op::MIN || op.op_ == Op::MAX)
        refuse(op.op_, type, "reduce int64 tensors instead");
      return of_integers(type, at::kLong, at::kLong, op);  // signed sums have the same bits
    case at::kBool:
      return of_bool(op);
    case at::kComplexFloat:
      return of_complex(type, at::kFloat, op);
    case at::kComplexDouble:
      return of_complex(type, at::kDouble, op);
    case at::kComplexHalf:
      return of_complex(type, at::kHalf, op);
    default:
      refuse(op.op_, type, "convert it to a type that has arithmetic, such as bfloat16");
  }
}

// Flattens first, because PyTorch changes a view's type only if its last dimension has stride 1.
at::Tensor viewed(const at::Tensor& tensor, at::ScalarType view) {
  return tensor.as_strided({tensor.numel()}, {1}).view(view);
}

void combine_bits(Op::RedOpType op, const at::Tensor& all, std::int64_t parts, std::int64_t stride,
                  std::int64_t offset, const at::Tensor& own) {
  const at::Tensor to = own.view(-1);
  const auto part = [&](std::int64_t i) { return all.narrow(0, i * stride + offset, to.numel()); };
  to.copy_(part(0));
  for (std::int64_t i = 1; i < parts; ++i)
    if (op == Op::BAND)
      to.bitwise_and_(part(i));
    else if (op == Op::BOR)
      to.bitwise_or_(part(i));
    else
      to.bitwise_xor_(part(i));
}

void check_tensors(const char* operation, const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& tensor : tensors) {
    SHOAL_CHECK(tensor.defined(), "{} of an undefined tensor", operation);
    if (tensor.layout() != at::kStrided)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} of a sparse tensor: shoal moves dense tensors only", operation),
                  "call to_dense() first, or use the gloo backend for it");
    SHOAL_CHECK(tensor.scalar_type() == tensors.front().scalar_type(),
                "{} of tensors of {} and {}: all must be of one dtype", operation,
                c10::toString(tensors.front().scalar_type()), c10::toString(tensor.scalar_type()));
  }
}

const at::Tensor& only(const char* operation, const std::vector<at::Tensor>& tensors) {
  SHOAL_CHECK(tensors.size() == 1, "{} takes one tensor for each rank, but got {}", operation,
              tensors.size());
  return tensors.front();
}

Flat flat_like(const std::vector<at::Tensor>& parts) {
  Flat flat;
  std::int64_t total = 0;
  const at::Tensor* first = nullptr;  // the first part that is not empty
  const char* end = nullptr;
  bool follow = true;
  for (const at::Tensor& part : parts) {
    flat.counts.push_back(part.numel());
    flat.equal = flat.equal && part.numel() == flat.counts.front();
    if (part.numel() == 0) continue;
    total += part.numel();
    const auto* begin = static_cast<const char*>(part.const_data_ptr());
    // On a device, adjacent parts may belong to two allocations, and one copy must not span both.
    follow = follow && part.is_contiguous() &&
             (!first || (begin == end && (part.is_cpu() || part.is_alias_of(*first))));
    end = begin + part.nbytes();
    if (!first) first = &part;
  }
  const at::TensorOptions options = parts.empty() ? at::TensorOptions() : parts.front().options();
  flat.is_alias = follow && first;
  if (flat.is_alias)
    flat.tensor = at::for_blob(first->data_ptr(), {total})
                      .options(options.requires_grad(false))
                      .target_device(first->device())
                      .make_tensor();
  else
    flat.tensor = at::empty({total}, options.requires_grad(false));
  return flat;
}

void gather_parts(const std::vector<at::Tensor>& parts, Flat& flat) {
  if (flat.is_alias) return;
  std::int64_t at = 0;
  for (const at::Tensor& part : parts) {
    flat.tensor.narrow(0, at, part.numel()).view_as(part).copy_(part);
    at += part.numel();
  }
}

void scatter_parts(const Flat& flat, std::vector<at::Tensor>& parts) {
  if (flat.is_alias) return;
  std::int64_t at = 0;
  for (at::Tensor& part : parts) {
    part.copy_(flat.tensor.narrow(0, at, part.numel()).view_as(part));
    at += part.numel();
  }
}

}  // namespace shoal::pytorch
