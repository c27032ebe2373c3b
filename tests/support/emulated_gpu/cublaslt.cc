// cuBLASLt's descriptors, heuristics and products. Calls that the library would refuse return its
// status. Calls that would make a real device fault end the process.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "product.h"
#include "stream.h"
#include <cublasLt.h>
#include <fmt/format.h>

using namespace shoal::emulated_gpu;
using shoal::DType;

struct cublasLtContext {};

struct cublasLtMatmulDescOpaque_t {
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;  // the type of D
  void* aux = nullptr;
  std::int64_t aux_leading = 0;
};

struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType_t type;
  std::int64_t rows, columns, leading;
  std::int32_t batch = 1;
  std::int64_t stride = 0;
};

struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace = 0;
  std::uint32_t schemes = 7;                          // all
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // for A, B, C, D
};

namespace {

constexpr std::uint64_t kMagic = 0x454d'554c'4154'4544u;
constexpr std::int64_t kLeastSplit = 64;  // the smallest k for which splitting pays

// The content of a cublasLtMatmulAlgo_t.
struct Algorithm {
  std::uint64_t magic = kMagic;
  std::uint64_t parts = 1;  // k is split into this many; more than one need a workspace
  std::uint64_t alignment[4] = {1, 1, 1, 1};  // for A, B, C, D, in bytes
  std::uint64_t unused[2] = {};
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));

std::int64_t size_of(cudaDataType_t type) { return type == CUDA_R_32F ? 4 : 2; }
DType dtype(cudaDataType_t type) {
  return type == CUDA_R_32F ? DType::f32 : type == CUDA_R_16F ? DType::f16 : DType::bf16;
}

template <class T>
cublasStatus_t take(T& into, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(static_cast<void*>(&into), value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

bool is_epilogue(std::uint32_t value) {
  constexpr cublasLtEpilogue_t kAll[] = {
      CUBLASLT_EPILOGUE_DEFAULT,   CUBLASLT_EPILOGUE_BIAS,     CUBLASLT_EPILOGUE_GELU,
      CUBLASLT_EPILOGUE_GELU_BIAS, CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
      CUBLASLT_EPILOGUE_DGELU,     CUBLASLT_EPILOGUE_BGRADA,   CUBLASLT_EPILOGUE_BGRADB};
  return std::any_of(std::begin(kAll), std::end(kAll), [&](cublasLtEpilogue_t each) {
    return value == static_cast<std::uint32_t>(each);
  });
}

// SHOAL_EMULATED_GPU_BIAS_GRADIENT simulates a library that proposes no BGRADA or BGRADB ("none"),
// refuses its own proposals ("refused"), or adds in bf16 ("rough"). It is read at each call.
bool as_asked(const char* what) {
  const char* const set = std::getenv("SHOAL_EMULATED_GPU_BIAS_GRADIENT");
  return set && std::strcmp(set, what) == 0;
}

struct Problem {
  cublasLtMatmulDesc_t description;
  cublasLtMatrixLayout_t a, b, c, d;

  bool has_bias() const { return (description->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  bool has_sums() const {
    return description->epilogue == CUBLASLT_EPILOGUE_BGRADA ||
           description->epilogue == CUBLASLT_EPILOGUE_BGRADB;
  }
  bool has_aux() const { return (description->epilogue & 128) != 0; }
  bool transposes_a() const { return description->transpose_a == CUBLAS_OP_T; }
  bool transposes_b() const { return description->transpose_b == CUBLAS_OP_T; }
  std::int64_t k() const { return transposes_a() ? a->rows : a->columns; }

  cublasStatus_t check() const;
  std::size_t workspace(std::uint64_t parts) const {
    return parts == 1 ? 0 : static_cast<std::size_t>(d->rows * d->columns) * parts * sizeof(float);
  }
};

cublasStatus_t Problem::check() const {
  if (!description || !a || !b || !c || !d) return CUBLAS_STATUS_INVALID_VALUE;
  const bool ta = transposes_a(), tb = transposes_b();
  const bool shapes =
      (ta ? a->columns : a->rows) == d->rows && (tb ? b->rows : b->columns) == d->columns &&
      (tb ? b->columns : b->rows) == k() && c->rows == d->rows && c->columns == d->columns;
  bool fits = shapes;
  for (const cublasLtMatrixLayout_t each : {a, b, c, d})
    fits = fits && each->rows > 0 && each->columns > 0 && each->leading >= each->rows &&
           each->batch == d->batch && each->batch > 0;
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != CUDA_R_32F))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!is_epilogue(description->epilogue)) return CUBLAS_STATUS_INVALID_VALUE;
  if (description->epilogue != CUBLASLT_EPILOGUE_DEFAULT && d->batch != 1)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_sums() && as_asked("none")) return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((has_bias() || has_sums()) && description->bias_type != -1 &&
      description->bias_type != d->type)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (has_aux() && (description->aux_leading < d->rows || description->aux_leading % 8 != 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}

// Checks that `given` is an algorithm for the problem and copies it to `out`.
cublasStatus_t check(const Problem& problem, const cublasLtMatmulAlgo_t* given, Algorithm& out) {
  if (const cublasStatus_t wrong = problem.check()) return wrong;
  if (given) std::memcpy(static_cast<void*>(&out), given, sizeof out);
  if (out.magic != kMagic || out.parts < 1) return CUBLAS_STATUS_INVALID_VALUE;
  if (out.parts > 1 && (problem.d->batch != 1 || problem.k() < kLeastSplit))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

void check_alignment(const char* what, const void* pointer, std::uint64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0)
    fail(
        fmt::format("cublasLtMatmul: {} at {} is not aligned to {} bytes, as its algorithm was "
                    "asked to expect",
                    what, pointer, bytes));
}

Gelu gelu_of(std::uint32_t epilogue) {
  if (epilogue == CUBLASLT_EPILOGUE_DGELU) return Gelu::gradient;
  return (epilogue & CUBLASLT_EPILOGUE_GELU) != 0 ? Gelu::forward : Gelu::none;
}

const void* offset(const void* base, std::int64_t group, const cublasLtMatrixLayoutOpaque_t& of) {
  return static_cast<const std::byte*>(base) + group * of.stride * size_of(of.type);
}

}  // namespace

std::size_t cublasLtGetVersion() { return 130000; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown status";
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
      return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality is not supported";
  }
  return "unknown status";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  int devices = 0;
  if (!handle) return CUBLAS_STATUS_INVALID_VALUE;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = new cublasLtMatmulDescOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  if (!to) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(to->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(to->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(to->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(to->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(to->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(to->aux_leading, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      return take(to->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType_t type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t leading) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new cublasLtMatrixLayoutOpaque_t{.type = type,
                                           .rows = static_cast<std::int64_t>(rows),
                                           .columns = static_cast<std::int64_t>(columns),
                                           .leading = leading};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, std::size_t bytes) {
  if (!layout) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return take(layout->batch, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return take(layout->stride, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  if (!made) return CUBLAS_STATUS_INVALID_VALUE;
  *made = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t bytes) {
  if (!to) return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return take(to->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return take(to->schemes, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return take(to->alignment[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value,
                  bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle,
                                              cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* found) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!preference || !results || !found || asked < 1) return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  const Problem problem{description, a, b, c, d};
  if (const cublasStatus_t wrong = problem.check()) return wrong;
  Algorithm made;
  const cublasLtMatrixLayout_t all[] = {a, b, c, d};
  for (std::size_t i = 0; i < 4; ++i) {
    made.alignment[i] = preference->alignment[i];
    if (made.alignment[i] < static_cast<std::uint64_t>(size_of(all[i]->type)))
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Long sums with few results prefer splits, so that workspaces are used.
  std::vector<std::uint64_t> parts = {1, 2, 3};
  if (problem.k() >= 4 * std::max(d->rows, d->columns)) std::swap(parts[0], parts[1]);
  for (const std::uint64_t count : parts) {
    const bool splits = count > 1;
    if (splits && ((preference->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0 ||
                   problem.workspace(count) > preference->workspace))
      continue;
    made.parts = count;
    cublasLtMatmulAlgo_t algorithm;
    std::memcpy(&algorithm, &made, sizeof algorithm);
    Algorithm taken;
    if (*found == asked || check(problem, &algorithm, taken) != CUBLAS_STATUS_SUCCESS) continue;
    results[(*found)++] = {algorithm, problem.workspace(count), CUBLAS_STATUS_SUCCESS, 1.0f};
  }
  return *found > 0 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!algorithm || !result) return CUBLAS_STATUS_INVALID_VALUE;
  const Problem problem{description, a, b, c, d};
  Algorithm taken;
  const cublasStatus_t status = check(problem, algorithm, taken);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  *result = {*algorithm, problem.workspace(taken.parts), status, 1.0f};
  return status;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (!handle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Problem problem{description, a_layout, b_layout, c_layout, d_layout};
  Algorithm how;
  const cublasStatus_t status = check(problem, algorithm, how);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const std::size_t needed = problem.workspace(how.parts);
  if (!alpha || !beta || !a || !b || !c || !d || workspace_bytes < needed ||
      (needed > 0 && !workspace) ||
      ((problem.has_bias() || problem.has_sums()) && !description->bias) ||
      (problem.has_aux() && !description->aux))
    return CUBLAS_STATUS_INVALID_VALUE;
  if (problem.has_sums() && as_asked("refused")) return CUBLAS_STATUS_NOT_SUPPORTED;
  const void* operands[] = {a, b, c, d};
  constexpr const char* kNames[] = {"A", "B", "C", "D"};
  for (std::size_t i = 0; i < 4; ++i) check_alignment(kNames[i], operands[i], how.alignment[i]);
  if (needed > 0) check_alignment("the workspace", workspace, 256);

  Product product;
  product.m = d_layout->rows;
  product.n = d_layout->columns;
  product.k = problem.k();
  product.a_leading = a_layout->leading;
  product.b_leading = b_layout->leading;
  product.c_leading = c_layout->leading;
  product.d_leading = d_layout->leading;
  product.transpose_a = problem.transposes_a();
  product.transpose_b = problem.transposes_b();
  product.input = dtype(a_layout->type);
  product.output = dtype(d_layout->type);
  product.alpha = *static_cast<const float*>(alpha);
  product.beta = *static_cast<const float*>(beta);
  if (problem.has_bias()) {
    product.bias = description->bias;
    check_alignment("the bias", product.bias, 16);
  }
  if (problem.has_sums()) {
    check_alignment("the bias's gradient", description->bias, 16);
    (description->epilogue == CUBLASLT_EPILOGUE_BGRADA ? product.a_sums : product.b_sums) =
        const_cast<void*>(description->bias);
    product.rough_sums = as_asked("rough");
  }
  product.gelu = gelu_of(description->epilogue);
  if (problem.has_aux()) {
    product.aux = description->aux;
    product.aux_leading = description->aux_leading;
    check_alignment("the auxiliary matrix", product.aux, 16);
  }
  product.parts = static_cast<int>(how.parts);
  product.partial = static_cast<float*>(workspace);
  const auto work = [product, a, b, c, d, la = *a_layout, lb = *b_layout, lc = *c_layout,
                     ld = *d_layout] {
    for (std::int64_t group = 0; group < ld.batch; ++group) {
      Product one = product;
      one.a = offset(a, group, la);
      one.b = offset(b, group, lb);
      one.c = offset(c, group, lc);
      one.d = const_cast<void*>(offset(d, group, ld));
      multiply(one);
    }
  };
  const auto word = [](const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  const std::uintptr_t words[] = {word(a),
                                  word(b),
                                  product.beta != 0 ? word(c) : 0,
                                  word(d),
                                  word(product.bias),
                                  word(product.a_sums),
                                  word(product.b_sums),
                                  word(product.aux),
                                  needed > 0 ? word(workspace) : 0};
  return enqueue(stream, work, "cublasLtMatmul", words) == cudaSuccess
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_EXECUTION_FAILED;
}
