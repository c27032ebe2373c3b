#include "shoal/kernels/attention.h"

#include <string>
#include <utility>

#include "attention_problem.h"
#include <hwy/targets.h>

#include "shoal/kernels/attention_checks.h"

namespace shoal::kernels {
namespace {

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

TEST_F(AttentionTest, SupportsSmallAndOddSizes) {
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
      check({.queries = 40, .keys = 33, .dtype = dtype, .causal = causal});  // some see no key
    }
}

TEST_F(AttentionTest, SupportsAllHeadSizes) {
  for (DType dtype : kDtypes)
    for (std::int64_t dim : {64, 72, 128, 256}) {
      check({.batch = 1, .heads = 1, .queries = 130, .keys = 130, .head_dim = dim, .dtype = dtype});
      check({.batch = 1, .heads = 1, .queries = 64, .keys = 96, .head_dim = dim, .dtype = dtype});
    }
}

// Head sizes of large language models. On a GPU with 99 KiB of shared memory, forward and backward
// use different kernels.
TEST_F(AttentionTest, SupportsMaskedHeadsOf128) {
  for (DType dtype : {DType::f32, DType::bf16})
    check({.heads = 1,
           .queries = 70,
           .keys = 70,
           .head_dim = 128,
           .dtype = dtype,
           .mask = true,
           .dropout = 0.2f});
}

// A GPU has two implementations. The one that is not its first choice must also support everything.
TEST_F(AttentionTest, OwnKernelsSupportEverythingOnAGpu) {
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

// GPUs before sm_80 use this, and others if heads are large.
TEST_F(AttentionTest, ProductsOfScoresAreCorrectOnAGpu) {
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

// 1 MiB of workspace: two of four batch rows, one of two heads, and pieces of a head's queries.
TEST_F(AttentionTest, ProductsInPiecesAreCorrectOnAGpu) {
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

// 7 samples in pieces of 3, 3 and 1; 8 samples in pieces of 2.
TEST_F(AttentionTest, GradientInPiecesIsCorrectOnAGpu) {
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

// As in generation: the sums are not needed, and a few queries attend to a cache with free slots.
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

// Caps far below the scores, near them and far above. The other options: a mask and dropout, a
// cache, windows, lengths, sequences, shared key heads, heads of Gemma 2's size, and several blocks
// of keys.
TEST_F(AttentionTest, SoftCapsBoundTheScores) {
  const auto check_all = [this](DType dtype, bool causal) {
    const auto capped = [&](Setting s) {
      s.dtype = dtype;
      s.causal = causal;
      if (!s.scale) s.scale = 1.0f;
      if (s.soft_cap == 0) s.soft_cap = 0.7f;
      check(s);
    };
    for (const auto& [cap, scale] : {std::pair{0.05f, 1.5f}, {1.0f, 1.5f}, {50.0f, 0.3f}})
      capped({.queries = 37, .keys = 37, .scale = scale, .soft_cap = cap});
    for (const float scale : {-0.4f, 0.0f}) capped({.queries = 37, .keys = 37, .scale = scale});
    capped({.batch = 3, .queries = 130, .keys = 130, .head_dim = 7, .mask = true, .dropout = 0.3f});
    for (const std::int64_t queries : {1, 3, 66})
      capped({.queries = queries, .keys = 140, .window = 65});
    capped({.queries = 40, .keys = 33});
    capped({.batch = 3, .queries = 80, .keys = 80, .dropout = 0.2f, .lengths = {0, 31, 80}});
    capped({.queries = 80, .keys = 80, .sequences = {0, 3, 80, 81, 160}, .window = 9});
    capped({.heads = 6, .queries = 37, .keys = 37, .key_heads = 2});
    capped({.batch = 1, .heads = 1, .queries = 70, .keys = 70, .head_dim = 256, .scale = 0.1f});
    if (!has_little_time())
      capped({.batch = 1, .heads = 2, .queries = 610, .keys = 610, .head_dim = 8, .dropout = 0.2f});
  };
  for (DType dtype : kDtypes)
    for (bool causal : {false, true}) check_all(dtype, causal);
  if (!on_cuda()) return;
  with_variable("SHOAL_CUDA_ATTENTION", "products", [&] {
    check_all(DType::f32, true);
    check_all(DType::f16, false);
  });
}

TEST_F(AttentionTest, RefusesSoftCapsThatAreNone) {
  AttentionShape shape;
  shape.batch = 1, shape.heads = 3, shape.query_length = shape.key_length = 20;
  shape.head_dim = 4;
  shape.soft_cap = 2;
  check_attention(shape);
  const Array bias({3, 39}, DType::f32);
  shape.relative_bias = bias;
  EXPECT_THROW(check_attention(shape), Error);
  shape.relative_bias = {};
  for (const float cap : {-1.0f, std::nanf(""), INFINITY}) {
    shape.soft_cap = cap;
    EXPECT_THROW(check_attention(shape), Error) << cap;
  }
}

// With a negative scale the smallest score has the most weight. With 0 all visible keys have the
// same weight.
TEST_F(AttentionTest, SupportsZeroAndNegativeScales) {
  for (DType dtype : kDtypes)
    for (float scale : {-0.3f, 0.0f})
      check({.queries = 37, .keys = 37, .dtype = dtype, .mask = true, .scale = scale});
}

// The first sample is aligned for vectors, and later ones are not.
TEST_F(AttentionTest, SamplesMayBeUnaligned) {
  for (DType dtype : kDtypes)
    for (std::int64_t key_heads : {0, 2})
      check({.heads = 4, .dtype = dtype, .key_heads = key_heads, .apart = 1});
}

TEST_F(AttentionTest, QueryHeadsMayShareKeyHeads) {
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

TEST_F(AttentionTest, SupportsEmptySizes) {
  check({.batch = 0});
  check({.queries = 0, .keys = 5, .causal = false});
  check({.queries = 5, .keys = 0, .causal = false});
}

TEST_F(AttentionTest, SupportsSeveralKeyBlocks) {
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

TEST_F(AttentionTest, FollowsTheKeyMask) {
  for (DType dtype : kDtypes)
    for (bool causal : {false, true})
      check({.queries = 37, .keys = 37, .dtype = dtype, .causal = causal, .mask = true});
}

TEST_F(AttentionTest, DropoutFollowsTheCoordinates) {
  for (DType dtype : kDtypes)
    for (float dropout : {0.1f, 0.5f})
      check({.queries = 71, .keys = 71, .head_dim = 16, .dtype = dtype, .dropout = dropout});
}

// Runs the code for older machines on this one.
TEST_F(AttentionTest, OtherInstructionSetsAgree) {
  SHOAL_CPU_ONLY("instruction sets");
  for (std::int64_t target : {HWY_AVX2, HWY_SSE4, HWY_SCALAR}) {
    if (!(hwy::SupportedTargets() & target)) continue;
    hwy::SetSupportedTargetsForTest(target);
    for (DType dtype : kDtypes) {
      // check() also takes products of bf16 pairs, which come with AVX-512 and its padding.
      if (target == HWY_SCALAR && dtype == DType::bf16) continue;
      check({.queries = 37, .keys = 37, .head_dim = 20, .dtype = dtype, .mask = true});
      check({.queries = 70, .keys = 70, .head_dim = 9, .dtype = dtype, .dropout = 0.3f});
      check(
          {.queries = 70, .keys = 70, .head_dim = 9, .dtype = dtype, .scale = 1, .soft_cap = 0.5f});
    }
    hwy::SetSupportedTargetsForTest(0);
  }
}

// A query of NaN must not be treated as one without visible keys, although max of NaN depends on
// the instruction set. Even lengths have a soft cap.
TEST_F(AttentionTest, AQueryOfNaNGivesNaN) {
  const std::int64_t dim = 8;
  for (std::int64_t target : {HWY_AVX3, HWY_AVX2, HWY_SSE4, HWY_SCALAR}) {
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
        shape.soft_cap = length % 2 == 0 ? 3.0f : 0.0f;
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
