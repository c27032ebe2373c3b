// Compares cuBLASLt's products with sums in f64, and tests which calls it refuses.
#include <cmath>
#include <random>

#include "rig.h"
#include <cublasLt.h>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::emulated_gpu {
namespace {

struct Case {
  cudaDataType_t input = CUDA_R_16BF, output = CUDA_R_16BF;
  std::int64_t m = 1, n = 1, k = 1;
  bool ta = false, tb = false;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  int batch = 1;
  float alpha = 1, beta = 0;
};

double rounded(double value, cudaDataType_t type) {
  const auto single = static_cast<float>(value);
  if (type == CUDA_R_16BF) return static_cast<double>(static_cast<float>(bfloat16(single)));
  if (type == CUDA_R_16F) return static_cast<double>(static_cast<float>(float16(single)));
  return static_cast<double>(single);
}

// A column-major matrix for each group, in pinned memory that the device also reads and writes.
class Matrix {
 public:
  Matrix(cudaDataType_t type, std::int64_t rows, std::int64_t columns, int batch, unsigned seed)
      : type_(type),
        rows_(rows),
        columns_(columns),
        leading_((rows + 7) / 8 * 8 + 8),
        stride_(leading_ * columns + 8) {
    const auto elements = static_cast<std::size_t>(stride_ * batch);
    CUDA(cudaHostAlloc(&data_, 4 * elements, cudaHostAllocPortable));
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> values(-1, 1);
    for (std::size_t i = 0; i < elements; ++i) set(static_cast<std::int64_t>(i), values(engine));
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout_, type, static_cast<std::uint64_t>(rows),
                                         static_cast<std::uint64_t>(columns), leading_),
              CUBLAS_STATUS_SUCCESS);
    (void)cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, 4);
    (void)cublasLtMatrixLayoutSetAttribute(layout_, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                           &stride_, 8);
  }
  ~Matrix() {
    (void)cudaFreeHost(data_);
    (void)cublasLtMatrixLayoutDestroy(layout_);
  }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  double at(std::int64_t i, std::int64_t j, int group = 0) const {
    const std::int64_t place = group * stride_ + j * leading_ + i;
    if (type_ == CUDA_R_32F) return static_cast<double>(static_cast<const float*>(data_)[place]);
    if (type_ == CUDA_R_16F)
      return static_cast<double>(static_cast<float>(static_cast<const float16*>(data_)[place]));
    return static_cast<double>(static_cast<float>(static_cast<const bfloat16*>(data_)[place]));
  }
  void* data() const { return data_; }
  cublasLtMatrixLayout_t layout() const { return layout_; }
  std::int64_t leading() const { return leading_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }

 private:
  void set(std::int64_t place, float value) {
    if (type_ == CUDA_R_32F)
      static_cast<float*>(data_)[place] = value;
    else if (type_ == CUDA_R_16F)
      static_cast<float16*>(data_)[place] = float16(value);
    else
      static_cast<bfloat16*>(data_)[place] = bfloat16(value);
  }
  cudaDataType_t type_;
  std::int64_t rows_, columns_, leading_, stride_;
  void* data_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
};

class Products : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference_), CUBLAS_STATUS_SUCCESS);
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 22);
  }
  ~Products() override {
    (void)cublasLtMatmulPreferenceDestroy(preference_);
    (void)cublasLtDestroy(handle_);
  }
  template <class T>
  void prefer(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
              CUBLAS_STATUS_SUCCESS);
  }
  cublasLtMatmulDesc_t describe(const Case& c, const void* bias, const Matrix& aux) {
    cublasLtMatmulDesc_t made = nullptr;
    EXPECT_EQ(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
              CUBLAS_STATUS_SUCCESS);
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, auto value) {
      EXPECT_EQ(cublasLtMatmulDescSetAttribute(made, attribute, static_cast<const void*>(&value),
                                               sizeof value),
                CUBLAS_STATUS_SUCCESS);
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{c.ta});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{c.tb});
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(c.epilogue));
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux.data());
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux.leading());
    return made;
  }
  std::vector<cublasLtMatmulHeuristicResult_t> propose(cublasLtMatmulDesc_t how, const Matrix& a,
                                                       const Matrix& b, const Matrix& c,
                                                       const Matrix& d) {
    std::vector<cublasLtMatmulHeuristicResult_t> results(8);
    int found = 0;
    status_ = cublasLtMatmulAlgoGetHeuristic(handle_, how, a.layout(), b.layout(), c.layout(),
                                             d.layout(), preference_, 8, results.data(), &found);
    results.resize(static_cast<std::size_t>(found));
    return results;
  }
  void expect_right(const Case& c);

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

void Products::expect_right(const Case& p) {
  const Matrix a(p.input, p.ta ? p.k : p.m, p.ta ? p.m : p.k, p.batch, 1),
      b(p.input, p.tb ? p.n : p.k, p.tb ? p.k : p.n, p.batch, 2), c(p.output, p.m, p.n, p.batch, 3),
      d(p.output, p.m, p.n, p.batch, 4), bias(p.output, p.m, 1, 1, 5),
      aux(p.output, p.m, p.n, 1, 6), before(p.output, p.m, p.n, 1, 6);  // aux before the product
  const cublasLtMatmulDesc_t how = describe(p, bias.data(), aux);
  const auto results = propose(how, a, b, c, d);
  ASSERT_EQ(status_, CUBLAS_STATUS_SUCCESS);
  ASSERT_FALSE(results.empty());
  const bool biased = (p.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  for (const auto& result : results) {
    void* workspace = nullptr;
    CUDA(cudaMalloc(&workspace, result.workspaceSize));
    const OwnStream stream;
    ASSERT_EQ(cublasLtMatmul(handle_, how, &p.alpha, a.data(), a.layout(), b.data(), b.layout(),
                             &p.beta, c.data(), c.layout(), d.data(), d.layout(), &result.algo,
                             workspace, result.workspaceSize, stream),
              CUBLAS_STATUS_SUCCESS);
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaFree(workspace));
    const double unit = p.output == CUDA_R_16BF ? 0x1p-8 : p.output == CUDA_R_16F ? 0x1p-11 : 1e-6;
    for (int group = 0; group < p.batch; ++group)
      for (std::int64_t j = 0; j < p.n; ++j)
        for (std::int64_t i = 0; i < p.m; ++i) {
          double sum = 0, size = 1;
          for (std::int64_t l = 0; l < p.k; ++l) {
            const double x = p.ta ? a.at(l, i, group) : a.at(i, l, group),
                         y = p.tb ? b.at(j, l, group) : b.at(l, j, group);
            sum += x * y;
            size += std::abs(x * y);
          }
          double value = static_cast<double>(p.alpha) * sum;
          if (p.beta != 0) value += static_cast<double>(p.beta) * c.at(i, j, group);
          if (biased) value += bias.at(i, 0);
          if ((p.epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
            if ((p.epilogue & 128) != 0) {
              ASSERT_NEAR(aux.at(i, j), rounded(value, p.output), 2 * unit * (size + 1)) << "aux";
            }
            value = gelu(value);
          } else if (p.epilogue == CUBLASLT_EPILOGUE_DGELU) {
            const double x = before.at(i, j), step = 1e-5;
            value *= (gelu(x + step) - gelu(x - step)) / (2 * step);
          }
          ASSERT_NEAR(d.at(i, j, group), rounded(value, p.output), 2 * unit * (size + 1))
              << i << ", " << j << " of group " << group << " with a workspace of "
              << result.workspaceSize;
        }
  }
  (void)cublasLtMatmulDescDestroy(how);
}

TEST_F(Products, SupportEveryTypeAndTransposition) {
  for (const auto& [input, output] : {std::pair{CUDA_R_32F, CUDA_R_32F},
                                      {CUDA_R_16BF, CUDA_R_16BF},
                                      {CUDA_R_16BF, CUDA_R_32F},
                                      {CUDA_R_16F, CUDA_R_16F}})
    for (const bool ta : {false, true})
      for (const bool tb : {false, true})
        for (const auto& [m, n, k] :
             {std::array<std::int64_t, 3>{1, 1, 1}, {33, 7, 65}, {40, 12, 8}})
          expect_right(
              {.input = input, .output = output, .m = m, .n = n, .k = k, .ta = ta, .tb = tb});
}

TEST_F(Products, SupportGroupsAndAccumulation) {
  expect_right({.input = CUDA_R_32F,
                .output = CUDA_R_32F,
                .m = 5,
                .n = 6,
                .k = 100,
                .batch = 3,
                .alpha = 0.5f,
                .beta = 2});
  expect_right({.input = CUDA_R_16BF,
                .output = CUDA_R_32F,
                .m = 35,
                .n = 6,
                .k = 70,
                .tb = true,
                .alpha = -1,
                .beta = 1});
}

TEST_F(Products, SupportEveryEpilogue) {
  for (const auto epilogue :
       {CUBLASLT_EPILOGUE_BIAS, CUBLASLT_EPILOGUE_GELU, CUBLASLT_EPILOGUE_GELU_BIAS,
        CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU})
    for (const cudaDataType_t type : {CUDA_R_16BF, CUDA_R_16F})
      expect_right({.input = type, .output = type, .m = 34, .n = 9, .k = 80, .epilogue = epilogue});
}

// BGRADA sums op(A) over k, for each row of D. BGRADB sums op(B), for each column.
TEST_F(Products, ComputeTheSumsOfAnOperand) {
  for (const bool of_b : {false, true})
    for (const auto& [input, output] :
         {std::pair{CUDA_R_32F, CUDA_R_32F}, {CUDA_R_16BF, CUDA_R_32F}, {CUDA_R_16F, CUDA_R_16F}})
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          const std::int64_t m = 34, n = 9, k = 71;
          const Matrix a(input, ta ? k : m, ta ? m : k, 1, 1),
              b(input, tb ? n : k, tb ? k : n, 1, 2), d(output, m, n, 1, 3),
              sums(output, of_b ? n : m, 1, 1, 4);
          const cublasLtMatmulDesc_t how =
              describe({.ta = ta,
                        .tb = tb,
                        .epilogue = of_b ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA},
                       sums.data(), d);
          const auto results = propose(how, a, b, d, d);
          ASSERT_FALSE(results.empty());
          const float one = 1;
          const OwnStream stream;
          ASSERT_EQ(cublasLtMatmul(handle_, how, &one, a.data(), a.layout(), b.data(), b.layout(),
                                   &one, d.data(), d.layout(), d.data(), d.layout(),
                                   &results.front().algo, nullptr, 0, stream),
                    CUBLAS_STATUS_SUCCESS);
          CUDA(cudaStreamSynchronize(stream));
          for (std::int64_t i = 0; i < sums.rows(); ++i) {
            double expected = 0;
            for (std::int64_t l = 0; l < k; ++l)
              expected += of_b ? (tb ? b.at(i, l) : b.at(l, i)) : (ta ? a.at(l, i) : a.at(i, l));
            EXPECT_NEAR(sums.at(i, 0), expected, output == CUDA_R_16F ? 0.01 : 1e-5) << i;
          }
          (void)cublasLtMatmulDescDestroy(how);
        }
}

TEST_F(Products, RefuseUnsupportedSums) {
  const Matrix a(CUDA_R_16BF, 16, 8, 1, 1), b(CUDA_R_16BF, 8, 16, 1, 2),
      d(CUDA_R_32F, 16, 16, 1, 3), a2(CUDA_R_16BF, 16, 8, 2, 1), b2(CUDA_R_16BF, 8, 16, 2, 2),
      d2(CUDA_R_32F, 16, 16, 2, 3);
  const cublasLtMatmulDesc_t how = describe({.epilogue = CUBLASLT_EPILOGUE_BGRADA}, d.data(), d);
  EXPECT_FALSE(propose(how, a, b, d, d).empty());
  EXPECT_TRUE(propose(how, a2, b2, d2, d2).empty()) << "groups";
  auto type = static_cast<std::int32_t>(CUDA_R_16BF);
  (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, 4);
  EXPECT_TRUE(propose(how, a, b, d, d).empty()) << "the operand's type differs from D's";
  type = CUDA_R_32F;
  (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, 4);
  const auto all = propose(how, a, b, d, d);
  ASSERT_FALSE(all.empty());
  const void* nowhere = nullptr;
  (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                       static_cast<const void*>(&nowhere), 8);
  const float one = 1, zero = 0;
  EXPECT_EQ(cublasLtMatmul(handle_, how, &one, a.data(), a.layout(), b.data(), b.layout(), &zero,
                           d.data(), d.layout(), d.data(), d.layout(), &all.front().algo, nullptr,
                           0, nullptr),
            CUBLAS_STATUS_INVALID_VALUE);
  auto both = static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_BGRADA) | CUBLASLT_EPILOGUE_BIAS;
  (void)cublasLtMatmulDescSetAttribute(how, CUBLASLT_MATMUL_DESC_EPILOGUE, &both, 4);
  EXPECT_TRUE(propose(how, a, b, d, d).empty());
  EXPECT_EQ(status_, CUBLAS_STATUS_INVALID_VALUE) << "the epilogue does not exist";
  (void)cublasLtMatmulDescDestroy(how);
}

TEST_F(Products, ProposalsRespectThePreferences) {
  const Matrix a(CUDA_R_16BF, 16, 512, 1, 1), b(CUDA_R_16BF, 512, 16, 1, 2),
      d(CUDA_R_16BF, 16, 16, 1, 3);
  const cublasLtMatmulDesc_t how = describe({}, nullptr, d);
  auto all = propose(how, a, b, d, d);
  ASSERT_GT(all.size(), 1u);
  EXPECT_GT(all.front().workspaceSize, 0u) << "a long sum is split";
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{2} * 16 * 16 * 4);
  EXPECT_EQ(propose(how, a, b, d, d).size(), all.size() - 1);
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{0});
  EXPECT_EQ(propose(how, a, b, d, d).size(), 1u);
  // A proposed algorithm passes the check, and is refused with a smaller workspace than it asked
  // for.
  cublasLtMatmulHeuristicResult_t result{};
  EXPECT_EQ(cublasLtMatmulAlgoCheck(handle_, how, a.layout(), b.layout(), d.layout(), d.layout(),
                                    &all.front().algo, &result),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(result.workspaceSize, all.front().workspaceSize);
  const float one = 1, zero = 0;
  EXPECT_EQ(cublasLtMatmul(handle_, how, &one, a.data(), a.layout(), b.data(), b.layout(), &zero,
                           d.data(), d.layout(), d.data(), d.layout(), &all.front().algo, nullptr,
                           0, nullptr),
            CUBLAS_STATUS_INVALID_VALUE);
  cublasLtMatmulAlgo_t other{};
  EXPECT_EQ(cublasLtMatmulAlgoCheck(handle_, how, a.layout(), b.layout(), d.layout(), d.layout(),
                                    &other, &result),
            CUBLAS_STATUS_INVALID_VALUE);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{1});
  EXPECT_TRUE(propose(how, a, b, d, d).empty());
  EXPECT_EQ(status_, CUBLAS_STATUS_NOT_SUPPORTED);
  (void)cublasLtMatmulDescDestroy(how);
}

TEST_F(Products, RefuseLayoutsThatDoNotFit) {
  const Matrix a(CUDA_R_16BF, 16, 8, 1, 1), b(CUDA_R_16BF, 8, 16, 1, 2),
      d(CUDA_R_16BF, 16, 16, 1, 3), wrong(CUDA_R_16BF, 16, 9, 1, 1), f32(CUDA_R_32F, 16, 8, 1, 1),
      two(CUDA_R_16BF, 16, 16, 2, 3);
  const cublasLtMatmulDesc_t plain = describe({}, nullptr, d);
  const auto status = [&](cublasLtMatmulDesc_t how, const Matrix& x, const Matrix& y,
                          const Matrix& z) {
    (void)propose(how, x, y, z, z);
    return status_;
  };
  EXPECT_EQ(status(plain, a, b, d), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(status(plain, wrong, b, d), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status(plain, a, b, two), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(status(plain, f32, b, d), CUBLAS_STATUS_NOT_SUPPORTED);
  const cublasLtMatmulDesc_t gelu = describe({.epilogue = CUBLASLT_EPILOGUE_GELU_AUX}, nullptr, d);
  std::int64_t leading = 17;
  (void)cublasLtMatmulDescSetAttribute(gelu, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &leading, 8);
  EXPECT_EQ(status(gelu, a, b, d), CUBLAS_STATUS_INVALID_VALUE)
      << "aux's leading dimension must be a multiple of 8";
  std::int32_t short_value = 0;
  EXPECT_EQ(
      cublasLtMatmulDescSetAttribute(gelu, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &short_value, 4),
      CUBLAS_STATUS_INVALID_VALUE);
  (void)cublasLtMatmulDescDestroy(plain);
  (void)cublasLtMatmulDescDestroy(gelu);
}

TEST_F(Products, LessAlignmentThanPromisedIsAFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const Matrix a(CUDA_R_16BF, 16, 8, 1, 1), b(CUDA_R_16BF, 8, 16, 1, 2),
      d(CUDA_R_16BF, 16, 16, 1, 3);
  const cublasLtMatmulDesc_t how = describe({}, nullptr, d);
  const auto result = propose(how, a, b, d, d).front();
  const float one = 1, zero = 0;
  EXPECT_DEATH((void)cublasLtMatmul(handle_, how, &one, static_cast<std::byte*>(a.data()) + 2,
                                    a.layout(), b.data(), b.layout(), &zero, d.data(), d.layout(),
                                    d.data(), d.layout(), &result.algo, nullptr, 0, nullptr),
               "cublasLtMatmul: A at .* is not aligned to 256 bytes");
  (void)cublasLtMatmulDescDestroy(how);
}

}  // namespace
}  // namespace shoal::emulated_gpu
