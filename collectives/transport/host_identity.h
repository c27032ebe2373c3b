// Identifies where a process runs: its host name and identifiers from the kernel, which ranks
// compare. Two containers of one machine may have the same host name and yet not reach each other.
#pragma once

#include <string>
#include <vector>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::transport {

// A field that the kernel does not provide (no /proc) is empty and matches every value.
struct HostIdentity {
  std::string name;       // as gethostname() says
  std::string machine;    // the current boot of the machine
  std::string network;    // network namespace: "net:[4026531840]"
  std::string processes;  // namespace of process numbers
  std::string users;      // user namespace
};

HostIdentity own_identity();

// Writes or reads the lines of a card.
std::string to_card(const HostIdentity& identity);
HostIdentity read_identity(CardFields& card);

bool differ(const std::string& a, const std::string& b);

// Whether a process of one can reach loopback addresses and abstract socket names of the other.
bool share_loopback(const HostIdentity& a, const HostIdentity& b);

// Throws unavailable, with the remedy, if `ranks` differ in host name, machine or network
// namespace. `hosts`: their identities, in the order of `ranks`. The error names the first that
// differs from hosts[own].
void check_one_host(const std::vector<HostIdentity>& hosts, const std::vector<int>& ranks, int own);

// Why ranks of one machine cannot reach each other's memory by process number: names the namespaces
// that differ and a remedy. Empty: namespaces are not the reason.
std::string why_memory_is_apart(const std::vector<HostIdentity>& hosts,
                                const std::vector<int>& ranks);

}  // namespace shoal::collectives::transport
