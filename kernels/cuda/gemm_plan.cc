#include "shoal/kernels/cuda/gemm_plan.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::kernels {
namespace {

constexpr int kProposals = 8;
// Twice NVIDIA's advice for Hopper, for the partial sums of weight gradients. Only the algorithm's
// actual need is taken from the pool.
constexpr std::uint64_t kMostWorkspace = std::uint64_t{64} << 20;

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      SHOAL_ASSERT(false);
  }
}

cublasLtEpilogue_t epilogue(GemmFusion fusion) {
  switch (fusion) {
    case GemmFusion::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case GemmFusion::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case GemmFusion::sums_b:  // sums of cuBLASLt's A
      return CUBLASLT_EPILOGUE_BGRADA;
    case GemmFusion::sums_a:
      return CUBLASLT_EPILOGUE_BGRADB;
    case GemmFusion::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case GemmFusion::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case GemmFusion::gelu_aux:
      return CUBLASLT_EPILOGUE_GELU_AUX;
    case GemmFusion::gelu_aux_bias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case GemmFusion::dgelu:
      return CUBLASLT_EPILOGUE_DGELU;
  }
  SHOAL_ASSERT(false);
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* operation) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw_error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::out_of_memory : ErrorCode::internal,
              "{} with cuBLASLt: {} ({})", operation, cublasLtGetStatusString(status),
              cublasLtGetStatusName(status));
}

template <class T>
void GemmPlan::set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check_cublas(cublasLtMatmulDescSetAttribute(description_.get(), attribute,
                                              static_cast<const void*>(&value), sizeof(value)),
               "describing a product");
}

GemmPlan::Layout GemmPlan::make_layout(cudaDataType_t type, const GemmLayout& layout,
                                       std::int64_t groups) {
  const char* operation = "describing a matrix";
  cublasLtMatrixLayout_t made = nullptr;
  check_cublas(cublasLtMatrixLayoutCreate(&made, type, layout.rows, layout.columns, layout.leading),
               operation);
  Layout owned(made);
  if (groups > 1) {
    const auto count = static_cast<std::int32_t>(groups);
    check_cublas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                  sizeof(count)),
                 operation);
    check_cublas(cublasLtMatrixLayoutSetAttribute(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                  &layout.stride, sizeof(layout.stride)),
                 operation);
  }
  return owned;
}

GemmPlan::GemmPlan(cublasLtHandle_t handle, const GemmKey& key, const GemmArgs& args)
    : handle_(handle), key_(key) {
  cublasLtMatmulDesc_t made = nullptr;
  check_cublas(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
               "describing a product");
  description_.reset(made);
  // cuBLASLt's A is our b.
  const auto operation = [](bool transpose) -> std::int32_t {
    return transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, operation(key.transpose_b));
  set(CUBLASLT_MATMUL_DESC_TRANSB, operation(key.transpose_a));
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue(key.fusion)));
  const cudaDataType_t input = cuda_type(key.input), output = cuda_type(key.output);
  if (fuses_bias(key.fusion))
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(output));
  if (fuses_aux(key.fusion)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, key.ldaux);
  const GemmLayouts layouts = gemm_layouts(key);
  a_ = make_layout(input, layouts.a, key.groups);
  b_ = make_layout(input, layouts.b, key.groups);
  c_ = make_layout(output, layouts.c, key.groups);
  set_pointers(args);
  propose();
}

void GemmPlan::set_pointers(const GemmArgs& args) {
  if (fuses_bias(key_.fusion)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias);
  if (fuses_sums(key_.fusion)) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, args.bias_gradient);
  if (fuses_aux(key_.fusion)) set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, args.aux.data);
}

void GemmPlan::propose() {
  const char* operation = "asking for algorithms";
  cublasLtMatmulPreference_t made = nullptr;
  check_cublas(cublasLtMatmulPreferenceCreate(&made), operation);
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t,
                        CublasDeleter<cublasLtMatmulPreferenceDestroy>>
      owned(made);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(made, attribute, &value, sizeof(value)),
                 operation);
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  // Partial sums of a split K must be in f32 and added in order.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, std::uint32_t{key_.align_b});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, std::uint32_t{key_.align_a});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, std::uint32_t{key_.align_c});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::uint32_t{key_.align_c});
  std::array<cublasLtMatmulHeuristicResult_t, kProposals> results{};
  int count = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle_, description_.get(), a_.get(), b_.get(), c_.get(),
                                     c_.get(), made, kProposals, results.data(), &count);
  // cuBLASLt has no algorithm for this product; the caller uses another way.
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return;
  check_cublas(status, operation);
  for (const auto& result : std::span(results).first(static_cast<std::size_t>(count)))
    if (result.state == CUBLAS_STATUS_SUCCESS)
      candidates_.push_back({result.algo, result.workspaceSize});
}

bool GemmPlan::prefer(const GemmChoice& choice) {
  Candidate candidate{};
  static_assert(sizeof(candidate.algorithm) == sizeof(choice.algorithm));
  std::memcpy(&candidate.algorithm, choice.algorithm.data(), sizeof(candidate.algorithm));
  cublasLtMatmulHeuristicResult_t result{};
  if (cublasLtMatmulAlgoCheck(handle_, description_.get(), a_.get(), b_.get(), c_.get(), c_.get(),
                              &candidate.algorithm, &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > kMostWorkspace)
    return false;
  candidate.workspace = std::max<std::size_t>(result.workspaceSize, choice.workspace);
  candidates_.insert(candidates_.begin(), candidate);
  return true;
}

GemmChoice GemmPlan::choice(std::size_t index) const {
  GemmChoice out;
  std::memcpy(out.algorithm.data(), &candidates_[index].algorithm, sizeof(out.algorithm));
  out.workspace = candidates_[index].workspace;
  return out;
}

bool GemmPlan::run_candidate(std::size_t index, CudaResources& resources, const GemmArgs& args,
                             Stream stream, cudaStream_t native) {
  const Candidate& candidate = candidates_[index];
  set_pointers(args);
  Buffer workspace;
  if (candidate.workspace > 0) workspace = resources.scratch(candidate.workspace, stream);
  void* const c = const_cast<void*>(args.c.data);
  const cublasStatus_t status =
      cublasLtMatmul(handle_, description_.get(), &args.alpha, args.b.data, a_.get(), args.a.data,
                     b_.get(), &args.beta, c, c_.get(), c, c_.get(), &candidate.algorithm,
                     workspace.data(), candidate.workspace, native);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE) return false;
  check_cublas(status, "multiplying matrices");
  return true;
}

bool GemmPlan::run(CudaResources& resources, const GemmArgs& args, Stream stream,
                   cudaStream_t native) {
  while (!candidates_.empty()) {
    if (run_candidate(0, resources, args, stream, native)) return true;
    log::debug("cuBLASLt refuses its own proposal for {}", to_string(key_));
    candidates_.erase(candidates_.begin());
  }
  return false;
}

}  // namespace shoal::kernels
