// Limits the number of datagrams in flight over udp;ofi_rxd.
//
// The provider keeps a completion of every datagram, sent or received, in a queue of 1024 entries
// plus the receive queue's size (2048 by default). libfabric before 2.4 does not check whether a
// received one still fits ("prov/udp: fix CQ overflow case", 37eb3f551). Beyond the end, one
// completion is lost and another is read twice, so that two datagrams share one buffer. A peer's
// write then ends in "Truncation error", or never, and libfabric's lists are damaged. 9 busy ranks
// have been seen to fill 1698 entries; 18 overrun it.
//
// The contents of the queue can be bounded:
//   received datagrams:  R, the size of the receive queue requested here
//   acknowledgements:    one for each of those: R of the last pass through the queue, R of this one
//   data:                W unacknowledged datagrams for each of P peers
// So 3 R + P W must fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal::collectives::fabric {

// `version`: libfabric's fi_version(): major << 16 | minor.

// If libfabric needs it and the user has not set it, sets FI_OFI_RXD_MAX_UNACKED in this process:
// to kDatagramWindow, or less for many peers. Acts once, and must precede the first fi_getinfo,
// which reads the variable. `peers`: of this rank, or 0 if unknown.
//
// No other thread may read the environment meanwhile. A process with one rank makes its
// Communicator early; a process whose ranks are threads sets the variable before they start.
void bound_datagrams(std::uint32_t version, int peers);
// The limit in effect: that variable, or the provider's default.
int datagram_window();

// Datagrams of 4 KiB. Over a loopback, 128 are no faster than 16, because the socket buffers drop
// them.
inline constexpr int kDatagramWindow = 16;
inline constexpr int kMostDatagrams = 512;     // P W
inline constexpr int kDatagramReceives = 256;  // R; the queue has 1024 entries more
static_assert(3 * kDatagramReceives + kMostDatagrams <= 1024 + kDatagramReceives);

// The receive queue size to request from `provider`, which offers `offered`.
std::size_t datagram_receives(std::string_view provider, std::uint32_t version,
                              std::size_t offered);

// Throws unavailable if a rank with this many peers could overrun the queue of `provider`.
void check_datagrams(std::string_view provider, std::uint32_t version, int window, int peers);

}  // namespace shoal::collectives::fabric
