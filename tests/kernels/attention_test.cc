#include "shoal/kernels/attention.h"

#include <cstdlib>
#include <functional>
#include <optional>
#include <thread>

#include "array.h"
#include <hwy/targets.h>

#include "shoal/kernels/attention_checks.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

using testing::Array;
using testing::At;
using testing::close;
using testing::epsilon;
using testing::has_little_time;
using testing::make_test_kernels;
using testing::on_cuda;
using testing::Placed;

struct Setting {
  std::int64_t batch = 2, heads = 3, queries = 20, keys = 20, head_dim = 16;
  DType dtype = DType::f32;
  bool causal = true, mask = false;
  float dropout = 0;
  std::int64_t key_heads = 0;
  std::optional<float> scale = {};  // 1 / sqrt(head_dim)
  std::int64_t apart = 0;           // elements between samples of q, k, v and dq
};

struct Result {
  Array out, log_sum_exp, dq, dk, dv;
};

// q, k and v as slices of one fused [B, T, 3·H·D] projection where lengths agree, so that strides
// are exercised; gradients into one such tensor too.
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
    shape_.scale = s.scale.value_or(1 / std::sqrt(static_cast<float>(s.head_dim)));
    if (s.mask) {
      mask_ = Array({s.batch, s.keys}, DType::u8);
      for (std::int64_t b = 0; b < s.batch; ++b)  // the last batch row sees nothing
        for (std::int64_t j = 0; j < s.keys; ++j)
          mask_.set(b * s.keys + j, b + 1 < s.batch && (j % 5 != 3 || j == 0) ? 1 : 0);
    }
    StepState state;
    state.step = 11;
    state_.set(state);
    shape_.dropout = s.dropout;
    shape_.site = {.seed = 5, .state = nullptr, .site = 77, .sample_first = 9, .sample_stride = 2};
    shape_.max_positions = 1001;  // rows of dropout begin within a block of four
    shape_.head_offset = 4;
  }

  // `keeps`: forward notes what it kept, where the kernels can.
  Result run(AttentionKernels& kernels, Device device, bool keeps = false) const {
    const At at_device(device);
    AttentionShape shape = shape_;
    shape.key_mask = mask_;
    shape.site.state = state_.get();
    Array kept;
    if (const std::int64_t bytes = kernels.kept_bytes(shape); keeps && bytes > 0) {
      kept = Array({bytes}, DType::u8);
      shape.kept = kept;
    }
    Result r{Array({s_.batch, s_.queries, width_}, s_.dtype),
             Array({s_.batch, s_.heads, s_.queries}, DType::f32),
             Array({s_.batch, s_.queries * 3 * width_ + s_.apart}, s_.dtype),
             Array({s_.batch, s_.keys, key_width_}, s_.dtype),
             Array({s_.batch, s_.keys, key_width_}, s_.dtype)};
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
  void* at(const Array& a, std::int64_t element) const {
    return static_cast<char*>(a.data()) + static_cast<std::size_t>(element) * size_of(s_.dtype);
  }

  Setting s_;
  std::int64_t width_, key_width_;
  Array q_, kv_, dout_, mask_;
  Placed<StepState> state_;
  AttentionShape shape_;
};

class AttentionTest : public ::testing::Test {
 protected:
  void check(const Setting& s) {
    SCOPED_TRACE(::testing::Message()
                 << s.batch << " x " << s.heads << " heads, " << s.queries << " queries, " << s.keys
                 << " keys of " << s.head_dim << " " << to_string(s.dtype)
                 << (s.causal ? " causal" : "") << (s.mask ? " mask" : "") << " dropout "
                 << s.dropout << " key heads " << s.key_heads);
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
    // bf16: the probabilities, their gradients and delta are rounded on the way.
    const double gradient = 2 * tolerance;
    // Columns of dq's fused tensor that belong to nobody stay poisoned in both.
    EXPECT_TRUE(close_or_poisoned(ours.dq, expected.dq, gradient));
    EXPECT_TRUE(close(ours.dk, expected.dk, gradient));
    EXPECT_TRUE(close(ours.dv, expected.dv, gradient));
    EXPECT_TRUE(again.out.same_bytes(ours.out) && again.dq.same_bytes(ours.dq) &&
                again.dk.same_bytes(ours.dk) && again.dv.same_bytes(ours.dv))
        << "a second call differs";
    if (s.dropout == 0) return;
    const Result kept = problem.run(kernels, device, true);
    EXPECT_TRUE(kept.out.same_bytes(ours.out) && kept.dq.same_bytes(ours.dq) &&
                kept.dk.same_bytes(ours.dk) && kept.dv.same_bytes(ours.dv))
        << "depends on who remembers what was dropped";
  }

  // Where the fused kernels have no code that could run, nor anybody bf16.
  static bool before_sm80() {
    try {
      make_test_kernels()->check_computes(DType::bf16);
    } catch (const Error&) {
      return true;
    }
    return false;
  }

  // Kernels that `test` makes read the variable so; a thread makes its own.
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

TEST_F(AttentionTest, FusedKernelsAreRefusedBeforeSm80) {
  if (!on_cuda() || !before_sm80()) GTEST_SKIP() << "needs a GPU before sm_80";
  ::setenv("SHOAL_CUDA_ATTENTION", "own", 1);
  std::string said;
  std::thread([&] {
    const Setting s;
    const Problem problem(s);
    try {
      problem.run(make_test_kernels()->attention(), shoal::testing::here());
    } catch (const Error& error) {
      said = error.what();
    }
  }).join();
  ::unsetenv("SHOAL_CUDA_ATTENTION");
  EXPECT_NE(said.find("fused kernels need compute capability 8.0, and cuda:0 has 7."),
            std::string::npos)
      << said;
}

constexpr DType kDtypes[] = {DType::f32, DType::bf16, DType::f16};

TEST_F(AttentionTest, SmallAndOddSizes) {
  for (DType dtype : kDtypes)
    for (bool causal : {false, true}) {
      for (std::int64_t length : {1, 2, 31, 65})
        for (std::int64_t dim : {1, 7, 16, 40}) {
          if (has_little_time() && dim != 7 && dim != 40) continue;
          check({.queries = length,
                 .keys = length,
                 .head_dim = dim,
                 .dtype = dtype,
                 .causal = causal});
        }
      check({.queries = 3, .keys = 40, .dtype = dtype, .causal = causal});   // with a cache
      check({.queries = 40, .keys = 33, .dtype = dtype, .causal = causal});  // some see nothing
    }
}

TEST_F(AttentionTest, SizesOfHeads) {
  for (DType dtype : kDtypes)
    for (std::int64_t dim : {64, 72, 128, 256}) {
      check({.batch = 1, .heads = 1, .queries = 130, .keys = 130, .head_dim = dim, .dtype = dtype});
      check({.batch = 1, .heads = 1, .queries = 64, .keys = 96, .head_dim = dim, .dtype = dtype});
    }
}

// As large language models have them; on a GPU of 99 KiB of shared memory forward is by other
// kernels than backward.
TEST_F(AttentionTest, MaskedHeadsOf128) {
  for (DType dtype : {DType::f32, DType::bf16})
    check({.heads = 1,
           .queries = 70,
           .keys = 70,
           .head_dim = 128,
           .dtype = dtype,
           .mask = true,
           .dropout = 0.2f});
}

// A GPU has two implementations; the one that is not its first choice must do everything.
TEST_F(AttentionTest, OwnKernelsOfAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  if (before_sm80()) GTEST_SKIP() << "needs compute capability 8.0";
  with_variable("SHOAL_CUDA_ATTENTION", "own", [this] {
    for (DType dtype : {DType::bf16, DType::f16})
      for (bool causal : {false, true})
        for (std::int64_t dim : {16, 64, 72, 128, 200, 256}) {
          if (has_little_time() && dim != 72) continue;
          check({.queries = 150, .keys = 150, .head_dim = dim, .dtype = dtype, .causal = causal});
          check({.queries = 64,
                 .keys = 131,
                 .head_dim = dim,
                 .dtype = dtype,
                 .causal = causal,
                 .mask = true,
                 .dropout = 0.2f});
        }
  });
}

// What a GPU before sm_80 does, and others where heads are large.
TEST_F(AttentionTest, ProductsOfScoresOnAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  with_variable("SHOAL_CUDA_ATTENTION", "products", [this] {
    for (DType dtype : {DType::f32, DType::f16})
      for (bool causal : {false, true}) {
        check({.queries = 70, .keys = 70, .head_dim = 7, .dtype = dtype, .causal = causal});
        check({.queries = 64,
               .keys = 131,
               .head_dim = 16,
               .dtype = dtype,
               .causal = causal,
               .mask = true,
               .dropout = 0.2f});
        check({.queries = 90, .keys = 33, .dtype = dtype, .causal = causal});
      }
    check({.heads = 6, .queries = 37, .keys = 37, .dtype = DType::f16, .key_heads = 2});
    check({.queries = 0, .keys = 5, .causal = false});
    check({.queries = 5, .keys = 0, .causal = false});
  });
  check({.batch = 1, .heads = 2, .queries = 20, .keys = 20, .head_dim = 264, .dtype = DType::f16});
}

// 1 MiB: two batch rows of four, one of two heads, and pieces of a head's queries.
TEST_F(AttentionTest, ProductsInPiecesOnAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  with_variable("SHOAL_CUDA_ATTENTION", "products", [this] {
    with_variable("SHOAL_CUDA_ATTENTION_WORKSPACE", "1", [this] {
      check({.batch = 4, .heads = 4, .queries = 100, .keys = 100, .dtype = DType::f16});
      check({.batch = 1, .heads = 2, .queries = 260, .keys = 260, .dtype = DType::f16});
      for (DType dtype : {DType::f32, DType::f16})
        check({.batch = 1,
               .heads = 1,
               .queries = 400,
               .keys = 420,
               .dtype = dtype,
               .causal = dtype == DType::f16,
               .dropout = 0.1f});
    });
  });
}

// Of 7 samples 3, 3 and 1; of 8 samples 2 at a time.
TEST_F(AttentionTest, GradientInPiecesOnAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  with_variable("SHOAL_CUDA_ATTENTION_WORKSPACE", "1", [this] {
    for (std::int64_t batch : {7, 8})
      check({.batch = batch,
             .heads = 4,
             .queries = 180,
             .keys = 180,
             .head_dim = 32,
             .dtype = DType::bf16});
  });
}

// As in generation: nobody wants the sums, and a few queries meet a cache with room for more keys.
TEST_F(AttentionTest, InferenceKeepsNoSums) {
  const std::int64_t heads = 2, dim = 8, width = heads * dim, capacity = 70, batch = 2;
  const auto kernels = make_test_kernels();
  for (DType dtype : kDtypes)
    for (const auto& [queries, keys] :
         {std::pair<std::int64_t, std::int64_t>{12, 12}, {1, 6}, {1, 1}, {4, 11}, {65, 70}}) {
      const Array q = Array::random({batch, queries, width}, dtype, 1),
                  k = Array::random({batch, capacity, width}, dtype, 2),
                  v = Array::random({batch, capacity, width}, dtype, 3);
      const Array kept({batch, queries, width}, dtype), alone({batch, queries, width}, dtype),
          sums({batch, heads, queries}, DType::f32);
      AttentionShape shape;
      shape.batch = batch;
      shape.heads = heads;
      shape.query_length = queries;
      shape.key_length = keys;
      shape.head_dim = dim;
      shape.dtype = dtype;
      shape.causal = true;
      const auto run = [&](const Array& out, View log_sum_exp) {
        kernels->attention().attention(shape, {q.data(), queries * width, width},
                                       {k.data(), capacity * width, width},
                                       {v.data(), capacity * width, width},
                                       {out.data(), queries * width, width}, log_sum_exp, {});
      };
      run(kept, sums);
      run(alone, {});
      EXPECT_TRUE(alone.same_bytes(kept)) << queries << " queries of " << to_string(dtype);
      for (std::int64_t i = 0; i < kept.count(); ++i) ASSERT_FALSE(std::isnan(kept.at(i)));
    }
}

// Below 0 the smallest score counts most; at 0 all that are seen count alike.
TEST_F(AttentionTest, ScalesOfNoughtAndBelow) {
  for (DType dtype : kDtypes)
    for (float scale : {-0.3f, 0.0f})
      check({.queries = 37, .keys = 37, .dtype = dtype, .mask = true, .scale = scale});
}

// Vectors suit the first sample, and not those after it.
TEST_F(AttentionTest, SamplesBeginAnywhere) {
  for (DType dtype : kDtypes)
    for (std::int64_t key_heads : {0, 2})
      check({.heads = 4, .dtype = dtype, .key_heads = key_heads, .apart = 1});
}

TEST_F(AttentionTest, HeadsShareKeyHeads) {
  for (DType dtype : kDtypes)
    for (std::int64_t key_heads : {1, 2, 3, 6}) {
      check({.heads = 6, .queries = 37, .keys = 37, .dtype = dtype, .key_heads = key_heads});
      check({.heads = 6,
             .queries = 5,
             .keys = 70,
             .head_dim = 7,
             .dtype = dtype,
             .mask = true,
             .dropout = 0.2f,
             .key_heads = key_heads});
    }
  AttentionShape shape;
  shape.heads = 6;
  shape.key_heads = 4;
  EXPECT_THROW(check_attention(shape), Error);
}

TEST_F(AttentionTest, EmptySizes) {
  check({.batch = 0});
  check({.queries = 0, .keys = 5, .causal = false});
  check({.queries = 5, .keys = 0, .causal = false});
}

TEST_F(AttentionTest, SeveralKeyBlocks) {
  for (DType dtype : {DType::f32, DType::bf16})
    for (bool causal : {false, true})
      check({.batch = 1,
             .heads = 2,
             .queries = 610,
             .keys = 610,
             .head_dim = 8,
             .dtype = dtype,
             .causal = causal,
             .mask = false,
             .dropout = 0.2f});
}

TEST_F(AttentionTest, KeyMask) {
  for (DType dtype : kDtypes)
    for (bool causal : {false, true})
      check({.queries = 37, .keys = 37, .dtype = dtype, .causal = causal, .mask = true});
}

TEST_F(AttentionTest, DropoutFollowsTheCoordinates) {
  for (DType dtype : kDtypes)
    for (float dropout : {0.1f, 0.5f})
      check({.queries = 71, .keys = 71, .head_dim = 16, .dtype = dtype, .dropout = dropout});
}

// The code of older machines, on this one.
TEST_F(AttentionTest, OtherInstructionSets) {
  SHOAL_CPU_ONLY("instruction sets");
  for (std::int64_t target : {HWY_AVX2, HWY_SSE4, HWY_SSSE3}) {
    if (!(hwy::SupportedTargets() & target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    for (DType dtype : kDtypes) {
      check({.queries = 37, .keys = 37, .head_dim = 20, .dtype = dtype, .mask = true});
      check({.queries = 70, .keys = 70, .head_dim = 9, .dtype = dtype, .dropout = 0.3f});
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

// A query of NaN is not one that sees no key, whatever the instruction set's max makes of NaN.
TEST_F(AttentionTest, AQueryOfNaNGivesNaN) {
  const std::int64_t dim = 8;
  for (std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_SSSE3}) {
    if (!(hwy::SupportedTargets() & target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    const auto cuda = on_cuda() ? make_test_kernels() : nullptr;
    const auto cpu = make_cpu_attention({2, memory_.get()});
    AttentionKernels& kernels = cuda ? cuda->attention() : *cpu;
    for (DType dtype : kDtypes)
      for (std::int64_t length : {1, 5, 16, 21, 600}) {
        Array q = Array::random({length, dim}, dtype, 1);
        const Array k = Array::random({length, dim}, dtype, 2),
                    v = Array::random({length, dim}, dtype, 3);
        const Array out({length, dim}, dtype), log_sum_exp({length}, DType::f32);
        for (std::int64_t d = 0; d < dim; ++d) q.set((length - 1) * dim + d, std::nan(""));
        AttentionShape shape;
        shape.batch = shape.heads = 1;
        shape.query_length = shape.key_length = length;
        shape.head_dim = dim;
        shape.dtype = dtype;
        shape.causal = true;
        kernels.attention(shape, {q.data(), 0, dim}, {k.data(), 0, dim}, {v.data(), 0, dim},
                          {out.data(), 0, dim}, log_sum_exp, {});
        EXPECT_TRUE(std::isnan(log_sum_exp.at(length - 1)));
        for (std::int64_t i = 0; i < length * dim; ++i)
          ASSERT_EQ(std::isnan(out.at(i)), i >= (length - 1) * dim)
              << hwy::TargetName(target) << " " << to_string(dtype) << " length " << length
              << " element " << i;
      }
    hwy::SetSupportedTargetsForTest(0);
    if (on_cuda()) break;
  }
}

TEST_F(AttentionTest, RejectsDropoutWithoutCoordinates) {
  AttentionShape shape;
  shape.batch = shape.heads = shape.query_length = shape.key_length = shape.head_dim = 1;
  shape.dropout = 0.1f;
  const auto kernels = make_test_kernels(1);
  EXPECT_THROW(kernels->attention().attention(shape, {}, {}, {}, {}, {}, {}), Error);
}

}  // namespace
}  // namespace shoal::kernels
