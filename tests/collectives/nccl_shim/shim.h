// Stands in for NCCL in one process, whose ranks are threads; for CUDA devices host memory does, or
// emulated GPUs. Calls are recorded, and carried out as NCCL would: in the order of each rank's
// launches, once every rank that takes part has come to its own. What some ranks launch from a
// graph and others do not is refused.
#pragma once

#include <string>
#include <vector>

namespace shoal::test::nccl_shim {

inline constexpr int kDevices = 8;

// What a rank of the world has called since clear(): "allReduce 16 f32 sum", "send 4 f32 to 1",
// and "launch 3" where a group of three ends, or one call that has no group.
std::vector<std::string> calls(int rank);
// What all ranks asked of memory since then, in order: "memAlloc 8388608", "deviceSynchronize" and
// "memFree".
std::vector<std::string> memory_calls();
void clear();  // and forgets what was launched

void pretend_version(int version);  // what ncclGetVersion says from now on
// ncclCommGetAsyncError of that rank says so, until clear().
void pretend_remote_error(int rank);

}  // namespace shoal::test::nccl_shim
