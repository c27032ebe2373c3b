// Options that a test sets through environment variables. They are read when a domain is opened
// (the interfaces when fi_getinfo is called), so each process and each domain can have its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::test::efa {

struct Options {
  // SHOAL_TEST_EFA_SEED: seeds the order in which fragments leave and packets are processed.
  std::uint64_t seed = 1;
  // SHOAL_TEST_EFA_DELAY_US: half of the packets wait at their receiver, for at most this long.
  std::int64_t delay_us = 0;
  // SHOAL_TEST_EFA_LOSS: this many packets of a thousand are lost on the wire, and then resent.
  std::uint32_t loss_per_mille = 0;
  // SHOAL_TEST_EFA_DEAF: seconds after fi_enable, or the path of a file. After that time, or once
  // the file exists, no operation of this process completes or fails, and its peers hear nothing
  // from it.
  double deaf_after_seconds = -1;  // -1: never
  std::string deaf_file;
};

Options read_options();

// SHOAL_TEST_EFA_HMEM: "p2p" offers FI_HMEM for CUDA. "copies" offers it as a card that cannot
// reach the device does. Empty: not offered.
enum class Hmem : std::uint8_t { none, p2p, copies };
Hmem offered_hmem();

// SHOAL_TEST_EFA_INTERFACES: "eth0,eth1" or, for several cards on one interface, "lo,lo". Empty:
// not set.
std::vector<std::string> wanted_interfaces();

// SHOAL_TEST_EFA_FABRIC: "efa" (the only one before libfabric 2) or "efa-direct". Empty: both.
std::string wanted_fabric();

}  // namespace shoal::test::efa
