// A simulated network card: an IPv4 interface of this host.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "wire.h"
#include <netinet/in.h>

namespace shoal::test::efa {

struct Card {
  std::string domain;     // "rdmap0s6-rdm"; the number is the card's index
  std::string interface;  // "eth0"
  in_addr address{};
  Address gid() const;  // the card's address, without port and key
};

// Lists the cards in the order of their names: the interfaces that SHOAL_TEST_EFA_INTERFACES names
// (one card for each mention), or else all interfaces that are up except loopback, or else
// loopback.
std::vector<Card> find_cards();

// Formats an address as fi_av_straddr does: "fi_addr_efa://[::ffff:10.0.0.1]:4791:77".
std::string text_of(const Address& address);
// Parses the `node` argument of fi_getinfo: an IPv4 address, or an IPv6 address that maps one.
std::optional<Address> parse_node(const char* node);

}  // namespace shoal::test::efa
