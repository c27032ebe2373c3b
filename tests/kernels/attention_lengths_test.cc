// Attention with batch rows that are not full (key lengths, packed sequences), and sliding windows.
#include <tuple>

#include "attention_problem.h"
#include "support/cudnn.h"

#include "shoal/kernels/attention_checks.h"

namespace shoal::kernels {
namespace {

// Lengths 0, 1, a tile and one more or less, and all keys. Lengths outside the range are clamped.
TEST_F(AttentionTest, KeyLengthsLimitTheKeys) {
  for (DType dtype : kDtypes)
    for (bool causal : {false, true}) {
      check({.batch = 8,
             .heads = 2,
             .queries = 70,
             .keys = 70,
             .head_dim = 24,
             .dtype = dtype,
             .causal = causal,
             .lengths = {0, 1, 31, 33, 63, 65, 70, 71}});
      check({.batch = 4,
             .queries = 65,
             .keys = 100,
             .head_dim = 7,
             .dtype = dtype,
             .causal = causal,
             .dropout = 0.2f,
             .lengths = {-3, 40, 99, 100}});
    }
  check({.batch = 3,
         .heads = 4,
         .queries = 129,
         .keys = 129,
         .head_dim = 64,
         .dtype = DType::bf16,
         .causal = false,
         .key_heads = 2,
         .lengths = {128, 0, 77}});
}

// Biases by relative position, with tiles of queries and keys that the lengths do not fill, with
// fewer keys than queries and the reverse, and together with every other option.
TEST_F(AttentionTest, RelativeBiasesAreAddedAndSummed) {
  for (DType dtype : kDtypes)
    for (bool causal : {false, true}) {
      check({.queries = 70, .keys = 70, .dtype = dtype, .causal = causal, .relative = true});
      check({.batch = 3,
             .queries = 130,
             .keys = 130,
             .head_dim = 8,
             .dtype = dtype,
             .causal = causal,
             .mask = true,
             .dropout = 0.3f,
             .relative = true});
      check({.queries = 1, .keys = 37, .dtype = dtype, .causal = causal, .relative = true});
      check({.queries = 66, .keys = 9, .dtype = dtype, .causal = causal, .relative = true});
    }
  check({.queries = 1, .keys = 1, .relative = true});
  check({.queries = 33, .keys = 600, .causal = false, .scale = 1.0f, .relative = true});
  check({.heads = 4, .queries = 40, .keys = 40, .key_heads = 2, .scale = -0.5f, .relative = true});
  check({.queries = 80, .keys = 80, .lengths = {80, 31}, .relative = true});
  check({.queries = 80, .keys = 80, .sequences = {0, 3, 80, 81, 160}, .relative = true});
  for (bool causal : {true, false})
    check({.queries = 80, .keys = 80, .causal = causal, .window = 9, .relative = true});
}

TEST_F(AttentionTest, RefusesRelativeBiasesOfAnotherSize) {
  const Array bias({3, 40}, DType::f32);
  AttentionShape shape;
  shape.batch = 1, shape.heads = 3, shape.query_length = shape.key_length = 20;
  shape.head_dim = 4;
  shape.relative_bias = bias;
  EXPECT_THROW(check_attention(shape), Error);
  shape.query_length = 21;
  check_attention(shape);
  shape.scale = 0;
  EXPECT_THROW(check_attention(shape), Error);
}

// Sequences of one token, of a tile and one more or less, and empty ones, with arbitrary
// beginnings.
TEST_F(AttentionTest, PackedSequencesAreIndependent) {
  const auto check_all = [this](DType dtype, bool causal) {
    check({.batch = 1,
           .heads = 2,
           .queries = 333,
           .keys = 333,
           .head_dim = 24,
           .dtype = dtype,
           .causal = causal,
           .sequences = {0, 1, 2, 34, 34, 97, 162, 226, 333, 333, 333}});
    check({.batch = 3,
           .queries = 80,
           .keys = 80,
           .head_dim = 7,
           .dtype = dtype,
           .causal = causal,
           .dropout = 0.2f,
           .sequences = {0, 80, 85, 117, 160, 160, 193, 240}});
  };
  for (DType dtype : kDtypes)
    for (bool causal : {false, true}) check_all(dtype, causal);
  if (on_cuda())
    with_variable("SHOAL_CUDA_ATTENTION", "products", [&] { check_all(DType::f16, true); });
  check({.batch = 2,
         .heads = 4,
         .queries = 200,
         .keys = 200,
         .head_dim = 64,
         .dtype = DType::bf16,
         .key_heads = 2,
         .sequences = {0, 128, 200, 263, 400}});
}

// With one sequence for each batch row the result is the same as without sequences.
TEST_F(AttentionTest, SequencesOfWholeRowsChangeNothing) {
  const auto kernels = make_test_kernels();
  const Device device = shoal::testing::here();
  const Setting plain{.batch = 2, .queries = 90, .keys = 90, .dropout = 0.1f};
  Setting whole = plain;
  whole.sequences = {0, 90, 180};
  const Result one = Problem(plain).run(kernels->attention(), device),
               other = Problem(whole).run(kernels->attention(), device);
  EXPECT_TRUE(one.out.same_bytes(other.out) && one.dq.same_bytes(other.dq) &&
              one.dk.same_bytes(other.dk) && one.dv.same_bytes(other.dv));
}

// Windows of one key, of a part of a tile, of several tiles, and of more keys than there are. With
// causality they end at the query, without it they have two sides.
TEST_F(AttentionTest, WindowsHideDistantKeys) {
  const auto check_all = [this](DType dtype, bool causal) {
    for (const std::int64_t window : {1, 5, 64, 100, 1000})
      check({.batch = 1,
             .heads = 2,
             .queries = 180,
             .keys = 180,
             .head_dim = 24,
             .dtype = dtype,
             .causal = causal,
             .window = window});
    for (const std::int64_t queries : {1, 3, 70})  // with a cache
      check({.queries = queries, .keys = 140, .dtype = dtype, .causal = causal, .window = 65});
    check({.batch = 3,
           .queries = 80,
           .keys = 80,
           .head_dim = 7,
           .dtype = dtype,
           .causal = causal,
           .dropout = 0.2f,
           .sequences = {0, 80, 85, 117, 160, 160, 193, 240},
           .window = 9});
    check({.queries = 150,  // queries from 103 on see no key of the first row
           .keys = 150,
           .dtype = dtype,
           .causal = causal,
           .dropout = 0.2f,
           .lengths = {70, 150},
           .window = 33});
    check(
        {.queries = 70, .keys = 70, .dtype = dtype, .causal = causal, .mask = true, .window = 20});
    check({.queries = 90, .keys = 40, .dtype = dtype, .causal = causal, .window = 30});
  };
  for (DType dtype : kDtypes)
    for (bool causal : {true, false}) check_all(dtype, causal);
  if (on_cuda())
    with_variable("SHOAL_CUDA_ATTENTION", "products", [&] {
      for (bool causal : {true, false}) check_all(DType::f16, causal);
    });
  check({.heads = 4,
         .queries = 200,
         .keys = 200,
         .head_dim = 64,
         .dtype = DType::bf16,
         .key_heads = 2,
         .window = 70});
  // Whole tiles of keys are hidden.
  for (bool causal : {true, false})
    if (!on_cuda())
      check({.batch = 1,
             .heads = 1,
             .queries = 800,
             .keys = 800,
             .head_dim = 8,
             .causal = causal,
             .window = 150});
}

TEST_F(AttentionTest, RefusesANegativeWindow) {
  AttentionShape shape;
  shape.window = 3;
  EXPECT_NO_THROW(check_attention(shape));
  shape.window = -1;
  EXPECT_THROW(check_attention(shape), Error);
}

TEST_F(AttentionTest, RefusesInvalidSequences) {
  AttentionShape shape;
  shape.batch = 2, shape.heads = shape.head_dim = 1, shape.query_length = shape.key_length = 3;
  const Array sequences({2, 3}, DType::i32), floats({2, 3}, DType::f32), fewer({1, 3}, DType::i32),
      mask({2}, DType::i32);
  shape.sequences = sequences;
  EXPECT_NO_THROW(check_attention(shape));
  shape.key_mask = mask;
  EXPECT_THROW(check_attention(shape), Error) << "sequences with a mask";
  shape.key_mask = {};
  shape.key_length = 4;
  EXPECT_THROW(check_attention(shape), Error) << "sequences with a cache";
  shape.key_length = 3;
  shape.sequences = floats;
  EXPECT_THROW(check_attention(shape), Error) << "offsets of f32";
  shape.sequences = fewer;
  EXPECT_THROW(check_attention(shape), Error) << "offsets for one row only";
}

// Each token of a row belongs to one sequence. Positions past the row, or before its first
// sequence, belong to none.
TEST_F(AttentionTest, FindsTheSequenceOfEachToken) {
  if (on_cuda()) GTEST_SKIP() << "tests a host function";
  AttentionShape shape;
  shape.batch = 2, shape.query_length = shape.key_length = 5;
  Array sequences({2, 3}, DType::i32);
  const auto set = [&](std::initializer_list<int> values) {
    std::int64_t i = 0;
    for (const int value : values) sequences.set(i++, value);
  };
  shape.sequences = sequences;
  set({0, 2, 2, 0, 5, 5});
  const auto range = [&](std::int64_t row, std::int64_t token) {
    const TokenRange all = sequence_of(shape, row, token);
    return std::pair{all.begin, all.end};
  };
  EXPECT_EQ(range(0, 0), std::pair(std::int64_t{0}, std::int64_t{2}));
  EXPECT_EQ(range(0, 1), std::pair(std::int64_t{0}, std::int64_t{2}));
  EXPECT_EQ(range(0, 2), std::pair(std::int64_t{2}, std::int64_t{5}));
  EXPECT_EQ(range(1, 4), std::pair(std::int64_t{0}, std::int64_t{5}));
  set({1, 2, 2, 0, 6, 6});
  EXPECT_THROW(sequence_of(shape, 0, 0), Error) << "the position is before the first sequence";
  EXPECT_THROW(sequence_of(shape, 1, 4), Error) << "the position is beyond the row";
}

// Attention only by cuDNN, on a real GPU and on an emulated one: a fallback to other kernels is an
// error. Heads have size 32, for which cuDNN is known to make plans.
class ByCudnnAlone : public AttentionTest {
 protected:
  void SetUp() override {
    if (!cudnn_.why_not.empty()) GTEST_SKIP() << cudnn_.why_not;
  }
  static void by_cudnn(const std::function<void()>& test) {
    with_variable("SHOAL_CUDA_ATTENTION", "cudnn", test);
  }
  const shoal::testing::AttentionByCudnn cudnn_ = shoal::testing::attention_by_cudnn();
};

constexpr Setting kSixRows{.batch = 6, .heads = 2, .queries = 70, .keys = 70, .head_dim = 32};

TEST_F(ByCudnnAlone, SupportsAllKeysAndLengths) {
  by_cudnn([this] {
    for (DType dtype : {DType::bf16, DType::f16})
      for (bool causal : {false, true}) {
        Setting setting = kSixRows;
        setting.dtype = dtype;
        setting.causal = causal;
        check(setting);
        setting.lengths = {0, 1, 33, 65, 70, 64};
        check(setting);
      }
  });
}

TEST_F(ByCudnnAlone, SupportsAFewKeysAhead) {
  by_cudnn([this] {
    check({.batch = 2, .queries = 66, .keys = 130, .head_dim = 32, .dtype = DType::bf16});
  });
}

// cuDNN's graphs have neither.
TEST_F(ByCudnnAlone, LeavesWindowsAndSoftCapsToOwnKernels) {
  for (const auto& [window, cap] : {std::pair{20, 0.0f}, {0, 0.7f}})
    check({.queries = 70,
           .keys = 70,
           .dtype = DType::bf16,
           .causal = true,
           .window = window,
           .soft_cap = cap});
}

TEST_F(ByCudnnAlone, SupportsPackedSequences) {
  if (!cudnn_.packed_gradient)
    GTEST_SKIP() << "before 9.0 cuDNN has no gradient of packed sequences";
  by_cudnn([this] {
    for (DType dtype : {DType::bf16, DType::f16})
      for (bool causal : {false, true}) {
        Setting setting = kSixRows;
        setting.dtype = dtype;
        setting.causal = causal;
        setting.sequences = {0, 70, 71, 104, 140, 140, 203, 210, 280, 350, 420, 420};
        check(setting);
      }
    with_variable("SHOAL_CUDA_ATTENTION_WORKSPACE", "1", [this] {
      check({.batch = 2,
             .heads = 4,
             .queries = 190,
             .keys = 190,
             .head_dim = 32,
             .dtype = DType::bf16,
             .sequences = {0, 100, 190, 191, 260, 300, 380, 380}});
      // More pieces than are efficient, so Shoal's own kernels run.
      Setting many{.batch = 1,
                   .heads = 4,
                   .queries = 190,
                   .keys = 190,
                   .head_dim = 32,
                   .dtype = DType::bf16};
      for (int i = 0; i <= 38; ++i) many.sequences.push_back(5 * i);
      EXPECT_THROW(check(many), Error);
      with_variable("SHOAL_CUDA_ATTENTION", "auto", [&] { check(many); });
    });
  });
}

// cuDNN's version and the GPU's capability are read from the description of the kernels.
TEST(CudnnOfTheTests, IsReadFromTheKernelsDescription) {
  EXPECT_EQ(shoal::testing::cudnn_version_of("NVIDIA H200, cuBLASLt 13.1.0, cuDNN 9.19.0"), 91900);
  EXPECT_EQ(shoal::testing::cudnn_version_of("NVIDIA H200, cuBLASLt 13.1.0, no cuDNN"), 0);
  EXPECT_EQ(shoal::testing::capability_of("NVIDIA A100, 40.0 GiB, compute capability 8.0, cuB"),
            80);
  if (!on_cuda()) return;
  const std::string described = make_test_kernels()->describe();
  EXPECT_GT(shoal::testing::capability_of(described), 0) << described;
  EXPECT_NE(described.find("cuDNN"), std::string::npos) << described;
}

// cuDNN computes the batch in pieces, each with its own lengths.
TEST_F(AttentionTest, LengthsWorkInPiecesOnAGpu) {
  if (!on_cuda()) GTEST_SKIP() << "needs a GPU";
  with_variable("SHOAL_CUDA_ATTENTION_WORKSPACE", "1", [this] {
    check({.batch = 7,
           .heads = 4,
           .queries = 180,
           .keys = 180,
           .head_dim = 32,
           .dtype = DType::bf16,
           .causal = false,
           .lengths = {180, 20, 0, 179, 64, 1, 128}});
  });
}

// Key lengths and an equal byte mask must give the same result. On a GPU, tiles without a visible
// key multiply the sums so far by a factor that is 1 except for rounding.
TEST_F(AttentionTest, LengthsEqualAMask) {
  const Setting lengths{.batch = 3, .queries = 67, .keys = 67, .lengths = {5, 67, 0}};
  Setting bytes = lengths;
  bytes.lengths = {};
  bytes.mask_of_lengths = lengths.lengths;
  const auto kernels = make_test_kernels();
  const Device device = shoal::testing::here();
  const Result one = Problem(lengths).run(kernels->attention(), device),
               other = Problem(bytes).run(kernels->attention(), device);
  const auto same = [](const Array& a, const Array& b) {
    if (on_cuda()) return close_or_poisoned(a, b, 1e-6);
    return a.same_bytes(b) ? ::testing::AssertionSuccess() : ::testing::AssertionFailure();
  };
  EXPECT_TRUE(same(one.out, other.out));
  EXPECT_TRUE(same(one.dq, other.dq));
  EXPECT_TRUE(same(one.dk, other.dk));
  EXPECT_TRUE(same(one.dv, other.dv));
}

TEST_F(AttentionTest, RefusesOtherMasks) {
  AttentionShape shape;
  shape.batch = 2, shape.heads = 1, shape.query_length = shape.key_length = 3, shape.head_dim = 1;
  for (const auto& [sizes, dtype, fits] : {std::tuple{Shape{2, 3}, DType::u8, true},
                                           {Shape{2}, DType::i32, true},
                                           {Shape{2}, DType::u8, false},
                                           {Shape{2, 3}, DType::i32, false},
                                           {Shape{2, 3}, DType::f32, false}}) {
    const Array mask(sizes, dtype);
    shape.key_mask = mask;
    if (fits)
      EXPECT_NO_THROW(check_attention(shape));
    else
      EXPECT_THROW(check_attention(shape), Error) << to_string(dtype) << to_string(sizes);
  }
}

}  // namespace
}  // namespace shoal::kernels
