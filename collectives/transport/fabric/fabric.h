// Endpoints over libfabric's reliable datagrams (FI_EP_RDM): EFA on AWS, tcp and udp elsewhere.
//
// A rail is one network card (or interface) with its own domain, endpoint and completion queue.
// Each rank uses the rails near it, and stripes large messages over them. A provider's capabilities
// (order, sizes, registration, progress) are read from fi_info.
//
// In a build without libfabric, make_fabric_endpoint() throws unavailable, naming SHOAL_LIBFABRIC.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/transport/endpoint.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::fabric {

struct FabricOptions {
  // "efa", "tcp", "udp", or a provider's own name ("tcp;ofi_rxm", "net"); empty: efa if its device
  // is present, else tcp.
  std::string provider;
  // "eth0,eth1" (only these) or "^lo,docker0" (all but these). A name is an interface, a domain, a
  // network ("10.0.0.0/16") or an address of this host. Empty: every interface that all ranks
  // share; loopback only if all ranks are on this host or there is nothing else.
  std::string interfaces;
  std::int64_t eager_bytes = 8192;        // also limited by the provider's largest message
  std::int64_t stripe_bytes = 128 << 10;  // smallest piece worth its own rail
  int credits = 0;    // eager messages in flight to one peer on one rail; 0: auto
  int unmatched = 0;  // eager messages that a peer may send ahead of this rank's receives; 0: auto
  // Unused registrations to keep; -1: 256 if registering pins nothing, else none. If pinned memory
  // were freed and remapped, a write through the old registration would reach the wrong pages.
  int idle_registrations = -1;
  std::uint32_t first_receive_id = 0;  // tests start just below the wrap-around
  bool sockets = true;        // over tcp, send small messages through sockets, which is faster
  bool remote_writes = true;  // false: behave as if the provider had no FI_RMA
  // The CUDA device whose memory messages may use, if the provider supports it; -1: none.
  int cuda_device = -1;
};

// Options from SHOAL_FABRIC_PROVIDER and SHOAL_FABRIC_INTERFACES; `transport` as in
// CommunicatorOptions (empty: the environment's provider).
FabricOptions fabric_options(const std::string& transport = {});

// SHOAL_GPUDIRECT; throws invalid_argument if it is neither auto nor off.
bool gpudirect_is_wanted();

// Collective: every rank of the job calls it with the same `prefix`, which must be new in `store`.
// The `local_size` ranks of this host share its rails. Throws unavailable, naming the available
// providers; timeout, naming the ranks that did not come; or io.
std::unique_ptr<transport::Endpoint> make_fabric_endpoint(const FabricOptions& options, int rank,
                                                          int size, int local_rank, int local_size,
                                                          Store& store, const std::string& prefix,
                                                          Deadline deadline);

// Names of the providers with reliable datagrams on this machine, best first; empty without
// libfabric.
std::vector<std::string> fabric_providers();

}  // namespace shoal::collectives::fabric
