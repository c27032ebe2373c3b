// Which instructions the CPU's kernels use: the processor's, or fewer if ONEDNN_MAX_CPU_ISA, the
// variable that oneDNN reads, says so (AVX2: as on a processor without AVX-512). One switch for
// oneDNN, Highway and our own intrinsics.
#pragma once

namespace shoal::kernels {

// Takes Highway's larger targets away. Called before kernels are made; thread-safe, once a process.
void limit_instruction_set();

// The processor has AVX-512 with bf16, and the limit allows it.
bool allows_avx512_bf16();

}  // namespace shoal::kernels
