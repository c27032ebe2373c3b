// Replaces NCCL in one process whose ranks are threads. CUDA devices are host memory or emulated
// GPUs. The shim records calls and executes them as NCCL would: in the order of each rank's
// launches, once every participating rank has reached its own. It refuses a collective that only
// some ranks launch from a graph.
#pragma once

#include <string>
#include <vector>

namespace shoal::test::nccl_shim {

inline constexpr int kDevices = 8;

// The calls of a rank of the world since clear(): "allReduce 16 f32 sum", "send 4 f32 to 1".
// "launch 3" marks the end of a group of three calls; a call without a group has a launch of its
// own.
std::vector<std::string> calls(int rank);
// The memory calls of all ranks since clear(), in order: "memAlloc 8388608", "deviceSynchronize"
// and "memFree".
std::vector<std::string> memory_calls();
void clear();  // also forgets what was launched

void pretend_version(int version);  // the result of ncclGetVersion after this call
// Makes ncclCommGetAsyncError of that rank report a remote error, until clear().
void pretend_remote_error(int rank);

}  // namespace shoal::test::nccl_shim
