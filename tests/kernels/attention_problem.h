// Shared by the tests of attention: a problem of given sizes that any kernels can run, and a
// comparison of all of a device's kernels with the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "array.h"
#include <gtest/gtest.h>

#include "shoal/kernels/attention.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {

using testing::Array;
using testing::At;
using testing::close;
using testing::epsilon;
using testing::has_little_time;
using testing::make_test_kernels;
using testing::on_cuda;
using testing::Placed;

inline constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

struct Setting {
  std::int64_t batch = 2, heads = 3, queries = 20, keys = 20, head_dim = 16;
  DType dtype = DType::f32;
  bool causal = true, mask = false;
  float dropout = 0;
  std::int64_t key_heads = 0;
  std::optional<float> scale = {};                 // 1 / sqrt(head_dim)
  std::int64_t apart = 0;                          // elements between samples of q, k, v and dq
  std::vector<std::int32_t> lengths = {};          // keys of each batch row, instead of a mask
  std::vector<std::int32_t> mask_of_lengths = {};  // the same as bytes
  // AttentionShape::sequences, counted through the batch: where each begins, and where the last one
  // ends.
  std::vector<std::int32_t> sequences = {};
  std::int64_t window = 0;  // AttentionShape::window
  bool relative = false;    // with AttentionShape::relative_bias
  float soft_cap = 0;       // AttentionShape::soft_cap
};

struct Result {
  Array out, log_sum_exp, dq, dk, dv, dbias;
};

// q, k and v are slices of one fused [B, T, 3·H·D] projection if their lengths agree, so that
// strides are tested. Their gradients are slices of one such tensor too.
class Problem {
 public:
  explicit Problem(const Setting& s)
      : s_(s),
        width_(s.heads * s.head_dim),
        key_width_((s.key_heads > 0 ? s.key_heads : s.heads) * s.head_dim) {
    q_ = Array::random({s.batch, s.queries * 3 * width_ + s.apart}, s.dtype, 1);
    kv_ = Array::random({s.batch, s.keys * 3 * width_ + s.apart}, s.dtype, 2);
    dout_ = Array::random({s.batch, s.queries, width_}, s.dtype, 3);
    shape_.batch = s.batch;
    shape_.heads = s.heads;
    shape_.key_heads = s.key_heads;
    shape_.query_length = s.queries;
    shape_.key_length = s.keys;
    shape_.head_dim = s.head_dim;
    shape_.dtype = s.dtype;
    shape_.causal = s.causal;
    shape_.window = s.window;
    shape_.soft_cap = s.soft_cap;
    shape_.scale = s.scale.value_or(1 / std::sqrt(static_cast<float>(s.head_dim)));
    if (s.mask) {
      mask_ = Array({s.batch, s.keys}, DType::u8);
      for (std::int64_t b = 0; b < s.batch; ++b)  // the last batch row sees no key
        for (std::int64_t j = 0; j < s.keys; ++j)
          mask_.set(b * s.keys + j, b + 1 < s.batch && (j % 5 != 3 || j == 0) ? 1 : 0);
    }
    if (!s.mask_of_lengths.empty()) {
      mask_ = Array({s.batch, s.keys}, DType::u8);
      for (std::int64_t i = 0; i < mask_.count(); ++i)
        mask_.set(i, i % s.keys < s.mask_of_lengths[static_cast<std::size_t>(i / s.keys)] ? 1 : 0);
    }
    if (!s.lengths.empty()) {
      mask_ = Array({s.batch}, DType::i32);
      for (std::int64_t b = 0; b < s.batch; ++b)
        mask_.set(b, s.lengths[static_cast<std::size_t>(b)]);
    }
    if (!s.sequences.empty()) set_sequences();
    bias_ = Array::random({s.heads, s.queries + s.keys - 1}, DType::f32, 4);
    StepState state;
    state.step = 11;
    state_.set(state);
    shape_.dropout = s.dropout;
    shape_.site = {.seed = 5, .state = nullptr, .site = 77, .sample_first = 9, .sample_stride = 2};
    shape_.max_positions = 1001;  // rows of dropout begin within a block of four
    shape_.head_offset = 4;
  }

  // `keeps`: the forward pass records which elements dropout kept, if the kernels can.
  Result run(AttentionKernels& kernels, Device device, bool keeps = false) const {
    const At at_device(device);
    AttentionShape shape = shape_;
    shape.key_mask = mask_;
    if (!s_.sequences.empty()) shape.sequences = sequences_;
    shape.site.state = state_.get();
    if (s_.relative) shape.relative_bias = bias_;
    Array kept;
    if (const std::int64_t bytes = kernels.kept_bytes(shape); keeps && bytes > 0) {
      kept = Array({bytes}, DType::u8);
      shape.kept = kept;
    }
    Result r{Array({s_.batch, s_.queries, width_}, s_.dtype),
             Array({s_.batch, s_.heads, s_.queries}, DType::f32),
             Array({s_.batch, s_.queries * 3 * width_ + s_.apart}, s_.dtype),
             Array({s_.batch, s_.keys, key_width_}, s_.dtype),
             Array({s_.batch, s_.keys, key_width_}, s_.dtype),
             Array({s_.heads, s_.queries + s_.keys - 1}, DType::f32)};
    if (s_.relative) shape.relative_bias_gradient = r.dbias;
    const auto fused = [&](const Array& a, std::int64_t part, std::int64_t length) {
      return HeadsView{at(a, part * width_), length * 3 * width_ + s_.apart, 3 * width_};
    };
    const auto plain = [&](const Array& a, std::int64_t length, std::int64_t width) {
      return MutableHeadsView{at(a, 0), length * width, width};
    };
    const HeadsView q = fused(q_, 0, s_.queries), k = fused(kv_, 1, s_.keys),
                    v = fused(kv_, 2, s_.keys);
    const MutableHeadsView out = plain(r.out, s_.queries, width_);
    kernels.attention(shape, q, k, v, out, r.log_sum_exp, {});
    kernels.attention_backward(shape, q, k, v, {out.data, out.batch_stride, out.row_stride},
                               r.log_sum_exp, {dout_.data(), s_.queries * width_, width_},
                               {at(r.dq, 0), s_.queries * 3 * width_ + s_.apart, 3 * width_},
                               plain(r.dk, s_.keys, key_width_), plain(r.dv, s_.keys, key_width_),
                               {});
    return r;
  }

 private:
  // Rows with fewer sequences than others have empty ones at their end.
  void set_sequences() {
    std::vector<std::vector<std::int64_t>> rows(static_cast<std::size_t>(s_.batch));
    for (std::size_t i = 0; i + 1 < s_.sequences.size(); ++i) {
      const std::int64_t begin = s_.sequences[i], row = std::min(begin / s_.queries, s_.batch - 1);
      rows[static_cast<std::size_t>(row)].push_back(begin - row * s_.queries);
    }
    std::size_t most = 0;
    for (const auto& row : rows) most = std::max(most, row.size());
    sequences_ = Array({s_.batch, static_cast<std::int64_t>(most)}, DType::i32);
    for (std::size_t row = 0; row < rows.size(); ++row)
      for (std::size_t i = 0; i < most; ++i)
        sequences_.set(static_cast<std::int64_t>(row * most + i),
                       i < rows[row].size() ? static_cast<double>(rows[row][i])
                                            : static_cast<double>(s_.queries));
  }
  void* at(const Array& a, std::int64_t element) const {
    return static_cast<char*>(a.data()) + static_cast<std::size_t>(element) * size_of(s_.dtype);
  }

  Setting s_;
  std::int64_t width_, key_width_;
  Array q_, kv_, dout_, mask_, sequences_, bias_;
  Placed<StepState> state_;
  AttentionShape shape_;
};

class AttentionTest : public ::testing::Test {
 protected:
  void check(const Setting& s) {
    SCOPED_TRACE(::testing::Message()
                 << s.batch << " x " << s.heads << " heads, " << s.queries << " queries, " << s.keys
                 << " keys of " << s.head_dim << " " << to_string(s.dtype)
                 << (s.causal ? " causal" : "") << (s.mask ? " mask" : "")
                 << ::testing::PrintToString(s.lengths) << ::testing::PrintToString(s.sequences)
                 << " window " << s.window << " cap " << s.soft_cap
                 << (s.relative ? " relative" : "") << " dropout " << s.dropout << " key heads "
                 << s.key_heads);
    const Problem problem(s);
    const Result expected = problem.run(*make_reference_attention(), Device::cpu());
    if (on_cuda()) return compare(s, problem, make_test_kernels()->attention(), expected);
    for (bool pairs : {true, false}) {
      const auto cpu = make_cpu_attention({2, memory_.get()}, pairs);
      compare(s, problem, *cpu, expected);
      const Result one = problem.run(*make_cpu_attention({1, memory_.get()}, pairs), Device::cpu()),
                   many =
                       problem.run(*make_cpu_attention({7, memory_.get()}, pairs), Device::cpu());
      EXPECT_TRUE(one.out.same_bytes(many.out) && one.dk.same_bytes(many.dk))
          << "depends on the number of threads";
    }
  }

  static void compare(const Setting& s, const Problem& problem, AttentionKernels& kernels,
                      const Result& expected) {
    const Device device = shoal::testing::here();
    const Result ours = problem.run(kernels, device), again = problem.run(kernels, device);
    const double tolerance = 4 * epsilon(s.dtype) + 1e-5;
    EXPECT_TRUE(close(ours.out, expected.out, tolerance));
    EXPECT_TRUE(close(ours.log_sum_exp, expected.log_sum_exp, 1e-5));
    // In bf16, the probabilities, their gradients and delta are rounded as well.
    const double gradient = 2 * tolerance;
    // Unused columns of dq's fused tensor stay poisoned in both.
    EXPECT_TRUE(close_or_poisoned(ours.dq, expected.dq, gradient));
    EXPECT_TRUE(close(ours.dk, expected.dk, gradient));
    EXPECT_TRUE(close(ours.dv, expected.dv, gradient));
    if (s.relative) {
      EXPECT_TRUE(close(ours.dbias, expected.dbias, gradient));
      EXPECT_TRUE(again.dbias.same_bytes(ours.dbias)) << "a second call differs";
    }
    EXPECT_TRUE(again.out.same_bytes(ours.out) && again.dq.same_bytes(ours.dq) &&
                again.dk.same_bytes(ours.dk) && again.dv.same_bytes(ours.dv))
        << "a second call differs";
    if (s.dropout == 0) return;
    const Result kept = problem.run(kernels, device, true);
    EXPECT_TRUE(kept.out.same_bytes(ours.out) && kept.dq.same_bytes(ours.dq) &&
                kept.dk.same_bytes(ours.dk) && kept.dv.same_bytes(ours.dv))
        << "depends on whether forward records what it kept";
  }

  // True on GPUs that have no fused kernels and no bf16.
  static bool before_sm80() {
    try {
      make_test_kernels()->check_computes(DType::bf16);
    } catch (const Error&) {
      return true;
    }
    return false;
  }

  // Kernels that `test` makes read the variable, because `test` runs on a new thread, which makes
  // its own kernels.
  static void with_variable(const char* name, const char* value,
                            const std::function<void()>& test) {
    ::setenv(name, value, 1);
    std::thread([&] {
      try {
        test();
      } catch (const std::exception& e) {
        ADD_FAILURE() << e.what();
      }
    }).join();
    ::unsetenv(name);
  }

  static ::testing::AssertionResult close_or_poisoned(const Array& actual, const Array& expected,
                                                      double tolerance) {
    for (std::int64_t i = 0; i < expected.count(); ++i) {
      if (std::isnan(expected.at(i)) && std::isnan(actual.at(i))) continue;
      if (!(std::abs(actual.at(i) - expected.at(i)) <= tolerance * (std::abs(expected.at(i)) + 1)))
        return ::testing::AssertionFailure()
               << "element " << i << ": " << actual.at(i) << ", not " << expected.at(i);
    }
    return ::testing::AssertionSuccess();
  }

  std::unique_ptr<MemoryResource> memory_ = make_host_memory();
};

}  // namespace shoal::kernels
