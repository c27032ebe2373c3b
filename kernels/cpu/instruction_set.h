// Instruction set of the CPU kernels: the processor's, or less if ONEDNN_MAX_CPU_ISA (oneDNN's
// variable) limits it. With AVX2, the kernels run as on a processor without AVX-512. The limit
// applies to oneDNN, Highway and our own intrinsics.
#pragma once

namespace shoal::kernels {

// Disables Highway's targets beyond the limit. Call it before making kernels; thread-safe, runs
// once a process.
void limit_instruction_set();

// "AVX2": Highway's name of the best target within the limit. Ask it, not hwy::SupportedTargets(),
// which ends the limit.
const char* instruction_set();

// The processor has AVX-512 with bf16, and the limit allows it.
bool allows_avx512_bf16();

}  // namespace shoal::kernels
