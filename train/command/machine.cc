#include "shoal/train/command/machine.h"

#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <thread>

#include <dlfcn.h>
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>
#include <sched.h>
#include <sys/statvfs.h>

#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/cpu_quota.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/base/kept_signals.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::command {
namespace {

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "flags" of the first processor in /proc/cpuinfo ("Features" on Arm).
std::set<std::string> cpu_flags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with("flags") && !line.starts_with("Features")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    return {std::istream_iterator<std::string>(words), {}};
  }
  return {};
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown processor";
}

std::int64_t meminfo(const std::string& name) {  // in bytes; -1 if /proc/meminfo lacks the name
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line))
    if (std::istringstream fields(line); line.starts_with(name + ":")) {
      std::string label;
      if (std::int64_t kib = 0; fields >> label >> kib) return kib * 1024;
    }
  return -1;
}

std::string affinity_list() {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) != 0) return "unknown";
  std::string text;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &mask)) continue;
    int last = core;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &mask)) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", core);
    if (last > core) text += fmt::format("-{}", last);
    core = last;
  }
  return text;
}

// "2 usable: 4 by affinity (0-3), 2.5 by the CPU quota in /sys/fs/cgroup/job/cpu.max, which binds;
// 8 in the machine"
std::string cores_text() {
  const int affinity = affinity_cores();
  std::string text =
      fmt::format("{} usable: {} by affinity ({})", available_cores(), affinity, affinity_list());
  if (const CpuQuota* const quota = tightest(own_cpu_quotas())) {
    const bool binds = quota->cores < affinity;
    text += fmt::format("{}, {:.6g} by the CPU quota in {}{}", binds ? "" : ", which binds",
                        quota->cores, quota->file, binds ? ", which binds" : "");
  } else {
    text += ", no CPU quota";
  }
  return text + fmt::format("; {} in the machine", std::thread::hardware_concurrency());
}

Finding flag(const std::set<std::string>& flags, const char* name, const char* word,
             const char* with, const char* without) {
  const bool present = flags.contains(word);
  return {name, present ? "yes" : "no", present, present ? with : without};
}

struct Library {
  explicit Library(std::initializer_list<const char*> names) {
    const KeptSignals kept;
    for (const char* name : names)
      if (handle == nullptr) handle = ::dlopen(name, RTLD_LAZY | RTLD_LOCAL);
  }
  ~Library() {
    if (handle != nullptr) ::dlclose(handle);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  template <typename F>
  F symbol(const char* name) const {
    return handle == nullptr ? nullptr : reinterpret_cast<F>(::dlsym(handle, name));
  }
  void* handle = nullptr;
};

// Output of a program; nullopt if it is not installed.
std::optional<std::string> output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      ::popen((command + " 2>/dev/null").c_str(), "r"), &::pclose);
  if (!pipe) return std::nullopt;
  std::string text;
  std::array<char, 4096> block{};
  while (const std::size_t got = std::fread(block.data(), 1, block.size(), pipe.get()))
    text.append(block.data(), got);
  if (text.empty()) return std::nullopt;
  return text;
}

// Works without NVML and in any build: the driver's own directory lists the GPUs.
std::vector<std::string> gpus_of_driver() {
  std::vector<std::string> names;
  best_effort("ask the driver for its GPUs", [&] {
    for (const DirectoryEntry& entry : list_directory_if_there("/proc/driver/nvidia/gpus")) {
      std::ifstream file(entry.path + "/information");
      std::string line;
      while (std::getline(file, line))
        if (line.starts_with("Model:"))
          names.push_back(line.substr(line.find_first_not_of(" \t", 6)));
    }
  });
  return names;
}

Finding gpu_finding() {
  DeviceBackend& cuda = device_backend(DeviceType::cuda);
  if (const int usable = cuda.count(); usable > 0)
    return {"GPU", fmt::format("{} x {}", usable, cuda.describe(Device::cuda(0))), true,
            usable == 1 ? "shoal train uses it: --use_cpu leaves it alone"
                        : "shoal train: one for each rank of a host; --use_cpu leaves them alone"};
  const std::vector<std::string> names = gpus_of_driver();
  if (names.empty()) return {"GPU", "none", false, "training runs on the CPU"};
  return {"GPU", fmt::format("{} x {}", names.size(), names.front()), true,
          "training runs on the CPU: this build has no CUDA kernels (./dev build cuda makes one "
          "that has), or CUDA_VISIBLE_DEVICES hides the GPU"};
}

Finding cuda_finding() {
  const std::string made_for = kernels::cuda_architectures();
  if (made_for.empty())
    return {"CUDA kernels", "none", false, "this build is for the CPU (-DSHOAL_CUDA=ON: GPUs too)"};
  return {"CUDA kernels", made_for, true,
          "compiled for GPUs of these compute capabilities (CMAKE_CUDA_ARCHITECTURES)"};
}

Finding nccl_finding() {
  const Library nccl({"libnccl.so.2"});
  const auto version = nccl.symbol<int (*)(int*)>("ncclGetVersion");
  int number = 0;
  if (version == nullptr || version(&number) != 0)
    return {"NCCL", "not found", false, "collectives between GPUs are native ones then"};
  return {"NCCL", fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100), true,
          "collectives between ranks that have a GPU each, in builds with -DSHOAL_CUDA=ON"};
}

Finding mpi_finding() {
  // MPI_Get_library_version may be called before MPI_Init.
  const Library mpi({"libmpi.so.40", "libmpi.so.12", "libmpi.so"});
  const auto version = mpi.symbol<int (*)(char*, int*)>("MPI_Get_library_version");
  if (version == nullptr)
    return {"MPI", "not found", false, "no mpirun and no backend mpi; torchrun-style launch works"};
  std::array<char, 8192> text{};
  int length = 0;
  version(text.data(), &length);
  std::string line(text.data());
  line = line.substr(0, line.find_first_of(",\n"));
  return {"MPI", line, true, "mpirun, and backend mpi"};
}

Finding fabric_finding() {
  const Library fabric({"libfabric.so.1"});
  if (fabric.handle == nullptr)
    return {
        "libfabric", "not found", false,
        "needed between hosts (transport efa, tcp, udp): install libfabric-dev and libhwloc-dev"};
  const auto version = fabric.symbol<std::uint32_t (*)()>("fi_version");
  std::string value = "found";
  if (version != nullptr) value = fmt::format("{}.{}", version() >> 16U, version() & 0xFFFFU);
  std::set<std::string> providers;
  if (const auto list = output_of("fi_info -l")) {
    std::istringstream lines(*list);
    std::string line;
    while (std::getline(lines, line))
      if (!line.empty() && line.back() == ':' && !line.starts_with("ofi_hook_"))
        providers.insert(line.substr(0, line.size() - 1));
  }
  if (!providers.empty()) value += fmt::format(" ({})", fmt::join(providers, ", "));
  return {"libfabric", value, true,
          providers.empty() ? "transport between hosts; install libfabric-bin to see its providers"
                            : "transport between hosts"};
}

}  // namespace

std::vector<Finding> processor_findings() {
  std::vector<Finding> all;
  all.push_back({"processor", cpu_name(), true, ""});
  all.push_back(
      {"cores", cores_text(), true,
       "threads of a rank = its cores, or its control group's CPU quota, / the ranks that "
       "share them"});
  const auto flags = cpu_flags();
  all.push_back(flag(flags, "AVX2", "avx2", "vector kernels", "kernels run on the baseline: slow"));
  all.push_back(flag(flags, "AVX-512", "avx512f", "wider vector kernels", "AVX2 is used instead"));
  all.push_back(flag(flags, "AVX-512 bf16", "avx512_bf16", "bf16 products",
                     "bf16 products are emulated, and slower than f32"));
  all.push_back(flag(flags, "AMX bf16", "amx_bf16", "bf16 products at full speed",
                     "without it bf16 products run on AVX-512 bf16, if at all"));
  const std::int64_t total = meminfo("MemTotal");
  const FreeMemory room = free_memory();
  all.push_back(
      {"memory",
       fmt::format("{} free of {}{}", format_bytes(meminfo("MemAvailable")), format_bytes(total),
                   room.known() && room.total < total
                       ? fmt::format(", limited to {} by {}", format_bytes(room.total), room.bound)
                       : ""),
       true,
       "AdamW in bf16 takes 18 bytes a parameter (stochastic_rounding: 14), in f32 16, a "
       "checkpoint being written 12 more"});
  const std::string huge = first_line("/sys/kernel/mm/transparent_hugepage/enabled");
  const bool huge_on = huge.find("[never]") == std::string::npos && !huge.empty();
  all.push_back({"huge pages", huge.empty() ? "unknown" : huge, huge_on,
                 huge_on ? "large blocks use them" : "large blocks cost more TLB misses"});
  struct statvfs shm{};
  if (::statvfs("/dev/shm", &shm) == 0) {
    const auto bytes = static_cast<std::int64_t>(shm.f_blocks * shm.f_frsize);
    all.push_back(
        {"/dev/shm", format_bytes(bytes), true, "may be small: ranks share memory through memfd"});
  } else {
    all.push_back({"/dev/shm", "not there", false, "not needed: ranks share memory through memfd"});
  }
  return all;
}

std::vector<Finding> library_findings() {
  std::vector<Finding> all;
  const dnnl_version_t* dnnl = dnnl_version();
  all.push_back({"oneDNN", fmt::format("{}.{}.{}", dnnl->major, dnnl->minor, dnnl->patch), true,
                 "matrix products on the CPU"});
  all.push_back(mpi_finding());
  all.push_back(gpu_finding());
  all.push_back(cuda_finding());
  all.push_back(nccl_finding());
  all.push_back(fabric_finding());
  all.push_back(nccl_network_finding());
  return all;
}

}  // namespace shoal::command
