// Where a process runs, as others can compare it: its host's name, and what the kernel says. Two
// containers of one machine may have one host name and yet not reach each other.
#pragma once

#include <string>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::transport {

// A field that the kernel does not provide (no /proc) is empty and equals every value.
struct HostIdentity {
  std::string name;       // as gethostname() says
  std::string machine;    // of this start of it
  std::string network;    // namespaces: "net:[4026531840]", of sockets
  std::string processes;  // of process numbers
  std::string users;      // of who may do what
};

HostIdentity own_identity();

// As lines of a card.
std::string to_card(const HostIdentity& identity);
HostIdentity read_identity(CardFields& card);

bool differ(const std::string& a, const std::string& b);

// Whether the one reaches what the other listens on at a loopback address or an abstract name.
bool share_loopback(const HostIdentity& a, const HostIdentity& b);

// Ranks that take themselves for those of one host and are not: unavailable, with the remedy.
// `hosts` are those of `ranks`; the first that differs from hosts[own] is named.
void check_one_host(const std::vector<HostIdentity>& hosts, const std::vector<int>& ranks, int own);

// Why ranks of one machine may not reach each other's memory by process numbers: the namespaces
// that differ, and what to do. Empty: it is not that.
std::string why_memory_is_apart(const std::vector<HostIdentity>& hosts,
                                const std::vector<int>& ranks);

}  // namespace shoal::collectives::transport
