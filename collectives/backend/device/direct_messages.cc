#include "shoal/collectives/backend/device/direct_messages.h"

#include <algorithm>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/runtime/base/deadlines.h"

namespace shoal::collectives::device {
namespace {

std::int64_t bytes_of(std::int64_t count, DType dtype) {
  return count * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

void DirectMessages::take(Message message) {
  const Call& call = message->call();
  Peer& peer = peers_[call.root];
  if (call.operation == Operation::send)
    peer.outgoing.push_back({.message = std::move(message)});
  else
    peer.wanted.push_back(std::move(message));
}

bool DirectMessages::progress() {
  bool moved = false;
  for (auto& [rank, peer] : peers_) {
    moved = tell(rank, peer) || moved;
    moved = listen(rank, peer) || moved;
    moved = take_next(rank, peer) || moved;
    moved = finish(rank, peer) || moved;
    std::erase_if(peer.leaving, [](const Leaving& one) { return one.work->test(); });
  }
  return moved;
}

bool DirectMessages::idle() const {
  return std::ranges::all_of(peers_, [](const auto& entry) {
    const Peer& peer = entry.second;
    return peer.outgoing.empty() && peer.announced.empty() && peer.wanted.empty() &&
           peer.arrived.empty() && peer.taking.empty() && peer.leaving.empty() && !peer.listening;
  });
}

void DirectMessages::give_up() {
  for (auto& [rank, peer] : peers_) {
    if (!peer.listening) continue;
    const Message oldest =
        peer.announced.empty() ? peer.wanted[peer.arrived.size()] : peer.announced.front().message;
    try {
      peer.listening->wait(deadlines::at_once());
    } catch (const Error& error) {
      throw Error(error).in_operation(describe(oldest->call()));
    }
  }
}

void DirectMessages::drop(const std::function<void(DeviceOperation&)>& visit) {
  for (auto& [rank, peer] : peers_) {
    for (const Outgoing& one : peer.outgoing) visit(*one.message);
    for (const Outgoing& one : peer.announced) visit(*one.message);
    for (const Message& one : peer.wanted) visit(*one);
    for (const Taking& one : peer.taking) visit(*one.message);
  }
  peers_.clear();
}

// A buffer's data is ready once the call's stream has reached the operation's event.
bool DirectMessages::tell(int rank, Peer& peer) {
  bool moved = false;
  for (; !peer.outgoing.empty(); peer.outgoing.pop_front()) {
    Outgoing& first = peer.outgoing.front();
    const Call& call = first.message->call();
    if (!first.message->ready.query()) break;
    const std::int64_t bytes = bytes_of(call.count, call.dtype);
    Notice notice{Notice::Kind::where, static_cast<std::int32_t>(call.dtype), call.count, {}};
    if (bytes > 0) notice.place = setup_.place_of(call.send, bytes);
    const bool follows = bytes > 0 && notice.place.base == 0;
    if (follows && !first.copied) {
      first.staged =
          Buffer(*setup_.staging, static_cast<std::size_t>(bytes), MemoryTag::communication);
      first.copied.emplace(setup_.in.device);
      device_backend(setup_.in.device.type)
          .copy(first.staged.data(), call.send, static_cast<std::size_t>(bytes), setup_.in);
      first.copied->record(setup_.in);
    }
    if (first.copied && !first.copied->query()) break;
    leave(rank, peer, notice);
    if (follows)
      peer.leaving.push_back(
          {nullptr, setup_.inner->send(first.staged.data(), bytes, DType::u8, rank)});
    peer.announced.push_back(std::move(first));
    moved = true;
  }
  return moved;
}

void DirectMessages::leave(int rank, Peer& peer, const Notice& notice) {
  auto own = std::make_unique<Notice>(notice);
  const void* data = own.get();
  peer.leaving.push_back(
      {std::move(own), setup_.inner->send(data, sizeof notice, DType::u8, rank)});
}

// Receives one notice at a time while any is due: one for each announced send and one for each
// recv.
bool DirectMessages::listen(int rank, Peer& peer) {
  bool moved = false;
  for (;;) {
    if (!peer.listening) {
      if (peer.announced.empty() && peer.wanted.size() <= peer.arrived.size()) return moved;
      peer.listening = setup_.inner->recv(&peer.heard, sizeof peer.heard, DType::u8, rank);
    }
    if (!peer.listening->test()) return moved;
    peer.listening.reset();
    moved = true;
    if (peer.heard.kind == Notice::Kind::taken) {
      SHOAL_ASSERT(!peer.announced.empty());
      setup_.end(*peer.announced.front().message, static_cast<bool>(peer.announced.front().staged));
      peer.announced.pop_front();
      continue;
    }
    // The notice's data comes before any other notice, whether or not a recv waits for it.
    Arrived arrived{.notice = peer.heard};
    const std::int64_t bytes = bytes_of(peer.heard.count, static_cast<DType>(peer.heard.dtype));
    if (bytes > 0 && peer.heard.place.base == 0) {
      arrived.staged =
          Buffer(*setup_.staging, static_cast<std::size_t>(bytes), MemoryTag::communication);
      arrived.data = setup_.inner->recv(arrived.staged.data(), bytes, DType::u8, rank);
    }
    peer.arrived.push_back(std::move(arrived));
  }
}

void DirectMessages::check(int rank, const DeviceOperation& wanted, const Notice& notice) {
  const Call& call = wanted.call();
  if (notice.count == call.count && notice.dtype == static_cast<std::int32_t>(call.dtype)) return;
  const Error error =
      Error(ErrorCode::mismatch,
            fmt::format("rank {} called {}, rank {} called send of {} {} to rank {}",
                        setup_.inner->rank(), describe(call), rank, notice.count,
                        to_string(static_cast<DType>(notice.dtype)), setup_.inner->rank()))
          .at_rank(setup_.inner->rank())
          .with_peer(rank);
  setup_.inner->abort(error.message());  // the sender gets no other notification
  throw Error(error);
}

bool DirectMessages::take_next(int rank, Peer& peer) {
  bool moved = false;
  for (; !peer.wanted.empty() && !peer.arrived.empty(); moved = true) {
    DeviceOperation& message = *peer.wanted.front();
    Arrived& from = peer.arrived.front();
    check(rank, message, from.notice);
    if (from.data && !from.data->test()) break;
    if (!message.ready.query()) break;  // until then the buffer may be in use
    const Call& call = message.call();
    const std::int64_t bytes = bytes_of(call.count, call.dtype);
    const void* const source = from.staged ? from.staged.data()
                               : bytes > 0 ? setup_.opened->pointer(rank, from.notice.place)
                                           : nullptr;
    Event copied(setup_.out.device);
    device_backend(setup_.out.device.type)
        .copy(call.recv, source, static_cast<std::size_t>(bytes), setup_.out);
    copied.record(setup_.out);
    peer.taking.push_back({peer.wanted.front(), std::move(from), std::move(copied)});
    peer.wanted.pop_front();
    peer.arrived.pop_front();
  }
  return moved;
}

bool DirectMessages::finish(int rank, Peer& peer) {
  bool moved = false;
  for (; !peer.taking.empty() && peer.taking.front().copied.query(); peer.taking.pop_front()) {
    const Taking& first = peer.taking.front();
    leave(rank, peer, {.kind = Notice::Kind::taken});
    setup_.end(*first.message, static_cast<bool>(first.from.staged));
    moved = true;
  }
  return moved;
}

}  // namespace shoal::collectives::device
