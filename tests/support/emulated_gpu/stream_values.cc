// Driver functions: streams that wait for a word in memory, and which devices have a context.
#include <atomic>
#include <string_view>

#include "memory.h"
#include "settings.h"
#include "stream.h"

using namespace shoal::emulated_gpu;

namespace {

// cuStreamWaitValue32 with CU_STREAM_WAIT_VALUE_GEQ. Its errors have the runtime's numbers.
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

// Implements cuDevicePrimaryCtxGetState.
int context_state(int device, unsigned* flags, int* active) {
  return call_without_context("cuDevicePrimaryCtxGetState", [&](Lock&) {
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    if (!flags || !active) return cudaErrorInvalidValue;
    *flags = 0;
    *active = has_context(device) ? 1 : 0;
    return cudaSuccess;
  });
}

// Returns null if this driver does not have the function.
void* driver_function(std::string_view name) {
  if (name == "cuStreamWaitValue32" && settings().values)
    return reinterpret_cast<void*>(&wait_value);
  if (name == "cuDevicePrimaryCtxGetState") return reinterpret_cast<void*>(&context_state);
  return nullptr;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* found) {
  return call_without_context("cudaGetDriverEntryPointByVersion", [&](Lock&) {
    if (!symbol || !function || !found || flags != 0) return cudaErrorInvalidValue;
    *function = version >= 12000 ? driver_function(symbol) : nullptr;
    *found = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}
