#include "shoal/collectives/transport/fabric/discovery.h"

#include <algorithm>
#include <array>
#include <map>

#include <arpa/inet.h>
#include <fmt/ranges.h>
#include <hwloc.h>
#include <netinet/in.h>

#include "shoal/collectives/transport/fabric/datagrams.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::fabric {
namespace {

// The version of libfabric's API that this code uses.
constexpr std::uint32_t kApiVersion = FI_VERSION(1, 14);

FiInfo make_hints(const std::string& provider, std::uint64_t caps) {
  FiInfo hints(library().dupinfo(nullptr));
  if (!hints) throw_error(ErrorCode::out_of_memory, "libfabric: fi_dupinfo");
  hints->caps = caps;
  // Modes that this code supports: the provider may write to contexts, and may use up a posted
  // receive for the data of a remote write.
  hints->mode = FI_CONTEXT | FI_CONTEXT2 | FI_RX_CQ_DATA;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
  if ((caps & FI_HMEM) != 0) hints->domain_attr->mr_mode |= FI_MR_HMEM;
  // One thread at a time: the endpoint's owner holds one lock around all calls.
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  if (!provider.empty()) hints->fabric_attr->prov_name = strdup(provider.c_str());
  return hints;
}

// Null if the provider offers nothing.
FiInfo ask(const std::string& provider, std::uint64_t caps, const char* source = nullptr) {
  bound_datagrams(library().version(), 0);
  const FiInfo hints = make_hints(provider, caps);
  fi_info* found = nullptr;
  const int result =
      library().getinfo(kApiVersion, source, nullptr, source ? FI_SOURCE : 0, hints.get(), &found);
  if (result == -FI_ENODATA) return nullptr;
  check_fabric(result, provider.empty() ? "libfabric" : provider, "fi_getinfo");
  return FiInfo(found);
}

// `memory`: FI_HMEM or 0.
FiInfo ask_with_writes_or_without(const std::string& provider, std::uint64_t memory,
                                  const char* source = nullptr) {
  FiInfo found = ask(provider, FI_MSG | FI_RMA | memory, source);
  return found || memory != 0 ? std::move(found) : ask(provider, FI_MSG, source);
}

std::string address_text(const fi_info& info) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (info.src_addr == nullptr) return {};
  if (info.addr_format == FI_SOCKADDR_IN)
    inet_ntop(AF_INET, &static_cast<const sockaddr_in*>(info.src_addr)->sin_addr, text.data(),
              text.size());
  else if (info.addr_format == FI_SOCKADDR_IN6)
    inet_ntop(AF_INET6, &static_cast<const sockaddr_in6*>(info.src_addr)->sin6_addr, text.data(),
              text.size());
  return text.data();
}

// The provider, and the fabric if it matters, for a common name.
struct Choice {
  std::string provider, fabric;
};
Choice choice_of(const std::string& name) {
  if (name == "tcp") return {"tcp;ofi_rxm", {}};
  if (name == "udp") return {"udp;ofi_rxd", {}};
  if (name == "efa") return {"efa", {}};
  if (name == "efa-direct") return {"efa", "efa-direct"};
  return {name, {}};
}

bool is_address(const std::string& name) {
  std::array<unsigned char, sizeof(in6_addr)> parsed{};
  return inet_pton(AF_INET, name.c_str(), parsed.data()) == 1 ||
         inet_pton(AF_INET6, name.c_str(), parsed.data()) == 1;
}

// Computes an interface's distance: 0 if its card is unknown or on a NUMA node whose cores this
// process may use, else 1.
class Locality {
 public:
  Locality() {
    if (hwloc_topology_init(&topology_) != 0) return;
    hwloc_topology_set_io_types_filter(topology_, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    loaded_ = hwloc_topology_load(topology_) == 0;
    own_ = hwloc_bitmap_alloc();
    if (loaded_ && hwloc_get_cpubind(topology_, own_, HWLOC_CPUBIND_PROCESS) != 0)
      hwloc_bitmap_copy(own_, hwloc_topology_get_topology_cpuset(topology_));
  }
  ~Locality() {
    hwloc_bitmap_free(own_);
    if (topology_) hwloc_topology_destroy(topology_);
  }
  Locality(const Locality&) = delete;
  Locality& operator=(const Locality&) = delete;

  int distance(const fi_info& info) const {
    if (!loaded_) return 0;
    hwloc_obj_t card = nullptr;
    if (info.nic && info.nic->bus_attr && info.nic->bus_attr->bus_type == FI_BUS_PCI) {
      const fi_pci_attr& pci = info.nic->bus_attr->attr.pci;
      card = hwloc_get_pcidev_by_busid(topology_, pci.domain_id, pci.bus_id, pci.device_id,
                                       pci.function_id);
    }
    for (hwloc_obj_t device = nullptr;
         !card && (device = hwloc_get_next_osdev(topology_, device)) != nullptr;)
      if (device->name && std::string_view(device->name) == info.domain_attr->name) card = device;
    const hwloc_obj_t place = card ? hwloc_get_non_io_ancestor_obj(topology_, card) : nullptr;
    return place && place->cpuset && !hwloc_bitmap_intersects(place->cpuset, own_) ? 1 : 0;
  }

 private:
  hwloc_topology_t topology_ = nullptr;
  hwloc_bitmap_t own_ = nullptr;
  bool loaded_ = false;
};

bool is_loopback(const fi_info& info) {
  const std::string address = address_text(info);
  return address.starts_with("127.") || address == "::1";
}

bool is_link_local(const fi_info& info) { return address_text(info).starts_with("fe80:"); }

FoundRail make_rail(const fi_info& info, const Locality& locality) {
  FoundRail rail{FiInfo(library().dupinfo(&info)), {}};
  if (!rail.info) throw_error(ErrorCode::out_of_memory, "libfabric: fi_dupinfo");
  rail.site.name = info.domain_attr->name;
  rail.site.network = info.fabric_attr->name;
  rail.site.distance = locality.distance(info);
  return rail;
}

// One rail for each named address.
std::vector<FoundRail> rails_at_addresses(const Choice& choice, std::uint64_t memory,
                                          const InterfaceFilter& filter) {
  std::vector<FoundRail> rails;
  const Locality locality;
  for (const std::string& address : filter.names) {
    const FiInfo list = ask_with_writes_or_without(choice.provider, memory, address.c_str());
    const fi_info* info = list.get();
    while (info && choice.provider != info->fabric_attr->prov_name) info = info->next;
    if (!info && memory != 0) return {};
    if (!info)
      throw_error(ErrorCode::unavailable, "{}: no endpoint at {}", choice.provider, address);
    rails.push_back(make_rail(*info, locality));
    // Addresses pair up by their position in the list: number k is one network on every rank.
    rails.back().site.name = address;
    rails.back().site.network = fmt::format("#{}", rails.size());
  }
  return rails;
}

// The best entry of each interface, by interface name: IPv4 before IPv6, then the provider's order.
std::vector<const fi_info*> one_for_each_interface(const fi_info* list, const Choice& choice) {
  std::map<std::string, const fi_info*> best;
  for (const fi_info* info = list; info; info = info->next) {
    if (choice.provider != info->fabric_attr->prov_name || is_link_local(*info)) continue;
    if (!choice.fabric.empty() && choice.fabric != info->fabric_attr->name) continue;
    const fi_info*& kept = best[info->domain_attr->name];
    if (!kept || (kept->addr_format == FI_SOCKADDR_IN6 && info->addr_format == FI_SOCKADDR_IN))
      kept = info;
  }
  std::vector<const fi_info*> found;
  for (const auto& [name, info] : best) found.push_back(info);
  return found;
}

[[noreturn]] void throw_no_provider(const FabricOptions& options, const char* why) {
  throw Error(ErrorCode::unavailable,
              fmt::format("transport '{}': {}; libfabric offers here: {}", options.provider, why,
                          fmt::join(fabric_providers(), ", ")),
              "choose one of these, or tcp, udp, efa (SHOAL_FABRIC_PROVIDER)");
}

std::vector<FoundRail> rails_with(std::uint64_t memory, const FabricOptions& options,
                                  const Choice& choice, bool one_host) {
  const bool named = !options.interfaces.empty();
  const InterfaceFilter filter =
      named ? parse_interface_filter(options.interfaces) : InterfaceFilter{true, {}};
  if (named && !filter.exclude && std::ranges::all_of(filter.names, is_address))
    return rails_at_addresses(choice, memory, filter);
  const FiInfo list = ask_with_writes_or_without(choice.provider, memory);
  std::vector<const fi_info*> loopback, others;
  for (const fi_info* info : one_for_each_interface(list.get(), choice)) {
    const std::string address = address_text(*info);
    if (!filter.admits({info->domain_attr->name, info->fabric_attr->name, address})) continue;
    if (!named && is_virtual_interface(info->domain_attr->name)) continue;
    (is_loopback(*info) ? loopback : others).push_back(info);
  }
  const bool use_loopback = !loopback.empty() && (others.empty() || (one_host && !named));
  if (named && !filter.exclude) others.insert(others.end(), loopback.begin(), loopback.end());
  std::vector<FoundRail> rails;
  const Locality locality;
  for (const fi_info* info : use_loopback ? loopback : others)
    rails.push_back(make_rail(*info, locality));
  if (rails.empty() && list && named && memory == 0)
    throw_error(ErrorCode::unavailable, "{}: none of its interfaces passes '{}'", choice.provider,
                options.interfaces);
  return rails;
}

// Sockets cannot access device memory directly: a provider over sockets would copy it.
bool is_over_sockets(const std::string& provider) {
  return provider.starts_with("tcp") || provider.starts_with("udp") ||
         provider.starts_with("sockets") || provider.starts_with("net");
}

std::vector<FoundRail> rails_of(const FabricOptions& options, const Choice& choice, bool one_host) {
  if (options.cuda_device >= 0 && !is_over_sockets(choice.provider))
    if (auto rails = rails_with(FI_HMEM, options, choice, one_host); !rails.empty()) return rails;
  return rails_with(0, options, choice, one_host);
}

}  // namespace

std::vector<std::string> fabric_providers() {
  std::vector<std::string> names;
  const FiInfo list = ask({}, FI_MSG);
  for (const fi_info* info = list.get(); info; info = info->next) {
    const std::string name = info->fabric_attr->prov_name;
    if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  }
  std::ranges::stable_partition(names, [](const std::string& name) { return name == "efa"; });
  return names;
}

std::vector<FoundRail> find_rails(const FabricOptions& options, bool one_host) {
  if (options.provider.empty()) {
    if (auto rails = rails_of(options, choice_of("efa"), one_host); !rails.empty()) return rails;
    if (auto rails = rails_of(options, choice_of("tcp"), one_host); !rails.empty()) return rails;
    throw_no_provider(options, "neither efa nor tcp is there");
  }
  auto rails = rails_of(options, choice_of(options.provider), one_host);
  if (rails.empty()) throw_no_provider(options, "no such provider with reliable datagrams");
  return rails;
}

}  // namespace shoal::collectives::fabric
