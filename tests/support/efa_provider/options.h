// What a test asks of the provider: environment variables, read when a domain is opened (the cards
// when fi_getinfo is called), so that each process and each domain may be given its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::test::efa {

struct Options {
  // SHOAL_TEST_EFA_SEED: of the order in which fragments leave and packets are looked at.
  std::uint64_t seed = 1;
  // SHOAL_TEST_EFA_DELAY_US: half of the packets wait up to so long at their receiver.
  std::int64_t delay_us = 0;
  // SHOAL_TEST_EFA_LOSS: of a thousand packets so many are lost on the wire (and sent again).
  std::uint32_t loss_per_mille = 0;
  // SHOAL_TEST_EFA_DEAF: seconds after fi_enable, or the path of a file: once it exists, nothing
  // of this process completes any more, neither well nor badly, and peers hear nothing of it.
  double deaf_after_seconds = -1;  // -1: never
  std::string deaf_file;
};

Options read_options();

// SHOAL_TEST_EFA_HMEM: "p2p" offers FI_HMEM for CUDA; "copies" too, but as where the card does not
// reach the device; empty: not offered.
enum class Hmem : std::uint8_t { none, p2p, copies };
Hmem offered_hmem();

// SHOAL_TEST_EFA_INTERFACES: "eth0,eth1" or, for several cards on one interface, "lo,lo". Empty:
// not given.
std::vector<std::string> wanted_interfaces();

// SHOAL_TEST_EFA_FABRIC: "efa" (all there is before libfabric 2) or "efa-direct"; empty: both.
std::string wanted_fabric();

}  // namespace shoal::test::efa
