#include "shoal/kernels/cpu/instruction_set.h"

#include <cstdint>

#include <hwy/targets.h>
#include <oneapi/dnnl/dnnl.hpp>

namespace shoal::kernels {
namespace {

#if defined(__x86_64__)
bool allows(dnnl::cpu_isa wanted) {
  // Each instruction set includes the bits of the smaller ones.
  const auto bits = static_cast<unsigned>(wanted);
  return (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & bits) == bits;
}

std::int64_t targets_beyond_the_limit() {
  // Larger targets have lower bits.
  if (!allows(dnnl::cpu_isa::avx2)) return 2 * HWY_AVX2 - 1;
  return allows(dnnl::cpu_isa::avx512_core) ? 0 : HWY_AVX2 - 1;
}
#else
std::int64_t targets_beyond_the_limit() { return 0; }
#endif

}  // namespace

const char* instruction_set() {
  static const char* const name = [] {
    const std::int64_t beyond = targets_beyond_the_limit();
    if (beyond != 0) hwy::DisableTargets(beyond);
    const std::int64_t targets = hwy::SupportedTargets();
    // SupportedTargets() makes Highway dispatch to all of the processor's targets again, including
    // disabled ones.
    if (beyond != 0) hwy::DisableTargets(beyond);
    return hwy::TargetName(targets & -targets);
  }();
  return name;
}

void limit_instruction_set() { (void)instruction_set(); }

bool allows_avx512_bf16() {
#if defined(__x86_64__)
  static const bool allowed = allows(dnnl::cpu_isa::avx512_core_bf16);
  return allowed;
#else
  return false;
#endif
}

}  // namespace shoal::kernels
