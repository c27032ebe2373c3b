// Host decisions for products on CUDA: layouts for cuBLASLt, possible fusions, and the file of
// chosen algorithms.
#include "shoal/kernels/cuda/gemm_choices.h"

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <set>
#include <thread>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/kernels/cuda/gemm_key.h"

namespace shoal::kernels {
namespace {

// Addresses that are never read.
const void* at(std::size_t offset) {
  alignas(4096) static const std::byte memory[32768] = {};
  return memory + offset;
}

GemmArgs product(std::int64_t m, std::int64_t n, std::int64_t k) {
  GemmArgs args;
  args.m = m;
  args.n = n;
  args.k = k;
  args.a = {at(4096), k, 0};
  args.b = {at(8192), n, 0};
  args.c = {at(12288), n, 0};
  args.input = args.output = DType::bf16;
  return args;
}

// Interprets the layouts as cuBLASLt's manual does: element (i, j) of a column-major matrix is
// data[j·leading + i], and D = op(A)·op(B).
std::vector<int> as_cublas_would(const GemmKey& key, const std::vector<int>& our_a,
                                 const std::vector<int>& our_b) {
  const GemmLayouts layouts = gemm_layouts(key);
  const auto element = [](const std::vector<int>& data, const GemmLayout& layout, bool transposed,
                          std::uint64_t i, std::uint64_t j) {
    if (transposed) std::swap(i, j);
    EXPECT_LT(i, layout.rows);
    EXPECT_LT(j, layout.columns);
    return data.at(static_cast<std::size_t>(j) * static_cast<std::size_t>(layout.leading) + i);
  };
  const std::uint64_t inner = key.transpose_b ? layouts.a.rows : layouts.a.columns;
  EXPECT_EQ(inner, key.transpose_a ? layouts.b.columns : layouts.b.rows);
  std::vector<int> d(static_cast<std::size_t>(layouts.c.leading) * layouts.c.columns, -1);
  for (std::uint64_t i = 0; i < layouts.c.rows; ++i)
    for (std::uint64_t j = 0; j < layouts.c.columns; ++j) {
      int sum = 0;
      for (std::uint64_t p = 0; p < inner; ++p)
        sum += element(our_b, layouts.a, key.transpose_b, i, p) *
               element(our_a, layouts.b, key.transpose_a, p, j);
      d[j * static_cast<std::size_t>(layouts.c.leading) + i] = sum;
    }
  return d;
}

TEST(GemmLayouts, AreTheRowMajorProduct) {
  const std::size_t m = 3, n = 4, k = 5;
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (std::size_t slack : {std::size_t{0}, std::size_t{2}}) {
        GemmArgs args = product(m, n, k);
        args.transpose_a = ta;
        args.transpose_b = tb;
        const std::size_t lda = (ta ? m : k) + slack, ldb = (tb ? k : n) + slack, ldc = n + slack;
        args.a.leading = static_cast<std::int64_t>(lda);
        args.b.leading = static_cast<std::int64_t>(ldb);
        args.c.leading = static_cast<std::int64_t>(ldc);
        std::vector<int> a((ta ? k : m) * lda), b((tb ? n : k) * ldb);
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<int>(i * 7 % 11);
        for (std::size_t i = 0; i < b.size(); ++i) b[i] = static_cast<int>(i * 5 % 13);
        const std::vector<int> c = as_cublas_would(gemm_key(args, GemmFusion::none), a, b);
        for (std::size_t i = 0; i < m; ++i)
          for (std::size_t j = 0; j < n; ++j) {
            int sum = 0;
            for (std::size_t p = 0; p < k; ++p)
              sum += a[ta ? p * lda + i : i * lda + p] * b[tb ? j * ldb + p : p * ldb + j];
            EXPECT_EQ(c[i * ldc + j], sum)
                << i << " " << j << (ta ? " ta" : "") << (tb ? " tb" : "");
          }
      }
}

TEST(GemmKeys, ContainAlignmentsButNoAddresses) {
  GemmArgs args = product(8, 8, 8);
  const GemmKey key = gemm_key(args, GemmFusion::none);
  args.a.data = at(20480);
  EXPECT_EQ(gemm_key(args, GemmFusion::none), key);
  std::set<std::string> texts{to_string(key)};
  for (std::size_t offset : {std::size_t{2}, std::size_t{4}, std::size_t{8}}) {
    args.a.data = at(4096 + offset);
    const GemmKey other = gemm_key(args, GemmFusion::none);
    EXPECT_EQ(other.align_a, offset);
    EXPECT_NE(GemmKeyHash()(other), GemmKeyHash()(key));
    texts.insert(to_string(other));
  }
  args = product(8, 8, 8);
  args.groups = 2;
  args.b.stride = 68;  // 136 bytes
  EXPECT_EQ(gemm_key(args, GemmFusion::none).align_b, 8);
  args = product(8, 8, 8);
  args.beta = 1;
  texts.insert(to_string(gemm_key(args, GemmFusion::none)));
  args.transpose_a = true;
  texts.insert(to_string(gemm_key(args, GemmFusion::none)));
  args.output = DType::f32;
  texts.insert(to_string(gemm_key(args, GemmFusion::none)));
  args.c.leading = 16;
  texts.insert(to_string(gemm_key(args, GemmFusion::none)));
  EXPECT_EQ(texts.size(), 8u) << "two keys have one text";
}

TEST(GemmFusions, AreThoseThatCublasLtHas) {
  GemmArgs args = product(16, 24, 8);
  EXPECT_EQ(widest_fusion(args), GemmFusion::none);
  args.bias = at(4096);
  args.bias_dtype = DType::bf16;
  EXPECT_EQ(widest_fusion(args), GemmFusion::bias);
  args.activation = Activation::gelu_tanh;
  EXPECT_EQ(widest_fusion(args), GemmFusion::gelu_bias);
  args.aux = {at(16384), 24, 0};
  EXPECT_EQ(widest_fusion(args), GemmFusion::gelu_aux_bias);
  EXPECT_EQ(without_activation(args), GemmFusion::bias);
  args.aux.data = at(16386);
  EXPECT_EQ(widest_fusion(args), GemmFusion::bias) << "aux is unaligned";
  args.aux = {at(16384), 25, 0};
  EXPECT_EQ(widest_fusion(args), GemmFusion::bias) << "aux has an odd leading dimension";
  args.aux.leading = 24;
  args.activation = Activation::gelu_erf;
  EXPECT_EQ(widest_fusion(args), GemmFusion::bias) << "cuBLASLt has only the tanh form";
  args.activation = Activation::gelu_tanh;
  args.bias_dtype = DType::f32;
  EXPECT_EQ(widest_fusion(args), GemmFusion::none) << "the bias is of another dtype than c";
  args.bias_dtype = DType::bf16;
  args.bias = at(4104);
  EXPECT_EQ(widest_fusion(args), GemmFusion::none) << "the bias is unaligned";
  args.bias = at(4096);
  args.output = DType::f32;
  EXPECT_EQ(widest_fusion(args), GemmFusion::none);
  args = product(16, 24, 8);
  args.activation = Activation::gelu_tanh;
  args.aux = {at(16384), 24, 0};
  args.aux_is_input = true;
  EXPECT_EQ(widest_fusion(args), GemmFusion::dgelu);
  args.activation = Activation::gelu_erf;
  EXPECT_EQ(widest_fusion(args), GemmFusion::none);
}

// Sums have c's dtype, and a bias's gradient is f32.
TEST(GemmFusions, OfSumsNeedAnF32Result) {
  GemmArgs args = product(16, 24, 8);
  EXPECT_EQ(sums_fusion(args), GemmFusion::none);
  float sums[1];
  args.bias_gradient = sums;
  EXPECT_EQ(sums_fusion(args), GemmFusion::none) << "c is bf16";
  args.output = DType::f32;
  EXPECT_EQ(sums_fusion(args), GemmFusion::sums_b);
  const GemmKey of_b = gemm_key(args, sums_fusion(args));
  args.bias_gradient_of_a = true;
  EXPECT_EQ(sums_fusion(args), GemmFusion::sums_a);
  const GemmKey of_a = gemm_key(args, sums_fusion(args));
  std::set<std::string> texts{to_string(of_a), to_string(of_b),
                              to_string(gemm_key(args, GemmFusion::none))};
  EXPECT_EQ(texts.size(), 3u);
  EXPECT_NE(GemmKeyHash()(of_a), GemmKeyHash()(of_b));
  for (std::int64_t GemmArgs::* const size : {&GemmArgs::m, &GemmArgs::n, &GemmArgs::k}) {
    GemmArgs empty = args;
    empty.*size = 0;
    EXPECT_EQ(sums_fusion(empty), GemmFusion::none);
  }
}

GemmChoice some_choice(std::uint64_t seed) {
  GemmChoice choice;
  for (std::size_t i = 0; i < choice.algorithm.size(); ++i)
    choice.algorithm[i] = std::numeric_limits<std::uint64_t>::max() - seed * 1000 - i;
  choice.workspace = 32u << 20;
  choice.microseconds = 12.5;
  return choice;
}

TEST(GemmChoices, AreReadBackUnchanged) {
  testing::TemporaryDirectory directory;
  const std::string inside = directory.path() + "/deep/er";
  GemmChoice apart;
  apart.fused = false;
  apart.microseconds = 3;
  {
    GemmChoices choices(inside, "NVIDIA H200 132 sm", 130100);
    EXPECT_EQ(choices.find("one"), std::nullopt);
    choices.agree("one", some_choice(1));
    choices.agree("apart", apart);
  }
  GemmChoices again(inside, "NVIDIA H200 132 sm", 130100);
  EXPECT_EQ(again.find("one"), some_choice(1));
  EXPECT_EQ(again.find("apart"), apart);
  EXPECT_EQ(again.find("two"), std::nullopt);
  EXPECT_EQ(GemmChoices(inside, "NVIDIA H200 132 sm", 130200).find("one"), std::nullopt);
  EXPECT_EQ(GemmChoices(inside, "NVIDIA H100 132 sm", 130100).find("one"), std::nullopt);
}

TEST(GemmChoices, OfTwoProcessesAreMergedAndTheFirstWins) {
  testing::TemporaryDirectory directory;
  GemmChoices first(directory.path(), "gpu", 1), second(directory.path(), "gpu", 1);
  EXPECT_EQ(first.agree("both", some_choice(1)), some_choice(1));
  first.agree("first", some_choice(2));
  EXPECT_EQ(second.agree("both", some_choice(3)), some_choice(1));
  second.agree("second", some_choice(4));
  EXPECT_EQ(first.find("second"), some_choice(4)) << "later choices of other processes are visible";
  const std::string path = first.path();
  std::filesystem::remove(path);
  EXPECT_EQ(first.find("both"), some_choice(1)) << "a process keeps the choice that it has used";
  EXPECT_EQ(first.agree("both", some_choice(5)), some_choice(1));
  GemmChoices third(directory.path(), "gpu", 1);
  EXPECT_EQ(third.find("both"), std::nullopt);
}

TEST(GemmChoices, AreTimedIfNoProcessHas) {
  testing::TemporaryDirectory directory;
  GemmChoices first(directory.path(), "gpu", 1), second(directory.path(), "gpu", 1);
  std::uint64_t timings = 0;
  const auto time = [&timings] { return std::optional(some_choice(++timings)); };
  EXPECT_EQ(first.find_or_time("one", time), some_choice(1));
  EXPECT_EQ(second.find_or_time("one", time), some_choice(1));
  EXPECT_EQ(timings, 1U);
  EXPECT_EQ(first.find_or_time("two", [] { return std::optional<GemmChoice>(); }), std::nullopt);
  // A process whose timing fails uses another one's choice.
  EXPECT_EQ(first.find_or_time("three",
                               [&] {
                                 second.agree("three", some_choice(7));
                                 return std::optional<GemmChoice>();
                               }),
            some_choice(7));
}

constexpr int kShapes = 20;
std::string shape_name(int shape) { return "shape " + std::to_string(shape); }

// State that two choosing processes or threads share.
struct Together {
  Together() {
    pthread_barrierattr_t shared;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&barrier, &shared, 2);
    pthread_barrierattr_destroy(&shared);
  }
  void wait() { pthread_barrier_wait(&barrier); }
  pthread_barrier_t barrier;
  int own[2] = {-1, -1};  // bit `shape`: one's own result was taken; -1: neither result was
};

// Both begin to time each shape before either has a result, and each finds another algorithm to be
// the fastest.
void choose(const std::string& directory, std::uint64_t me, Together& together) {
  GemmChoices choices(directory, "gpu", 1);
  int own = 0;
  for (int shape = 0; shape < kShapes; ++shape) {
    const auto choice = choices.find_or_time(shape_name(shape), [&] {
      together.wait();
      return std::optional(some_choice(me));
    });
    if (choice != some_choice(0) && choice != some_choice(1)) return;
    if (choice == some_choice(me)) own |= 1 << shape;
    together.wait();
  }
  together.own[me] = own;
}

void expect_one_choice(const std::string& directory, const Together& together) {
  ASSERT_GE(together.own[0], 0);
  ASSERT_GE(together.own[1], 0);
  EXPECT_EQ(together.own[0] ^ together.own[1], (1 << kShapes) - 1);
  // A later run has the same choices.
  GemmChoices later(directory, "gpu", 1);
  for (int shape = 0; shape < kShapes; ++shape)
    EXPECT_EQ(later.find(shape_name(shape)), some_choice(together.own[1] >> shape & 1));
}

TEST(GemmChoices, OfTwoThreadsThatTimeAtOnceAgree) {
  testing::TemporaryDirectory directory;
  Together together;
  {
    const std::jthread other([&] { choose(directory.path(), 1, together); });
    choose(directory.path(), 0, together);
  }
  expect_one_choice(directory.path(), together);
}

TEST(GemmChoices, OfTwoProcessesThatTimeAtOnceAgree) {
  testing::TemporaryDirectory directory;
  void* const memory =
      ::mmap(nullptr, sizeof(Together), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Together& together = *new (memory) Together;
  const pid_t other = ::fork();
  ASSERT_GE(other, 0);
  if (other == 0) {
    choose(directory.path(), 1, together);
    ::_exit(0);
  }
  choose(directory.path(), 0, together);
  int status = -1;
  ASSERT_EQ(::waitpid(other, &status, 0), other);
  EXPECT_EQ(status, 0);
  expect_one_choice(directory.path(), together);
  ::munmap(memory, sizeof(Together));
}

TEST(GemmChoices, ACorruptFileIsIgnoredAndReplaced) {
  constexpr const char* kShortAlgorithm =
      R"({"format": 1, "device": "gpu", "cublaslt": 1, "choices": {"one": {"fused": true,
          "microseconds": 1, "workspace": 0, "algorithm": [1, 2]}}})";
  for (const char* text : {"", "{", "[]", "{\"format\": 1}", kShortAlgorithm}) {
    testing::TemporaryDirectory directory;
    const std::string path = GemmChoices(directory.path(), "gpu", 1).path();
    std::ofstream(path) << text;
    GemmChoices choices(directory.path(), "gpu", 1);
    EXPECT_EQ(choices.find("one"), std::nullopt) << text;
    choices.agree("one", some_choice(1));
    EXPECT_EQ(GemmChoices(directory.path(), "gpu", 1).find("one"), some_choice(1)) << text;
  }
}

TEST(GemmChoices, WithoutADirectoryStayInMemory) {
  GemmChoices choices("", "gpu", 1);
  EXPECT_FALSE(choices.on_disk());
  choices.agree("one", some_choice(1));
  EXPECT_EQ(choices.find("one"), some_choice(1));
}

}  // namespace
}  // namespace shoal::kernels
