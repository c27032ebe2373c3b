#include "endpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "addresses.h"
#include "domain.h"
#include <rdma/fi_errno.h>

namespace shoal::test::efa {
namespace {

using std::chrono::milliseconds;

// The next fragment is chosen at random among this many operations and fragments of each.
constexpr std::size_t kOperationsAhead = 16, kFragmentsAhead = 16;
constexpr int kFragmentsInOneProgress = 64;
constexpr std::size_t kResponsesInOnePacket = 512;
constexpr auto kLongestGoodbye = milliseconds(100);
// Option numbers of libfabric 2 (rdma/fi_endpoint.h). 1.17 does not name them, but its users may
// pass them.
constexpr int kOptionCudaPermitted = 10, kOptionSharedMemory = 11;
constexpr int kOptionLargestMessage = 12, kOptionLargestWrite = 14, kOptionInjectMessage = 16,
              kOptionInjectWrite = 18;

int error_of(Status status) {
  switch (status) {
    case Status::ok:
      return FI_SUCCESS;
    case Status::bad_remote_length:
      return FI_EMSGSIZE;
    case Status::unknown_peer:
      return FI_ENOTCONN;
    default:
      return FI_EINVAL;
  }
}

// Addresses travel as integers, as fi_rma(3) specifies.
void* as_pointer(std::uint64_t number) {
  return reinterpret_cast<void*>(number);  // NOLINT(performance-no-int-to-ptr)
}

// FI_CONTEXT2 lends the provider eight words of the user's context while an operation is in flight.
// Writing to all of them exposes a context that is too small or used twice.
void stamp(void* context, std::uint64_t operation) {
  const fi_context2 stamped{{as_pointer(operation), nullptr, nullptr, nullptr, nullptr, nullptr,
                             nullptr, as_pointer(~operation)}};
  std::memcpy(context, &stamped, sizeof stamped);
}
bool has_stamp(const void* context, std::uint64_t operation) {
  fi_context2 found;
  std::memcpy(&found, context, sizeof found);
  return found.internal[0] == as_pointer(operation) && found.internal[7] == as_pointer(~operation);
}

std::uint64_t number(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

}  // namespace

Endpoint::Endpoint(Domain& its_domain, const fi_info& info)
    : fid_ep{},
      domain(its_domain),
      direct_(its_domain.direct),
      in_order_((info.tx_attr->msg_order & FI_ORDER_SAS) != 0),
      writes_take_receives_(((info.mode | info.rx_attr->mode) & FI_RX_CQ_DATA) != 0),
      transmit_size_(info.tx_attr->size ? info.tx_attr->size : kTransmitQueue),
      receive_size_(info.rx_attr->size ? info.rx_attr->size : kReceiveQueue),
      largest_message_(direct_ ? kLargestPacket : info.ep_attr->max_msg_size),
      largest_write_(direct_ ? kLargestDirectWrite : info.ep_attr->max_msg_size),
      default_flags_(info.tx_attr->op_flags),
      link_(its_domain.card.address, its_domain.options) {}

Endpoint::~Endpoint() {
  std::erase(domain.endpoints, this);
  for (Queue* queue : {transmit_queue_, receive_queue_})
    if (queue) std::erase(queue->endpoints, this);
  if (addresses_) --addresses_->endpoints;
}

int Endpoint::bind(fid_t object, std::uint64_t flags) {
  if (enabled_) return -FI_EOPBADSTATE;
  if (object->fclass == FI_CLASS_AV) {
    addresses_ = static_cast<Addresses*>(reinterpret_cast<fid_av*>(object));
    ++addresses_->endpoints;
    return FI_SUCCESS;
  }
  if (object->fclass != FI_CLASS_CQ || (flags & (FI_TRANSMIT | FI_RECV)) == 0) return -FI_EINVAL;
  auto* queue = static_cast<Queue*>(reinterpret_cast<fid_cq*>(object));
  if ((flags & FI_TRANSMIT) != 0) {
    transmit_queue_ = queue;
    selective_transmit_ = (flags & FI_SELECTIVE_COMPLETION) != 0;
  }
  if ((flags & FI_RECV) != 0) receive_queue_ = queue;
  return FI_SUCCESS;
}

int Endpoint::enable() {
  if (!addresses_) return -FI_ENOAV;
  if (!transmit_queue_ || !receive_queue_) return -FI_ENOCQ;
  if (enabled_) return FI_SUCCESS;
  enabled_ = true;
  enabled_at_ = Clock::now();
  domain.endpoints.push_back(this);
  transmit_queue_->endpoints.push_back(this);
  if (receive_queue_ != transmit_queue_) receive_queue_->endpoints.push_back(this);
  domain.start_card();
  return FI_SUCCESS;
}

void Endpoint::close() {
  const auto deadline = Clock::now() + kLongestGoodbye;
  do {
    {
      const std::lock_guard lock(domain.mutex);  // the card's thread may be using it
      closing_ = true;
      if (!enabled_ || deaf()) return;
      progress();
      if (responses_.empty() && link_.all_acknowledged()) return;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  } while (Clock::now() < deadline);
}

int Endpoint::name(void* buffer, std::size_t* bytes) const {
  if (!enabled_) return -FI_EOPBADSTATE;
  const std::size_t room = std::exchange(*bytes, sizeof(Address));
  if (!buffer) return -FI_ETOOSMALL;
  std::memcpy(buffer, &link_.address(), std::min(room, sizeof(Address)));
  return room < sizeof(Address) ? -FI_ETOOSMALL : FI_SUCCESS;
}

int Endpoint::option(int name, void* value, std::size_t* bytes) const {
  std::size_t answer = 0;
  switch (name) {
    case kOptionLargestMessage:
      answer = largest_message_;
      break;
    case kOptionLargestWrite:
      answer = largest_write_;
      break;
    case kOptionInjectMessage:
    case kOptionInjectWrite:
      answer = kInjectBytes;
      break;
    default:
      return -FI_ENOPROTOOPT;
  }
  if (*bytes < sizeof answer) return -FI_ETOOSMALL;
  std::memcpy(value, &answer, sizeof answer);
  *bytes = sizeof answer;
  return FI_SUCCESS;
}

bool Endpoint::local_memory_is_registered(const void* descriptor, const void* start,
                                          std::size_t bytes, std::uint64_t access) const {
  if (bytes == 0) return true;
  if (!descriptor) return !domain.is_of_gpu(start, bytes);
  return domain.memory.covers(number(descriptor), number(start), bytes, access);
}

// Accepts the options of a card that reaches device memory: it must do so, and it makes no CUDA
// call.
int Endpoint::set_option(int name, const void* value, std::size_t bytes) const {
  if (enabled_) return -FI_EOPBADSTATE;
  const bool reaches = domain.hmem && offered_hmem() == Hmem::p2p;
  if (name == FI_OPT_FI_HMEM_P2P && bytes == sizeof(int)) {
    int wanted = 0;
    std::memcpy(&wanted, value, sizeof wanted);
    return wanted == FI_HMEM_P2P_REQUIRED && !reaches ? -FI_EOPNOTSUPP : FI_SUCCESS;
  }
  if (name == kOptionCudaPermitted && bytes == sizeof(bool))
    return *static_cast<const bool*>(value) || reaches ? FI_SUCCESS : -FI_EOPNOTSUPP;
  return name == kOptionSharedMemory && bytes == sizeof(bool) ? FI_SUCCESS : -FI_ENOPROTOOPT;
}

ssize_t Endpoint::post(const Post& wanted) {
  if (!enabled_) return -FI_EOPBADSTATE;
  const bool inject = (wanted.flags & FI_INJECT) != 0;
  const std::size_t largest =
      wanted.kind == PacketKind::message ? largest_message_ : largest_write_;
  if (wanted.total > largest || (inject && wanted.total > kInjectBytes)) return -FI_EMSGSIZE;
  const Address* address = addresses_->find(wanted.to);
  if (!address) return -FI_EINVAL;
  if (domain.registers_locally && !inject && !wanted.descriptor && wanted.total > 0)
    return -FI_EINVAL;
  if (inject && domain.is_of_gpu(wanted.bytes, wanted.total)) return -FI_EINVAL;
  if (sendings_.size() >= transmit_size_) return -FI_EAGAIN;

  auto sending = std::make_unique<Sending>();
  sending->operation = next_operation_++;
  sending->post = wanted;
  sending->peer = &link_.peer(*address);
  if (inject) {
    if (wanted.total > 0) std::memcpy(sending->injected.data(), wanted.bytes, wanted.total);
    sending->post.bytes = sending->injected.data();
    sending->post.descriptor = nullptr;
  }
  if (wanted.kind == PacketKind::message) sending->number = next_number_[sending->peer]++;
  if (wanted.total == 0) sending->ahead.push_back(0);
  if (direct_ && wanted.context) stamp(wanted.context, sending->operation);
  with_fragments_.push_back(sending.get());
  sendings_[sending->operation] = std::move(sending);
  return FI_SUCCESS;
}

ssize_t Endpoint::post_receive(void* buffer, std::size_t bytes, void* descriptor, void* context) {
  if (!enabled_) return -FI_EOPBADSTATE;
  if (domain.registers_locally && !descriptor && bytes > 0) return -FI_EINVAL;
  if (receives_.size() >= receive_size_) return -FI_EAGAIN;
  if (direct_ && context) stamp(context, number(context));
  receives_.push_back({static_cast<std::byte*>(buffer), bytes, descriptor, context});
  return FI_SUCCESS;
}

ssize_t Endpoint::cancel(void* context) {
  if (direct_) return -FI_EOPNOTSUPP;
  const auto found = std::ranges::find(receives_, context, &Receive::context);
  if (found == receives_.end()) return -FI_ENOENT;
  receives_.erase(found);
  Completed cancelled{.failed = true};
  cancelled.entry.op_context = context;
  cancelled.entry.flags = FI_MSG | FI_RECV;
  cancelled.entry.err = FI_ECANCELED;
  receive_queue_->push(cancelled);
  return FI_SUCCESS;
}

bool Endpoint::deaf() {
  const Options& options = domain.options;
  if (deaf_ || (options.deaf_after_seconds < 0 && options.deaf_file.empty())) return deaf_;
  const auto now = Clock::now();
  if (options.deaf_file.empty()) {
    deaf_ = std::chrono::duration<double>(now - enabled_at_).count() >= options.deaf_after_seconds;
  } else if (now - looked_for_deaf_file_ > milliseconds(5)) {
    looked_for_deaf_file_ = now;
    std::error_code none;
    deaf_ = std::filesystem::exists(options.deaf_file, none);
  }
  return deaf_;
}

void Endpoint::progress() {
  if (deaf()) return;
  link_.progress([this](Peer& from, const PacketHeader& header, std::span<const std::byte> rest) {
    on_packet(from, header, rest);
  });
  if (!closing_) match();
  send_responses();
  if (!closing_) send_fragments();
  link_.acknowledge();
}

void Endpoint::progress_of_the_card() {
  if (direct_)
    progress();
  else if (!deaf())
    link_.send_lost_again();
}

void Endpoint::on_packet(Peer& from, const PacketHeader& header, std::span<const std::byte> rest) {
  if (header.kind == PacketKind::responses) return on_responses(rest);
  FragmentHeader fragment;
  if (closing_ || rest.size() != sizeof fragment + header.bytes) return;
  std::memcpy(&fragment, rest.data(), sizeof fragment);
  if (fragment.offset > fragment.total || header.bytes > fragment.total - fragment.offset) return;
  on_fragment(from, header.kind, fragment, rest.subspan(sizeof fragment));
}

void Endpoint::on_responses(std::span<const std::byte> rest) {
  for (; rest.size() >= sizeof(Response); rest = rest.subspan(sizeof(Response))) {
    Response response;
    std::memcpy(&response, rest.data(), sizeof response);
    finish(response.operation, response.status);
  }
}

void Endpoint::on_fragment(Peer& from, PacketKind kind, const FragmentHeader& header,
                           std::span<const std::byte> bytes) {
  const auto key = std::pair<const Peer*, std::uint64_t>(&from, header.operation);
  Arriving& arriving = arriving_[key];
  if (kind == PacketKind::message) {
    arriving.bytes.resize(header.total);
    std::ranges::copy(bytes, arriving.bytes.data() + header.offset);
  } else if (const Status status = place(from, header, bytes); status != Status::ok) {
    arriving.status = status;
  }
  arriving.come += bytes.size();
  if (arriving.come < header.total) return;
  Arriving whole = std::move(arriving);
  arriving_.erase(key);
  if (kind == PacketKind::message)
    message_arrived({&from, header, kind, std::move(whole.bytes)});
  else
    write_arrived(from, header, whole.status);
}

Status Endpoint::place(const Peer& from, const FragmentHeader& header,
                       std::span<const std::byte> bytes) {
  // The device accepts packets only from peers in the target's address vector.
  if (direct_ && addresses_->index_of(from.address) == FI_ADDR_NOTAVAIL)
    return Status::unknown_peer;
  if (header.total == 0) return Status::ok;
  const std::uint64_t to = header.address + header.offset;
  if (!domain.memory.covers(header.key, to, bytes.size(), FI_REMOTE_WRITE))
    return Status::bad_remote_address;
  domain.write(header.key, as_pointer(to), bytes);
  return Status::ok;
}

void Endpoint::message_arrived(Arrived arrived) {
  if (!in_order_) {
    waiting_.push_back(std::move(arrived));
    return;
  }
  Order& order = orders_[arrived.from];
  order.early.emplace(arrived.header.number, std::move(arrived));
  for (auto next = order.early.find(order.next); next != order.early.end();
       next = order.early.find(++order.next)) {
    waiting_.push_back(std::move(next->second));
    order.early.erase(next);
  }
}

void Endpoint::write_arrived(Peer& from, const FragmentHeader& header, Status status) {
  if (status == Status::ok && header.has_data != 0) {
    if (writes_take_receives_) {
      waiting_.push_back({&from, header, PacketKind::write, {}});
      return;
    }
    complete_remote_write(from, header, nullptr);
  }
  respond(from, header.operation, status);
}

void Endpoint::complete_remote_write(Peer& from, const FragmentHeader& header, void* context) {
  Completed completed;
  completed.entry.op_context = context;
  completed.entry.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
  completed.entry.len = header.total;
  completed.entry.data = header.data;
  completed.source = addresses_->index_of(from.address);
  receive_queue_->push(completed);
}

void Endpoint::match() {
  while (!waiting_.empty() && !receives_.empty()) {
    const std::size_t chosen = in_order_ ? 0 : link_.random()() % waiting_.size();
    Arrived arrived = std::move(waiting_[chosen]);
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(chosen));
    const Receive receive = receives_.front();
    receives_.pop_front();
    if (arrived.kind == PacketKind::write) {
      complete_remote_write(*arrived.from, arrived.header, receive.context);
      respond(*arrived.from, arrived.header.operation, Status::ok);
    } else {
      deliver(arrived, receive);
    }
  }
}

void Endpoint::deliver(Arrived& arrived, const Receive& receive) {
  Status status = Status::ok, local = Status::ok;
  const std::size_t bytes = arrived.bytes.size();
  const bool stamped =
      !direct_ || !receive.context || has_stamp(receive.context, number(receive.context));
  if (bytes > receive.bytes)
    status = local = Status::bad_remote_length;
  else if (!stamped ||
           !local_memory_is_registered(receive.descriptor, receive.buffer, receive.bytes, FI_RECV))
    local = Status::invalid_local_key, status = Status::bad_remote_address;
  else
    domain.write(number(receive.descriptor), receive.buffer, arrived.bytes);
  Completed completed{.failed = local != Status::ok};
  completed.entry.op_context = receive.context;
  completed.entry.flags = FI_MSG | FI_RECV;
  completed.entry.len = std::min(bytes, receive.bytes);
  completed.entry.buf = receive.buffer;
  if (arrived.header.has_data != 0) {
    completed.entry.flags |= FI_REMOTE_CQ_DATA;
    completed.entry.data = arrived.header.data;
  }
  if (completed.failed) {
    completed.entry.err = local == Status::bad_remote_length ? FI_ETRUNC : error_of(local);
    completed.entry.prov_errno = static_cast<int>(local);
    completed.entry.olen = bytes - completed.entry.len;
  }
  completed.source = addresses_->index_of(arrived.from->address);
  receive_queue_->push(completed);
  respond(*arrived.from, arrived.header.operation, status);
}

void Endpoint::respond(Peer& to, std::uint64_t operation, Status status) {
  responses_[&to].push_back({operation, status});
}

void Endpoint::send_responses() {
  for (auto& [peer, list] : responses_) {
    std::size_t sent = 0;
    while (sent < list.size()) {
      const auto some =
          std::span(list).subspan(sent).first(std::min(list.size() - sent, kResponsesInOnePacket));
      if (!link_.send(*peer, PacketKind::responses, std::as_bytes(some), {},
                      static_cast<std::uint16_t>(some.size())))
        break;
      sent += some.size();
    }
    list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(sent));
  }
  std::erase_if(responses_, [](const auto& entry) { return entry.second.empty(); });
}

void Endpoint::send_fragments() {
  // An operation that cannot send now, because its peer's window is full, waits for the next
  // progress.
  std::vector<Sending*> able = with_fragments_;
  for (int sent = 0; sent < kFragmentsInOneProgress && !able.empty();) {
    const std::size_t chosen = link_.random()() % std::min(able.size(), kOperationsAhead);
    Sending* const sending = able[chosen];
    if (send_fragment(*sending)) {
      ++sent;
      // A failed operation has already been removed.
      if (std::ranges::find(with_fragments_, sending) != with_fragments_.end()) continue;
    }
    able.erase(able.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
}

// Returns true if the operation sent a fragment. After its last one it leaves with_fragments_.
bool Endpoint::send_fragment(Sending& sending) {
  const Post& post = sending.post;
  const std::size_t largest =
      direct_ && post.kind == PacketKind::message ? kLargestPacket : kFragmentBytes;
  for (; sending.ahead.size() < kFragmentsAhead && sending.next < post.total;
       sending.next += largest)
    sending.ahead.push_back(sending.next);
  const std::size_t chosen = link_.random()() % sending.ahead.size();
  const std::uint64_t offset = sending.ahead[chosen];
  const std::size_t bytes = std::min<std::size_t>(largest, post.total - offset);
  const auto* start = static_cast<const std::byte*>(post.bytes) + offset;
  if (!local_memory_is_registered(post.descriptor, start, bytes,
                                  post.kind == PacketKind::write ? FI_WRITE : FI_SEND)) {
    finish(sending.operation, Status::invalid_local_key);
    return true;
  }
  FragmentHeader header;
  header.operation = sending.operation;
  header.total = post.total;
  header.offset = offset;
  header.address = post.address;
  header.key = post.key;
  header.data = post.data.value_or(0);
  header.has_data = post.data ? 1 : 0;
  header.number = sending.number;
  std::vector<std::byte> room;
  if (!link_.send(*sending.peer, post.kind, std::as_bytes(std::span(&header, 1)),
                  domain.read(number(post.descriptor), start, bytes, room)))
    return false;
  sending.ahead.erase(sending.ahead.begin() + static_cast<std::ptrdiff_t>(chosen));
  if (!sending.has_fragments()) std::erase(with_fragments_, &sending);
  return true;
}

void Endpoint::finish(std::uint64_t operation, Status status) {
  const auto found = sendings_.find(operation);
  if (found == sendings_.end()) return;
  const std::unique_ptr<Sending> sending = std::move(found->second);
  sendings_.erase(found);
  std::erase(with_fragments_, sending.get());
  const Post& post = sending->post;
  if (direct_ && post.context && status == Status::ok && !has_stamp(post.context, operation))
    status = Status::invalid_local_key;
  const bool wanted = !selective_transmit_ || (post.flags & FI_COMPLETION) != 0;
  // An injected message or write produces no completion unless it fails.
  const bool silent = (post.flags & FI_INJECT) != 0 && !post.context;
  if (closing_ || (status == Status::ok && (!wanted || silent))) return;
  Completed completed{.failed = status != Status::ok};
  completed.entry.op_context = post.context;
  completed.entry.flags = post.kind == PacketKind::message ? FI_MSG | FI_SEND : FI_RMA | FI_WRITE;
  completed.entry.err = error_of(status);
  completed.entry.prov_errno = static_cast<int>(status);
  if (completed.failed) completed.entry.olen = post.total;
  transmit_queue_->push(completed);
}

}  // namespace shoal::test::efa
