// How many datagrams may be on their way over udp;ofi_rxd.
//
// It keeps a completion of every datagram, sent or received, in a queue of 2048 entries, and
// libfabric before 2.4 does not look whether a received one still fits ("prov/udp: fix CQ overflow
// case", 37eb3f551). Past the end a completion is lost and another is taken twice, so that two
// datagrams share one buffer: a peer's write ends in "Truncation error", or never, and libfabric's
// lists are damaged. 9 busy ranks have been seen to fill 1698 entries; 18 overrun it.
//
// What fills it can be bounded. Received datagrams that wait there: as many as it posts buffers
// for, which is the size of the receive queue we ask for (R). Acknowledgements: one for each of
// those, so R of the last pass through the queue and R of this one. Data: what may be
// unacknowledged, W for each of P peers. So 3 R + P W must fit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace shoal::collectives::fabric {

// `version`: libfabric's, as fi_version() says it: major << 16 | minor.

// Sets FI_OFI_RXD_MAX_UNACKED in this process where it is not set and libfabric needs it: to
// kDatagramWindow, or less for many peers. Before the first call of fi_getinfo, which reads it;
// what is done once stays. `peers`: of this rank, or 0 where that is not known. Nobody may read the
// environment meanwhile: a process has one rank, and makes its Communicator early; whose ranks are
// threads sets it before they start.
void bound_datagrams(std::uint32_t version, int peers);
// What it is then.
int datagram_window();

// Datagrams of 4 KiB. Over a loopback 128 are no faster than 16: its sockets' buffers drop them.
inline constexpr int kDatagramWindow = 16;
inline constexpr int kMostDatagrams = 512;     // P W
inline constexpr int kDatagramReceives = 256;  // R; the queue has 1024 entries more
static_assert(3 * kDatagramReceives + kMostDatagrams <= 1024 + kDatagramReceives);

// The receive queue to ask `provider` for, which offers one of `offered`.
std::size_t datagram_receives(std::string_view provider, std::uint32_t version,
                              std::size_t offered);

// Throws unavailable where a rank with so many peers could overrun the queue of `provider`.
void check_datagrams(std::string_view provider, std::uint32_t version, int window, int peers);

}  // namespace shoal::collectives::fabric
