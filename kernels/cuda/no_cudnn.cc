// Replaces attention_cudnn.cc in a build without cuDNN. The constructor always throws, so attention
// uses our own kernels.
#include "shoal/kernels/cuda/attention_cudnn.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {
[[noreturn]] void missing() {
  throw Error(ErrorCode::unavailable, "this build of Shoal has no cuDNN",
              "configure it where cuDNN 9 is found");
}
}  // namespace

struct CudnnAttention::Impl {};

CudnnAttention::CudnnAttention(const std::string&) { missing(); }
CudnnAttention::~CudnnAttention() = default;
const CudnnAttention::Plan& CudnnAttention::plan(const CudnnAttentionKey&) { missing(); }
const std::string& CudnnAttention::refusal(const Plan&) { missing(); }
std::size_t CudnnAttention::workspace_bytes(const Plan&) { missing(); }
void CudnnAttention::run(const Plan&, const CudnnAttentionPointers&, float, void*, cudaStream_t) {
  missing();
}

std::string cudnn_version() { return "no cuDNN"; }

}  // namespace shoal::kernels
