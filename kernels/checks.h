// Argument checks shared by all implementations of a family, so that every device gives the same
// message. Messages start with `operation`: "layer_norm: gamma is [4], expected [8]".
#pragma once

#include "shoal/kernels/kernels.h"

namespace shoal::kernels::check {

// Checks that the view has this shape and, unless it is empty, is defined.
void shape(const char* operation, const char* name, const ConstView& view, const Shape& expected);
void dtype(const char* operation, const char* name, const ConstView& view, DType expected);
// f32, bf16 or f16.
void training_float(const char* operation, const char* name, const ConstView& view);
// f32, or the dtype `other`.
void f32_or(const char* operation, const char* name, const ConstView& view, DType other);

// a, b and out share one shape and one floating dtype (f32, bf16 or f16).
void same(const char* operation, const ConstView& a, const ConstView& b);
void transpose(const ConstView& x, const ConstView& out);
void add_bias(const ConstView& x, const ConstView& bias, const ConstView& out);
void dropout(const char* operation, const DropoutArgs& args, const ConstView& x);
void fill(const char* operation, const ConstView& out);

void layer_norm(const LayerNormArgs& args);
void layer_norm_backward(const LayerNormBackwardArgs& args);
void layer_norm_weight_gradient(const ConstView& dy, const ConstView& x, const ConstView& mean,
                                const ConstView& rstd, const ConstView& dgamma,
                                const ConstView& dbeta);

void embedding(const ConstView& ids, const ConstView& table, const ConstView& out);
void embedding_backward(const ConstView& ids, const ConstView& dout, const ConstView& dtable);
void position_backward(const ConstView& dout, const ConstView& dtable);
void rotary(const RotaryArgs& args);
// `some`: the n selected rows; `x`: the matrix.
void select_rows(const char* operation, const RowSelection& rows, const ConstView& some,
                 const ConstView& x);
// Row numbers must be below this.
std::int64_t row_limit(const RowSelection& rows, const ConstView& x);
void count_positions(const ConstView& ids, const ConstView& out);
// Number of [rows, columns] matrices in x [.., rows, columns].
std::int64_t matrices(const ConstView& x);
// Throws with the position and the value of the first id outside [0, vocabulary).
void ids(const char* operation, const ConstView& ids, std::int64_t vocabulary);

void adamw(const char* operation, const AdamWArgs& args);
void lion(std::span<const AdamWArgs> tensors);
// Tensors of one call must agree in everything but memory and weight decay.
void alike(const char* operation, std::span<const AdamWArgs> tensors);
void sgd(const SgdArgs& args);
void lamb(const LambArgs& args);
void adafactor(const AdafactorArgs& args);
void sum_of_squares(const ConstView& x, const ConstView& out);
void begin_update(const BeginUpdateArgs& args);

void reduce(std::span<const void* const> sources, std::span<void* const> destinations,
            std::int64_t count);
void reduce_widened(DType dtype, std::span<const void* const> sources, const float* destination,
                    std::int64_t count);
void scale(DType dtype, std::int64_t count);

}  // namespace shoal::kernels::check
