// One rail: a libfabric domain with its endpoint, completion queue, addresses and buffers. It posts
// and polls; FabricEndpoint interprets the data.
//
// EFA's completion queue overruns silently. Receives, sends, writes and the writes granted to peers
// are therefore limited from the start to what the queue holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/collectives/transport/fabric/discovery.h"

namespace shoal::collectives::fabric {

// The context that libfabric returns with a completion.
struct Transfer {
  fi_context2 context{};  // first member; libfabric uses it while the transfer is in flight
  enum class Kind : std::uint8_t { receive, message, write } kind = Kind::receive;
  int peer = -1;
  bool carries_data = false;  // message: it carries data of a post, not only control
  std::byte* slot = nullptr;  // receive, message
  void* owner = nullptr;      // write: the message that it is part of
};

struct RailLimits {
  std::size_t slot_bytes = 0;  // size of a message buffer
  int receives = 0;            // posted at all times
  int messages = 0;            // in flight
  int writes = 0;              // in flight
};

// Maximum number of peers' writes in flight to one rail; FabricEndpoint grants no more.
inline constexpr int kRemoteWrites = 1024;

struct RailEvent {
  enum class Kind : std::uint8_t { received, sent, written, peer_wrote, failed } kind;
  Transfer* transfer = nullptr;  // null for a peer_wrote that used no receive
  std::size_t bytes = 0;         // received
  std::uint64_t data = 0;        // peer_wrote
  int error = 0;                 // failed: a positive libfabric error
  std::string text;              // failed: the provider's text
};

enum class PostResult : std::uint8_t { posted, again, failed };

class Rail {
 public:
  // `cuda_device`: see FabricOptions.
  Rail(FoundRail found, int cuda_device);
  Rail(const Rail&) = delete;
  Rail& operator=(const Rail&) = delete;

  const RailSite& site() const { return site_; }
  std::string provider() const { return info_->fabric_attr->prov_name; }
  bool can_write() const;             // remote writes with four bytes of data
  bool writes_take_receives() const;  // FI_RX_CQ_DATA
  bool must_register_local() const { return (info_->domain_attr->mr_mode & FI_MR_LOCAL) != 0; }
  bool pins() const { return (info_->domain_attr->mr_mode & FI_MR_ALLOCATED) != 0; }
  bool uses_virtual_addresses() const {
    return (info_->domain_attr->mr_mode & FI_MR_VIRT_ADDR) != 0;
  }
  // Why the card cannot access the device's memory by itself; empty: it can.
  const std::string& device_memory_problem() const { return device_memory_problem_; }
  std::int64_t largest_message() const { return largest_message_; }
  std::int64_t largest_write() const { return largest_write_; }
  int receive_queue() const { return static_cast<int>(info_->rx_attr->size); }
  int transmit_queue() const { return static_cast<int>(info_->tx_attr->size); }
  bool manages_resources() const { return info_->domain_attr->resource_mgmt == FI_RM_ENABLED; }
  // ofi_rxm of libfabric 1.17 crashes on a null context if its endpoint is closed while a peer's
  // write with data is partly received (rxm_handle_comp_error).
  bool must_stay_open_for_writes() const { return provider().find("ofi_rxm") != std::string::npos; }
  bool needs_frequent_progress() const {
    return info_->domain_attr->control_progress == FI_PROGRESS_MANUAL;
  }

  const std::string& address() const { return address_; }  // opaque bytes, for peers
  fi_addr_t insert(const std::string& address);
  // Allocates buffers and posts all receives. Call once, before any peer knows the address.
  void start(const RailLimits& limits);

  // Return null if all transfers of that kind are in flight.
  Transfer* take_message();
  Transfer* take_write();
  void give_back(Transfer* transfer);  // message, write

  PostResult send(Transfer* message, fi_addr_t to, std::size_t bytes);
  struct RemoteWrite {
    const void* data = nullptr;
    std::size_t bytes = 0;
    void* descriptor = nullptr;
    fi_addr_t to = FI_ADDR_UNSPEC;
    std::uint64_t address = 0, key = 0;
    std::uint32_t id = 0;
  };
  PostResult write(Transfer* transfer, const RemoteWrite& target);
  void repost(Transfer* receive);
  int last_error() const { return last_error_; }  // positive; of the last failed post

  // Appends the events since the last call.
  void poll(std::vector<RailEvent>& events);
  int in_flight() const { return in_flight_; }  // number of messages and writes

  // The descriptor for poll(2), or -1 if the provider has none.
  int wait_descriptor() const { return wait_fd_; }
  bool may_wait();  // whether poll(2) may block: the queue is empty (fi_trywait)

  // `remote`: peers may write to it. `device`: it is memory of cuda_device, not of the host.
  FiMemory register_memory(void* data, std::size_t bytes, bool remote, bool device = false);

 private:
  std::string ask_for_device_memory();
  PostResult result_of(ssize_t status);
  void post(Transfer* receive);
  void poll_error(std::vector<RailEvent>& events);

  FiInfo info_;
  std::size_t queue_entries_ = 0;
  RailSite site_;
  const int cuda_device_;
  std::string device_memory_problem_;
  std::int64_t largest_message_ = 0, largest_write_ = 0;
  FiFabric fabric_;
  FiDomain domain_;
  FiQueue queue_;
  FiAddresses addresses_;
  std::vector<std::byte> memory_;  // for all slots
  std::vector<Transfer> receives_, messages_, writes_;
  std::vector<Transfer*> free_messages_, free_writes_, unposted_;
  FiMemory slots_region_;  // of memory_; null if local memory need not be registered
  FiEndpoint endpoint_;
  std::string address_;
  RailLimits limits_;
  std::uint64_t next_key_ = 1;
  int in_flight_ = 0, wait_fd_ = -1, last_error_ = 0;
};

}  // namespace shoal::collectives::fabric
