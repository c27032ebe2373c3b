// Checks whether NCCL would find a network plugin (aws-ofi-nccl, for EFA), searching like NCCL
// 2.28.
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <strings.h>

#include "shoal/train/command/machine.h"

namespace shoal::command {
namespace {

// Versions of NCCL's plugin interface. NCCL uses the newest version that the plugin supports too.
constexpr int kNewest = 30, kOldest = 5;

std::string value_of(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// File names that NCCL tries for NCCL_NET_PLUGIN, in order.
std::vector<std::string> candidates(const std::string& plugins) {
  if (plugins.empty()) return {"libnccl-net.so"};
  std::vector<std::string> all;
  std::istringstream list(plugins);
  for (std::string name; std::getline(list, name, ',');) {
    all.push_back(name);
    const bool is_file =
        name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"));
    if (!is_file) all.push_back("libnccl-net-" + name + ".so");
  }
  return all;
}

// "Libfabric, interface 11, libfabric 2.6"; empty: not a plugin.
struct Plugin {
  std::string name, description;
};
Plugin look_into(void* library) {
  for (int version = kNewest; version >= kOldest; --version) {
    // Every version of the structure starts with the network's name.
    const auto* begin = static_cast<const char* const*>(
        ::dlsym(library, fmt::format("ncclNetPlugin_v{}", version).c_str()));
    if (begin == nullptr) continue;
    Plugin plugin{*begin, fmt::format("{}, interface {}", *begin, version)};
    // The process's libfabric: Shoal, MPI and the plugin share one.
    if (auto* fabric = reinterpret_cast<unsigned (*)()>(::dlsym(library, "fi_version")))
      plugin.description += fmt::format(", libfabric {}.{}", fabric() >> 16U, fabric() & 0xFFFFU);
    return plugin;
  }
  return {};
}

}  // namespace

Finding nccl_network_finding() {
  constexpr const char* kRow = "NCCL network";
  constexpr const char* kSockets = "between hosts NCCL would use sockets, not EFA";
  const std::string plugins = value_of("NCCL_NET_PLUGIN"), network = value_of("NCCL_NET");
  if (::strcasecmp(plugins.c_str(), "none") == 0)
    return {kRow, "NCCL_NET_PLUGIN is none", false, kSockets};
  std::string problems;
  for (const std::string& name : candidates(plugins)) {
    // Never closed, as in NCCL: libraries that a plugin loads do not support unloading.
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    const Plugin plugin = library == nullptr ? Plugin{} : look_into(library);
    if (plugin.description.empty()) {
      std::string why = library == nullptr ? ::dlerror() : "it has no ncclNetPlugin_v...";
      // If the loader found no such file, its message starts with the name itself.
      if (why.starts_with(name + ": ")) why.erase(0, name.size() + 2);
      problems += fmt::format("{}{}: {}", problems.empty() ? "" : "; ", name, why);
      continue;
    }
    const std::string found = fmt::format("{} ({})", plugin.description, name);
    if (!network.empty() && ::strcasecmp(network.c_str(), plugin.name.c_str()) != 0)
      return {kRow, found, false, fmt::format("NCCL_NET={} keeps NCCL from it", network)};
    return {kRow, found, true, "between hosts NCCL reaches what the plugin does (EFA)"};
  }
  return {kRow, "none", false, fmt::format("{}: {}", kSockets, problems)};
}

}  // namespace shoal::command
