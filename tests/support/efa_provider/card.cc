#include "card.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "options.h"
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>

namespace shoal::test::efa {
namespace {

struct Interface {
  std::string name;
  in_addr address{};
  bool loopback = false;
};

std::vector<Interface> interfaces_that_are_up() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || entry->ifa_addr->sa_family != AF_INET ||
        (entry->ifa_flags & IFF_UP) == 0 ||
        std::ranges::find(found, entry->ifa_name, &Interface::name) != found.end())
      continue;
    sockaddr_in address{};
    std::memcpy(&address, entry->ifa_addr, sizeof address);
    found.push_back({entry->ifa_name, address.sin_addr, (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  ::freeifaddrs(list);
  std::ranges::sort(found, {}, &Interface::name);
  return found;
}

Address address_of(in_addr address) {
  Address made;
  made.gid[10] = made.gid[11] = 0xff;
  std::memcpy(made.gid.data() + 12, &address, 4);
  return made;
}

}  // namespace

Address Card::gid() const { return address_of(address); }

std::vector<Card> find_cards() {
  const std::vector<Interface> up = interfaces_that_are_up();
  const std::vector<std::string> wanted = wanted_interfaces();
  std::vector<Interface> chosen;
  for (const std::string& name : wanted)
    for (const Interface& one : up)
      if (one.name == name) chosen.push_back(one);
  if (wanted.empty()) {
    std::ranges::copy_if(up, std::back_inserter(chosen), [](auto& one) { return !one.loopback; });
    if (chosen.empty()) chosen = up;
  }
  std::vector<Card> cards;
  for (const Interface& one : chosen)
    cards.push_back({"rdmap" + std::to_string(cards.size()) + "s6-rdm", one.name, one.address});
  return cards;
}

std::string text_of(const Address& address) {
  std::array<char, INET6_ADDRSTRLEN> gid{};
  ::inet_ntop(AF_INET6, address.gid.data(), gid.data(), gid.size());
  return "fi_addr_efa://[" + std::string(gid.data()) + "]:" + std::to_string(address.qpn) + ":" +
         std::to_string(address.qkey);
}

std::optional<Address> parse_node(const char* node) {
  in_addr v4{};
  if (::inet_pton(AF_INET, node, &v4) == 1) return address_of(v4);
  Address address;
  if (::inet_pton(AF_INET6, node, address.gid.data()) == 1) return address;
  return std::nullopt;
}

}  // namespace shoal::test::efa
