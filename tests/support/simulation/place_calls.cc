// What a fiber asks of its machine: host name, namespaces, random numbers, cards. libfabric is
// replaced by the simulated EFA of support/efa_provider, whose packets are simulated UDP.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <string_view>

#include "support/efa_provider/domain.h"
#include "support/efa_provider/info.h"
#include "support/simulation/network.h"
#include "support/simulation/real_call.h"
#include <dlfcn.h>
#include <hwloc.h>
#include <rdma/fabric.h>
#include <rdma/fi_errno.h>
#include <sys/random.h>
#include <unistd.h>

namespace shoal::simulation {
namespace {

constexpr const char* kProvider = "efa";
int handle = 0;  // its address stands for the library

// As libfabric's own, which asks each provider and signs what they offer.
int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** found) {
  const char* wanted = hints && hints->fabric_attr ? hints->fabric_attr->prov_name : nullptr;
  if (wanted && std::string_view(wanted) != kProvider) return -FI_ENODATA;
  const int result = test::efa::get_info(version, node, service, flags, hints, found);
  for (fi_info* info = result == 0 ? *found : nullptr; info; info = info->next) {
    info->fabric_attr->prov_name = ::strdup(kProvider);
    info->fabric_attr->api_version = version;
  }
  return result;
}

void* function_of_fabric(std::string_view name) {
  if (name == "fi_version") return reinterpret_cast<void*>(&::fi_version);
  if (name == "fi_getinfo") return reinterpret_cast<void*>(&get_info);
  if (name == "fi_dupinfo") return reinterpret_cast<void*>(&::fi_dupinfo);
  if (name == "fi_freeinfo") return reinterpret_cast<void*>(&::fi_freeinfo);
  if (name == "fi_fabric") return reinterpret_cast<void*>(&test::efa::open_fabric);
  if (name == "fi_strerror") return reinterpret_cast<void*>(&::fi_strerror);
  return nullptr;
}

}  // namespace
}  // namespace shoal::simulation

using namespace shoal::simulation;  // NOLINT(google-build-using-namespace)

// Its numbers become keys, which tables are sorted by.
std::random_device::result_type std::random_device::_M_getval() {
  result_type number = 0;
  (void)!::getrandom(&number, sizeof number, 0);
  return number;
}

extern "C" {

ssize_t getrandom(void* data, std::size_t bytes, unsigned int flags) {
  SHOAL_REAL_CALL(getrandom);
  if (!running()) return next(data, bytes, flags);
  auto* to = static_cast<unsigned char*>(data);
  std::generate(to, to + bytes, [] { return static_cast<unsigned char>(scheduler().random(256)); });
  return static_cast<ssize_t>(bytes);
}

int gethostname(char* name, std::size_t room) noexcept {
  SHOAL_REAL_CALL(gethostname);
  if (!running()) return next(name, room);
  const std::string& own = network().host(running()->process->host).name;
  std::strncpy(name, own.c_str(), room);
  return 0;
}

// Each simulated host has a network namespace of its own.
ssize_t readlink(const char* path, char* target, std::size_t room) noexcept {
  SHOAL_REAL_CALL(readlink);
  if (!running() || std::string_view(path) != "/proc/self/ns/net") return next(path, target, room);
  const std::string& own = network().host(running()->process->host).name;
  const std::size_t bytes = std::min(room, own.size());
  std::memcpy(target, own.data(), bytes);
  return static_cast<ssize_t>(bytes);
}

void* dlopen(const char* name, int flags) noexcept {
  SHOAL_REAL_CALL(dlopen);
  const bool is_fabric = running() && name && std::string_view(name) == "libfabric.so.1";
  return is_fabric ? &handle : next(name, flags);
}

void* dlvsym(void* library, const char* name, const char* version) noexcept {
  SHOAL_REAL_CALL(dlvsym);
  return library == &handle ? function_of_fabric(name) : next(library, name, version);
}

// Reads the topology of the real machine otherwise, which takes longer than a simulated job.
int hwloc_topology_load(hwloc_topology_t topology) {
  SHOAL_REAL_CALL(hwloc_topology_load);
  return running() ? -1 : next(topology);
}

}  // extern "C"
