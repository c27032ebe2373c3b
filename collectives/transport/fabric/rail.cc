#include "shoal/collectives/transport/fabric/rail.h"

#include <algorithm>
#include <array>
#include <limits>

#include "shoal/collectives/transport/fabric/datagrams.h"

namespace shoal::collectives::fabric {
namespace {

// FI_OPT_MAX_MSG_SIZE and FI_OPT_MAX_RMA_SIZE, which older libfabric headers lack. The loaded
// library may be newer than the headers.
constexpr int kOptMaxMsgSize = 12, kOptMaxRmaSize = 14;
// FI_OPT_CUDA_API_PERMITTED and FI_OPT_SHARED_MEMORY_PERMITTED, both bool.
constexpr int kOptCudaApiPermitted = 10, kOptSharedMemoryPermitted = 11;

std::int64_t bounded(std::size_t bytes) {
  return static_cast<std::int64_t>(
      std::min<std::size_t>(bytes, std::numeric_limits<std::int64_t>::max()));
}

std::string name_of(fid_ep* endpoint, const std::string& provider) {
  std::string address(64, '\0');
  std::size_t length = address.size();
  int result = fi_getname(&endpoint->fid, address.data(), &length);
  if (result == -FI_ETOOSMALL) {
    address.resize(length);
    result = fi_getname(&endpoint->fid, address.data(), &length);
  }
  check_fabric(result, provider, "fi_getname");
  address.resize(length);
  return address;
}

}  // namespace

Rail::Rail(FoundRail found, int cuda_device)
    : info_(std::move(found.info)), site_(std::move(found.site)), cuda_device_(cuda_device) {
  const std::string name = provider();
  info_->rx_attr->size = datagram_receives(name, library().version(), info_->rx_attr->size);
  fabric_ = open_fabric<FiFabric>(name, "fi_fabric", [&](fid_fabric** fabric) {
    return library().fabric(info_->fabric_attr, fabric, nullptr);
  });
  domain_ = open_fabric<FiDomain>(name, "fi_domain", [&](fid_domain** domain) {
    return fi_domain(fabric_.get(), info_.get(), domain, nullptr);
  });
  queue_entries_ = info_->rx_attr->size + info_->tx_attr->size + kRemoteWrites;
  fi_cq_attr queue{};
  queue.size = queue_entries_;
  queue.format = FI_CQ_FORMAT_DATA;
  queue.wait_obj = FI_WAIT_FD;
  fid_cq* raw = nullptr;
  if (fi_cq_open(domain_.get(), &queue, &raw, nullptr) != 0) {
    queue.wait_obj = FI_WAIT_NONE;
    check_fabric(fi_cq_open(domain_.get(), &queue, &raw, nullptr), name, "fi_cq_open");
  }
  queue_.reset(raw);
  if (queue.wait_obj == FI_WAIT_FD && fi_control(&queue_->fid, FI_GETWAIT, &wait_fd_) != 0)
    wait_fd_ = -1;
  fi_av_attr addresses{};
  addresses.type = FI_AV_TABLE;
  addresses_ = open_fabric<FiAddresses>(name, "fi_av_open", [&](fid_av** av) {
    return fi_av_open(domain_.get(), &addresses, av, nullptr);
  });
  endpoint_ = open_fabric<FiEndpoint>(name, "fi_endpoint", [&](fid_ep** endpoint) {
    return fi_endpoint(domain_.get(), info_.get(), endpoint, nullptr);
  });
  device_memory_problem_ = ask_for_device_memory();
  check_fabric(fi_ep_bind(endpoint_.get(), &queue_->fid, FI_TRANSMIT | FI_RECV), name,
               "fi_ep_bind");
  check_fabric(fi_ep_bind(endpoint_.get(), &addresses_->fid, 0), name, "fi_ep_bind");
  check_fabric(fi_enable(endpoint_.get()), name, "fi_enable");
  address_ = name_of(endpoint_.get(), name);
  largest_message_ = largest_write_ = bounded(info_->ep_attr->max_msg_size);
  // With efa-direct, messages are limited to one packet and writes are not. libfabric 2 reports
  // both limits; older versions refuse these options.
  std::size_t limit = 0, length = sizeof limit;
  if (fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptMaxMsgSize, &limit, &length) == 0)
    largest_message_ = bounded(limit);
  length = sizeof limit;
  if (fi_getopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptMaxRmaSize, &limit, &length) == 0)
    largest_write_ = bounded(limit);
}

// Returns device_memory_problem(). Call before fi_enable. Like aws-ofi-nccl, requires that the card
// itself accesses the device. CUDA calls by libfabric are forbidden: they might wait for a stream
// that waits for this thread. If the card cannot, Shoal stages the data through host memory.
std::string Rail::ask_for_device_memory() {
  if (cuda_device_ < 0) return "no device was asked for";
  if ((info_->caps & FI_HMEM) == 0) return fmt::format("{} offers no FI_HMEM", provider());
  if (!can_write()) return fmt::format("{} has no remote writes with completion data", provider());
  const auto refused = [&](const char* option, int result) {
    return fmt::format("{} on {} cannot let its card reach device memory ({}: {})", provider(),
                       site_.name, option, library().strerror(-result));
  };
  const int required = FI_HMEM_P2P_REQUIRED;
  if (const int result = fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required,
                                   sizeof required))
    return refused("FI_OPT_FI_HMEM_P2P", result);
  const bool permitted = false;
  // libfabric before 1.18 lacks this option. Then only FI_OPT_FI_HMEM_P2P decides.
  if (const int result = fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptCudaApiPermitted,
                                   &permitted, sizeof permitted);
      result != 0 && result != -FI_ENOPROTOOPT)
    return refused("FI_OPT_CUDA_API_PERMITTED", result);
  // libfabric's shared memory between ranks of one host would copy with CUDA calls. A failure is
  // ignored, because older versions lack this option.
  (void)fi_setopt(&endpoint_->fid, FI_OPT_ENDPOINT, kOptSharedMemoryPermitted, &permitted,
                  sizeof permitted);
  return {};
}

bool Rail::can_write() const {
  return (info_->caps & FI_RMA) != 0 && info_->domain_attr->cq_data_size >= sizeof(std::uint32_t);
}

bool Rail::writes_take_receives() const {
  return ((info_->mode | info_->rx_attr->mode) & FI_RX_CQ_DATA) != 0;
}

fi_addr_t Rail::insert(const std::string& address) {
  fi_addr_t inserted = FI_ADDR_UNSPEC;
  if (fi_av_insert(addresses_.get(), address.data(), 1, &inserted, 0, nullptr) != 1)
    throw_error(ErrorCode::io, "{}: fi_av_insert failed on {}", provider(), site_.name);
  return inserted;
}

void Rail::start(const RailLimits& limits) {
  limits_ = limits;
  const int wanted = limits.receives + limits.messages + limits.writes + kRemoteWrites;
  if (static_cast<std::size_t>(wanted) > queue_entries_)
    throw_error(ErrorCode::unavailable,
                "{}: {} receives and {} transfers do not fit a completion queue of {}", provider(),
                limits.receives, wanted - limits.receives, queue_entries_);
  const auto slots =
      static_cast<std::size_t>(limits.receives) + static_cast<std::size_t>(limits.messages);
  memory_.resize(slots * limits.slot_bytes);
  if (must_register_local() && !memory_.empty())
    slots_region_ = register_memory(memory_.data(), memory_.size(), false);
  receives_.resize(static_cast<std::size_t>(limits.receives));
  messages_.resize(static_cast<std::size_t>(limits.messages));
  writes_.resize(static_cast<std::size_t>(limits.writes));
  std::byte* slot = memory_.data();
  for (Transfer& receive : receives_) {
    receive.slot = slot;
    slot += limits.slot_bytes;
    post(&receive);
  }
  for (Transfer& message : messages_) {
    message.kind = Transfer::Kind::message;
    message.slot = slot;
    slot += limits.slot_bytes;
    free_messages_.push_back(&message);
  }
  for (Transfer& write : writes_) {
    write.kind = Transfer::Kind::write;
    free_writes_.push_back(&write);
  }
}

Transfer* Rail::take_message() {
  if (free_messages_.empty()) return nullptr;
  Transfer* taken = free_messages_.back();
  free_messages_.pop_back();
  return taken;
}

Transfer* Rail::take_write() {
  if (free_writes_.empty()) return nullptr;
  Transfer* taken = free_writes_.back();
  free_writes_.pop_back();
  return taken;
}

void Rail::give_back(Transfer* transfer) {
  (transfer->kind == Transfer::Kind::message ? free_messages_ : free_writes_).push_back(transfer);
}

PostResult Rail::result_of(ssize_t status) {
  if (status == 0) {
    ++in_flight_;
    return PostResult::posted;
  }
  if (status == -FI_EAGAIN) return PostResult::again;
  last_error_ = static_cast<int>(-status);
  return PostResult::failed;
}

PostResult Rail::send(Transfer* message, fi_addr_t to, std::size_t bytes) {
  return result_of(fi_send(endpoint_.get(), message->slot, bytes,
                           slots_region_ ? fi_mr_desc(slots_region_.get()) : nullptr, to,
                           &message->context));
}

PostResult Rail::write(Transfer* transfer, const RemoteWrite& target) {
  return result_of(fi_writedata(endpoint_.get(), target.data, target.bytes, target.descriptor,
                                target.id, target.to, target.address, target.key,
                                &transfer->context));
}

void Rail::post(Transfer* receive) {
  const ssize_t status = fi_recv(endpoint_.get(), receive->slot, limits_.slot_bytes,
                                 slots_region_ ? fi_mr_desc(slots_region_.get()) : nullptr,
                                 FI_ADDR_UNSPEC, &receive->context);
  if (status == -FI_EAGAIN)
    unposted_.push_back(receive);
  else
    check_fabric(status, provider(), "fi_recv");
}

void Rail::repost(Transfer* receive) { post(receive); }

void Rail::poll(std::vector<RailEvent>& events) {
  if (!unposted_.empty()) {
    std::vector<Transfer*> again;
    again.swap(unposted_);
    for (Transfer* receive : again) post(receive);
  }
  std::array<fi_cq_data_entry, 64> entries;
  const ssize_t count = fi_cq_read(queue_.get(), entries.data(), entries.size());
  if (count == -FI_EAGAIN) return;
  if (count == -FI_EAVAIL) return poll_error(events);
  if (count < 0) check_fabric(count, provider(), "fi_cq_read");
  for (ssize_t i = 0; i < count; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<std::size_t>(i)];
    auto* transfer = static_cast<Transfer*>(entry.op_context);
    if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) {
      events.push_back({RailEvent::Kind::peer_wrote,
                        writes_take_receives() ? transfer : nullptr,
                        0,
                        entry.data,
                        0,
                        {}});
      continue;
    }
    if (!transfer) continue;
    if (transfer->kind == Transfer::Kind::receive) {
      events.push_back({RailEvent::Kind::received, transfer, entry.len, 0, 0, {}});
      continue;
    }
    --in_flight_;
    events.push_back({transfer->kind == Transfer::Kind::message ? RailEvent::Kind::sent
                                                                : RailEvent::Kind::written,
                      transfer,
                      0,
                      0,
                      0,
                      {}});
  }
}

void Rail::poll_error(std::vector<RailEvent>& events) {
  fi_cq_err_entry entry{};
  if (fi_cq_readerr(queue_.get(), &entry, 0) != 1) return;
  auto* transfer = static_cast<Transfer*>(entry.op_context);
  if (transfer && transfer->kind != Transfer::Kind::receive) --in_flight_;
  std::array<char, 256> words{};
  const char* text =
      fi_cq_strerror(queue_.get(), entry.prov_errno, entry.err_data, words.data(), words.size());
  std::string why = library().strerror(entry.err);
  if (entry.prov_errno != 0 && text && *text && why != text) why += fmt::format(" ({})", text);
  // The error belongs to no post of this rank, so only the text can identify it.
  if (!transfer)
    why += fmt::format(
        " ({} after {} bytes)",
        (entry.flags & FI_REMOTE_WRITE) != 0 ? "in a peer's write" : "in no transfer", entry.len);
  events.push_back({RailEvent::Kind::failed, transfer, 0, 0, entry.err, std::move(why)});
}

bool Rail::may_wait() {
  std::array<fid*, 1> objects{&queue_->fid};
  return fi_trywait(fabric_.get(), objects.data(), 1) == FI_SUCCESS;
}

FiMemory Rail::register_memory(void* data, std::size_t bytes, bool remote, bool device) {
  const std::uint64_t access = FI_SEND | FI_RECV | FI_WRITE | (remote ? FI_REMOTE_WRITE : 0);
  const std::uint64_t key = (info_->domain_attr->mr_mode & FI_MR_PROV_KEY) != 0 ? 0 : next_key_++;
  const iovec range{data, bytes};
  fi_mr_attr of_device{};
  of_device.mr_iov = &range;
  of_device.iov_count = 1;
  of_device.access = access;
  of_device.requested_key = key;
  of_device.iface = FI_HMEM_CUDA;
  of_device.device.cuda = cuda_device_;
  auto region =
      device ? open_fabric<FiMemory>(
                   provider(), "fi_mr_regattr",
                   [&](fid_mr** mr) { return fi_mr_regattr(domain_.get(), &of_device, 0, mr); })
             : open_fabric<FiMemory>(provider(), "fi_mr_reg", [&](fid_mr** mr) {
                 return fi_mr_reg(domain_.get(), data, bytes, access, 0, key, 0, mr, nullptr);
               });
  if ((info_->domain_attr->mr_mode & FI_MR_ENDPOINT) != 0) {
    check_fabric(fi_mr_bind(region.get(), &endpoint_->fid, 0), provider(), "fi_mr_bind");
    check_fabric(fi_mr_enable(region.get()), provider(), "fi_mr_enable");
  }
  return region;
}

}  // namespace shoal::collectives::fabric
