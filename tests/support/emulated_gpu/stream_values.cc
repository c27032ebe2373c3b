// Streams that wait for a word in memory.
#include <atomic>
#include <string_view>

#include "memory.h"
#include "settings.h"
#include "stream.h"

using namespace shoal::emulated_gpu;

namespace {

// As cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_GEQ; its errors have the runtime's numbers.
int wait_value(cudaStream_t handle, unsigned long long address, std::uint32_t value,
               unsigned flags) {
  return call("cuStreamWaitValue32", [&](Lock& lock) {
    const auto stream = stream_of(handle);
    if (!stream) return cudaErrorInvalidResourceHandle;
    // NOLINTNEXTLINE(performance-no-int-to-ptr): CUdeviceptr is a number
    auto* const word = reinterpret_cast<std::uint32_t*>(static_cast<std::uintptr_t>(address));
    const Place place = place_of(word, sizeof *word);
    if (flags != 0 || address % sizeof *word != 0 || !place.inside || place.kind != Kind::pinned)
      return cudaErrorInvalidValue;
    if (const cudaError_t refused = refuse_wait(lock, stream)) return refused;
    Operation wait;
    wait.uses.push_back(place.pinned);
    wait.may_run = [word, value] {
      const std::uint32_t now = std::atomic_ref(*word).load(std::memory_order_acquire);
      return static_cast<std::int32_t>(now - value) >= 0;
    };
    return submit(lock, stream, std::move(wait));
  });
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found) {
  return call("cudaGetDriverEntryPointByVersion", [&](Lock&) {
    if (!symbol || !function || !found || flags != 0) return cudaErrorInvalidValue;
    const bool known =
        std::string_view(symbol) == "cuStreamWaitValue32" && version >= 12000 && settings().values;
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    *function = known ? reinterpret_cast<void*>(&wait_value) : nullptr;
    return cudaSuccess;
  });
}
