// The provider's answers to fi_getinfo.
#pragma once

#include <memory>
#include <string_view>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

namespace shoal::test::efa {

inline constexpr const char* kFabricName = "efa";
inline constexpr const char* kDirectFabricName = "efa-direct";
inline constexpr std::size_t kInjectBytes = 32;
inline constexpr std::size_t kTransmitQueue = 512, kReceiveQueue = 1024;
inline constexpr std::size_t kLargestDirectWrite = std::size_t{1} << 30;

inline bool is_direct(const fi_info& info) {
  return info.fabric_attr && info.fabric_attr->name &&
         std::string_view(info.fabric_attr->name) == kDirectFabricName;
}

// Implements fi_provider::getinfo.
int get_info(std::uint32_t version, const char* node, const char* service, std::uint64_t flags,
             const fi_info* hints, fi_info** info);

}  // namespace shoal::test::efa
