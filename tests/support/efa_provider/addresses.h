// An address vector: the table of the peers that an endpoint may reach.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "link.h"
#include "wire.h"
#include <rdma/fi_domain.h>

namespace shoal::test::efa {

struct Domain;

struct Addresses : fid_av {
  Domain* domain = nullptr;
  int endpoints = 0;  // bound to this address vector
  std::vector<std::optional<Address>> table;
  std::unordered_map<Address, fi_addr_t, AddressHash> index;

  const Address* find(fi_addr_t index_of_peer) const;
  // FI_ADDR_NOTAVAIL if the address was never inserted.
  fi_addr_t index_of(const Address& address) const;
};

int open_addresses(fid_domain* domain, fi_av_attr* attributes, fid_av** made, void* context);

}  // namespace shoal::test::efa
