// What stands for a network card: an IPv4 interface of this host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "wire.h"
#include <netinet/in.h>

namespace shoal::test::efa {

struct Card {
  std::string domain;     // "rdmap0s6-rdm"; the number is its place among the cards
  std::string interface;  // "eth0"
  in_addr address{};
  Address gid() const;  // of the card: no port, no key
};

// In the order of their names: those that SHOAL_TEST_EFA_INTERFACES says (once for each mention),
// else all that are up but loopback, else loopback.
std::vector<Card> find_cards();

// "fi_addr_efa://[::ffff:10.0.0.1]:4791:77", as fi_av_straddr gives it.
std::string text_of(const Address& address);
// An address as fi_getinfo's node: IPv4, or IPv6 that holds one.
std::optional<Address> parse_node(const char* node);

}  // namespace shoal::test::efa
