// The instruction set of the CPU kernels. It is the processor's, unless ONEDNN_MAX_CPU_ISA
// (oneDNN's variable) limits it. With the limit AVX2, for example, the kernels run as on a
// processor without AVX-512. The limit applies to oneDNN, Highway and our own intrinsics.
#pragma once

namespace shoal::kernels {

// Disables Highway's targets beyond the limit. Call it before making kernels; thread-safe, runs
// once a process.
void limit_instruction_set();

// Highway's name of the best target within the limit, such as "AVX2". Call this instead of
// hwy::SupportedTargets(), which removes the limit.
const char* instruction_set();

// True if the processor has AVX-512 with bf16 and the limit allows it.
bool allows_avx512_bf16();

}  // namespace shoal::kernels
