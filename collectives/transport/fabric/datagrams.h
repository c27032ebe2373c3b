// Limits the number of datagrams in flight over udp;ofi_rxd.
//
// The provider queues a completion for every datagram, sent or received. The queue has 1024 entries
// plus the size of the receive queue (2048 by default). libfabric before 2.4 does not check whether
// a received datagram's completion still fits ("prov/udp: fix CQ overflow case", 37eb3f551).
//
// On an overrun, one completion is lost and another is read twice, so two datagrams share a buffer.
// A peer's write then ends in "Truncation error" or never ends, and libfabric's lists are damaged.
// In tests, 9 busy ranks filled 1698 entries and 18 overran the queue.
//
// The number of entries in use is bounded by the sum of:
//   received datagrams:  R, the size of the receive queue requested here
//   acknowledgements:    2 R, one for each datagram received in this and in the last pass
//   data:                W unacknowledged datagrams for each of P peers
// So 3 R + P W must fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal::collectives::fabric {

// In all functions, `version` is fi_version(): major << 16 | minor.

// Sets FI_OFI_RXD_MAX_UNACKED in this process to kDatagramWindow, or less for many peers. Does
// nothing if libfabric does not need it or the user has set it. Acts once. Call it before the first
// fi_getinfo, which reads the variable. `peers`: number of this rank's peers, or 0 if unknown.
//
// No other thread may read the environment meanwhile. A process with one rank makes its
// Communicator early. A process whose ranks are threads sets the variable before they start.
void bound_datagrams(std::uint32_t version, int peers);
// The limit in effect, W: that variable, or the provider's default.
int datagram_window();

// Default of W, in datagrams of 4 KiB. Over loopback, 128 are no faster than 16, because the socket
// buffers drop them.
inline constexpr int kDatagramWindow = 16;
inline constexpr int kMostDatagrams = 512;     // limit of P W
inline constexpr int kDatagramReceives = 256;  // R; the queue has 1024 + R entries
static_assert(3 * kDatagramReceives + kMostDatagrams <= 1024 + kDatagramReceives);

// The receive queue size to request from `provider`, which offers `offered`.
std::size_t datagram_receives(std::string_view provider, std::uint32_t version,
                              std::size_t offered);

// Throws unavailable if a rank with this many peers could overrun the queue of `provider`.
void check_datagrams(std::string_view provider, std::uint32_t version, int window, int peers);

}  // namespace shoal::collectives::fabric
