// Elementwise operations, copies and dropout. Floating tensors may be f32, bf16 or f16 unless
// stated otherwise; arithmetic is f32. All may run in place (out == an input).
#pragma once

#include "shoal/kernels/matmul.h"
#include "shoal/kernels/random.h"

namespace shoal::kernels {

// Maps the rows of a [rows, C] activation to samples and global coordinates.
struct DropoutArgs {
  float probability = 0;  // in [0, 1); kept elements are scaled by 1 / (1 - probability)
  RandomSite site;
  std::int64_t rows_per_sample = 1;  // row r belongs to batch row r / rows_per_sample ...
  std::int64_t row_offset = 0;       // ... at position row_offset + r % rows_per_sample
  std::int64_t column_offset = 0;    // global index of local column 0
  std::int64_t columns = 0;          // global columns; 0: the tensor's own
  // Optional, i32 [rows]: row r counts as row rows[r] above, where only some rows of an activation
  // are computed. Results of negative entries are unspecified.
  ConstView rows = {};
};

class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;

  virtual void add(ConstView a, ConstView b, View out, Stream stream) = 0;
  virtual void multiply(ConstView a, ConstView b, View out, Stream stream) = 0;
  virtual void scale(ConstView x, float factor, View out, Stream stream) = 0;
  // y += alpha * x
  virtual void axpy(float alpha, ConstView x, View y, Stream stream) = 0;
  // out = x converted, any pair of dtypes. To bf16 or f16: rounds to nearest even; f64 and integers
  // go through f32, as in PyTorch. Float to integer: toward zero, saturating, NaN gives 0. Integers
  // wrap.
  virtual void cast(ConstView x, View out, Stream stream) = 0;
  // x [.., rows, columns] -> out [.., columns, rows], any dtype.
  virtual void transpose(ConstView x, View out, Stream stream) = 0;

  // out = x + bias for each row; bias [C] is f32 or has x's dtype.
  virtual void add_bias(ConstView x, ConstView bias, View out, Stream stream) = 0;
  virtual void activation(Activation kind, ConstView x, View out, Stream stream) = 0;
  // dx = dy * activation'(x); x is the value before the activation.
  virtual void activation_backward(Activation kind, ConstView x, ConstView dy, View dx,
                                   Stream stream) = 0;

  // out = silu(gate) * up, silu(x) = x / (1 + e^-x) (Shazeer, "GLU Variants Improve Transformer",
  // 2020).
  virtual void swiglu(ConstView gate, ConstView up, View out, Stream stream) = 0;
  // dgate = dout * up * silu'(gate), dup = dout * silu(gate). dgate may alias gate, and dup may
  // alias up.
  virtual void swiglu_backward(ConstView gate, ConstView up, ConstView dout, View dgate, View dup,
                               Stream stream) = 0;

  // out = dropout(x). Backward calls it too, with the gradient as x: the mask is recomputed, never
  // stored.
  virtual void dropout(const DropoutArgs& args, ConstView x, View out, Stream stream) = 0;
  // out = residual + dropout(x): the sum at the end of a transformer's sub-layer.
  virtual void dropout_add(const DropoutArgs& args, ConstView x, ConstView residual, View out,
                           Stream stream) = 0;

  // Normal (mean, std) or uniform [low, high) values for a flat f32 tensor. Element i of the tensor
  // is element e = first_element + i of sample `sample_first` of the site, so shards agree with the
  // whole tensor.
  // Uniform: low + (high - low) * uniform(bits(e)).
  // Normal: Box-Muller, in f32, on elements (2k, 2k + 1), k = e / 2, with
  //   u = (bits(2k) + 1/2) / 2^32, rounded to f32, and a = 2*pi*uniform(bits(2k + 1)).
  // Element 2k is mean + std*sqrt(-2 ln u)*cos(a), element 2k + 1 mean + std*sqrt(-2 ln u)*sin(a).
  virtual void fill_normal(View out, float mean, float std, const RandomSite& site,
                           std::uint64_t first_element, Stream stream) = 0;
  virtual void fill_uniform(View out, float low, float high, const RandomSite& site,
                            std::uint64_t first_element, Stream stream) = 0;
  virtual void fill(View out, float value, Stream stream) = 0;
};

}  // namespace shoal::kernels
