// The emulated machine, as environment variables describe it, and CUDA's error texts.
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "memory.h"
#include "settings.h"
#include "stream.h"
#include <fmt/format.h>

namespace shoal::emulated_gpu {
namespace {

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

[[noreturn]] void refuse(const char* name, std::string_view value, const char* allowed) {
  fail(fmt::format("{} is '{}'; it may be {}", name, value, allowed));
}

std::size_t number(const char* name, std::size_t otherwise, std::size_t lowest,
                   std::size_t highest) {
  const char* set = std::getenv(name);
  if (!set) return otherwise;
  const std::string_view text = set;
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.begin(), text.end(), value);
  if (problem != std::errc{} || end != text.end() || value < lowest || value > highest)
    refuse(name, text, fmt::format("{} to {}", lowest, highest).c_str());
  return value;
}

// Parses the list as CUDA does: entries from the first invalid one on are ignored.
std::vector<int> visible_of(int devices) {
  std::vector<int> visible;
  const char* set = std::getenv("CUDA_VISIBLE_DEVICES");
  for (int device = 0; !set && device < devices; ++device) visible.push_back(device);
  for (std::string_view rest = set ? set : ""; !rest.empty();) {
    int device = -1;
    const auto [end, problem] = std::from_chars(rest.begin(), rest.end(), device);
    if (problem != std::errc{} || device < 0 || device >= devices) break;
    visible.push_back(device);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.begin()));
    if (!rest.starts_with(',')) break;
    rest.remove_prefix(1);
  }
  return visible;
}

// Differs for each GPU of each host, real or pretended.
cudaUUID_t uuid_of(int number) {
  const char* host = std::getenv("SHOAL_HOST_NAME");
  const std::size_t of_host = std::hash<std::string_view>()(host ? host : "");
  cudaUUID_t made{};
  std::memcpy(made.bytes, &of_host, sizeof of_host);
  made.bytes[15] = static_cast<char>(number);
  return made;
}

// KiB of shared memory that a block may request (Programming Guide, "Technical Specifications per
// Compute Capability").
int shared_memory_of(int major, int minor) {
  switch (10 * major + minor) {
    case 70:
      return 96;
    case 75:
      return 64;
    case 80:
    case 87:
      return 163;
    case 86:
    case 89:
      return 99;
    default:
      return major == 12 ? 99 : 227;
  }
}

// Parses an environment variable such as "12.0" into major and minor version. False if it is unset.
bool version(const char* name, int most, int& major, int& minor) {
  const char* set = std::getenv(name);
  if (!set) return false;
  const std::string_view text = set;
  const std::size_t point = text.find('.');
  const auto part = [](std::string_view digits, int& value) {
    const auto [end, problem] = std::from_chars(digits.begin(), digits.end(), value);
    return problem == std::errc{} && end == digits.end() && value >= 0;
  };
  if (point == std::string_view::npos || !part(text.substr(0, point), major) ||
      !part(text.substr(point + 1), minor) || major < 1 || major > most || minor > 9)
    refuse(name, text, "such as 12.0");
  return true;
}

Settings read() {
  Settings made;
  made.visible = visible_of(static_cast<int>(number("SHOAL_EMULATED_GPUS", 1, 0, 16)));
  made.devices = static_cast<int>(made.visible.size());
  made.memory =
      number("SHOAL_EMULATED_GPU_MEMORY", made.memory, std::size_t{1} << 16, std::size_t{1} << 38);
  (void)version("SHOAL_EMULATED_GPU_CAPABILITY", 12, made.major, made.minor);
  made.shared_memory = shared_memory_of(made.major, made.minor) << 10;
  if (int major = 0, minor = 0; version("SHOAL_EMULATED_GPU_DRIVER", 13, major, minor)) {
    made.driver = 1000 * major + 10 * minor;
    made.runtime = major < 13 ? 1000 * major + 90 : made.driver;
  }
  made.contexts = number("SHOAL_EMULATED_GPU_CONTEXTS", made.contexts, 1, 16);
  made.cudnn = static_cast<int>(number("SHOAL_EMULATED_GPU_CUDNN", 0, 0, 99999));
  made.values = number("SHOAL_EMULATED_GPU_STREAM_VALUES", 1, 0, 1) == 1;
  if (const char* set = std::getenv("CUDA_LAUNCH_BLOCKING"))
    made.eager = std::string_view(set) == "1";  // as CUDA reads it
  if (const char* set = std::getenv("SHOAL_EMULATED_GPU_STREAMS")) {
    const std::string_view text = set;
    if (text != "late" && text != "eager")
      refuse("SHOAL_EMULATED_GPU_STREAMS", text, "late or eager");
    made.eager = text == "eager";
  }
  if (const char* set = std::getenv("SHOAL_EMULATED_GPU_RDMA"))
    made.cards_reach = std::string_view(set) != "0";
  return made;
}

struct Words {
  const char *name, *text;
};
Words words(cudaError_t error) {
  switch (error) {
#define SHOAL_CUDA_WORDS(value, text) \
  case value:                         \
    return {#value, text};
    SHOAL_CUDA_WORDS(cudaSuccess, "no error")
    SHOAL_CUDA_WORDS(cudaErrorInvalidValue, "invalid argument")
    SHOAL_CUDA_WORDS(cudaErrorMemoryAllocation, "out of memory")
    SHOAL_CUDA_WORDS(cudaErrorInitializationError, "initialization error")
    SHOAL_CUDA_WORDS(cudaErrorInvalidConfiguration, "invalid configuration argument")
    SHOAL_CUDA_WORDS(cudaErrorInvalidMemcpyDirection, "invalid copy direction for memcpy")
    SHOAL_CUDA_WORDS(cudaErrorInsufficientDriver,
                     "CUDA driver version is insufficient for CUDA runtime version")
    SHOAL_CUDA_WORDS(cudaErrorDevicesUnavailable,
                     "CUDA-capable device(s) is/are busy or unavailable")
    SHOAL_CUDA_WORDS(cudaErrorNoDevice, "no CUDA-capable device is detected")
    SHOAL_CUDA_WORDS(cudaErrorInvalidDevice, "invalid device ordinal")
    SHOAL_CUDA_WORDS(cudaErrorDeviceUninitialized, "invalid device context")
    SHOAL_CUDA_WORDS(cudaErrorMapBufferObjectFailed, "mapping of buffer object failed")
    SHOAL_CUDA_WORDS(cudaErrorNoKernelImageForDevice,
                     "no kernel image is available for execution on the device")
    SHOAL_CUDA_WORDS(cudaErrorInvalidResourceHandle, "invalid resource handle")
    SHOAL_CUDA_WORDS(cudaErrorIllegalState,
                     "the operation cannot be performed in the present state")
    SHOAL_CUDA_WORDS(cudaErrorNotReady, "device not ready")
    SHOAL_CUDA_WORDS(cudaErrorIllegalAddress, "an illegal memory access was encountered")
    SHOAL_CUDA_WORDS(cudaErrorPeerAccessAlreadyEnabled, "peer access is already enabled")
    SHOAL_CUDA_WORDS(cudaErrorNotPermitted, "operation not permitted")
    SHOAL_CUDA_WORDS(cudaErrorNotSupported, "operation not supported")
    SHOAL_CUDA_WORDS(cudaErrorSystemDriverMismatch,
                     "system has unsupported display driver / cuda driver combination")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureUnsupported,
                     "operation not permitted when stream is capturing")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureInvalidated,
                     "operation failed due to a previous error during capture")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureMerge,
                     "operation would result in a merge of separate capture sequences")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureUnmatched,
                     "capture was not ended in the same stream as it began")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureUnjoined, "capturing stream has unjoined work")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureIsolation,
                     "dependency created on uncaptured work in another stream")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureImplicit,
                     "operation would make the legacy stream depend on a capturing blocking stream")
    SHOAL_CUDA_WORDS(cudaErrorCapturedEvent,
                     "operation not permitted on an event last recorded in a capturing stream")
    SHOAL_CUDA_WORDS(cudaErrorStreamCaptureWrongThread,
                     "attempt to terminate a thread-local capture sequence from another thread")
#undef SHOAL_CUDA_WORDS
  }
  return {"unrecognized error code", "unrecognized error code"};
}

// Keyed by device and kernel.
std::map<std::pair<int, const void*>, int>& dynamic_limits() {
  static auto& all = *new std::map<std::pair<int, const void*>, int>;
  return all;
}

// Devices on which this process has a context.
std::set<int>& with_context() {
  static auto& all = *new std::set<int>;
  return all;
}

}  // namespace

const Settings& settings() {
  static const Settings made = read();
  return made;
}

cudaError_t failed(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void make_context(const char* name, int device) {
  if (!with_context().insert(device).second || with_context().size() <= settings().contexts) return;
  fail(fmt::format("{} makes a context on device {}: number {} of this process, which may have {}",
                   name, device, with_context().size(), settings().contexts));
}
bool has_context(int device) { return with_context().contains(device); }
std::vector<int> contexts() {
  const Lock lock(Streams::get().mutex);
  return {with_context().begin(), with_context().end()};
}
void forget_contexts() {
  const Lock lock(Streams::get().mutex);
  with_context().clear();
}

int dynamic_shared_limit(const void* kernel) {
  const Lock lock(Streams::get().mutex);
  const auto found = dynamic_limits().find({current, kernel});
  return found == dynamic_limits().end() ? kSharedMemory : found->second;
}

}  // namespace shoal::emulated_gpu

using namespace shoal::emulated_gpu;

cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
const char* cudaGetErrorName(cudaError_t error) { return words(error).name; }
const char* cudaGetErrorString(cudaError_t error) { return words(error).text; }

cudaError_t cudaDriverGetVersion(int* version) {
  if (!version) return failed(cudaErrorInvalidValue);
  *version = settings().driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  if (!version) return failed(cudaErrorInvalidValue);
  *version = settings().runtime;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count) *count = 0;
  return call_without_context("cudaGetDeviceCount", [&](Lock&) {
    if (!count) return cudaErrorInvalidValue;
    *count = settings().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  if (!device) return failed(cudaErrorInvalidValue);
  *device = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  return call_without_context("cudaSetDevice", [&](Lock&) {
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    current = device;
    make_context("cudaSetDevice", device);
    return cudaSuccess;
  });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call_without_context("cudaGetDeviceProperties", [&](Lock&) {
    if (!properties) return cudaErrorInvalidValue;
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::strcpy(properties->name, "Emulated GPU");
    properties->uuid = uuid_of(settings().visible[static_cast<std::size_t>(device)]);
    properties->totalGlobalMem = settings().memory;
    properties->major = settings().major;
    properties->minor = settings().minor;
    properties->multiProcessorCount = kMultiprocessors;
    properties->sharedMemPerBlock = kSharedMemory;
    properties->sharedMemPerBlockOptin = static_cast<std::size_t>(settings().shared_memory);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call_without_context("cudaDeviceGetAttribute", [&](Lock&) {
    if (!value) return cudaErrorInvalidValue;
    if (device < 0 || device >= settings().devices) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = kMultiprocessors;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = settings().major;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = settings().minor;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = settings().shared_memory;
        return cudaSuccess;
      case cudaDevAttrGPUDirectRDMASupported:
        *value = settings().cards_reach;
        return cudaSuccess;
      case cudaDevAttrGPUDirectRDMAFlushWritesOptions:
        *value = cudaFlushGPUDirectRDMAWritesOptionHost;
        return cudaSuccess;
      case cudaDevAttrGPUDirectRDMAWritesOrdering:
        *value = cudaGPUDirectRDMAWritesOrderingNone;
        return cudaSuccess;
    }
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](Lock&) {
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  return call("cudaFuncSetAttribute", [&](Lock&) {
    if (!kernel || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > settings().shared_memory)
      return cudaErrorInvalidValue;
    dynamic_limits()[{current, kernel}] = value;
    return cudaSuccess;
  });
}
