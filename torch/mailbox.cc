#include "shoal/torch/mailbox.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/torch/tensors.h"

namespace shoal::pytorch {
namespace {

const char* type_name(std::int64_t type) {
  return c10::toString(static_cast<at::ScalarType>(type));
}

Error gone(const Mailbox::Receive& receive) {
  return Error(ErrorCode::peer_lost,
               receive.source < 0
                   ? fmt::format("{}: every other rank has left the group", receive.name())
                   : fmt::format("{}: that rank has left the group", receive.name()),
               "end the group once all messages have been received")
      .with_peer(receive.source);
}

}  // namespace

bool Mailbox::Receive::arrived() {
  if (problem) throw Error(*problem);
  if (from < 0) return false;
  return !data || data->test();
}

void Mailbox::Receive::copy_to(at::Tensor& target) const {
  if (aside.defined() && into.nbytes() > 0)
    std::memcpy(into.data_ptr(), aside.const_data_ptr(), into.nbytes());
  if (!into.is_same(target)) target.copy_(into);
}

std::string Mailbox::Receive::name() const {
  return fmt::format("recv of {} {} from {} with tag {}", into.numel(),
                     c10::toString(into.scalar_type()),
                     source < 0 ? std::string("any rank") : fmt::format("rank {}", source), tag);
}

std::string Mailbox::Receive::whereabouts() const {
  if (from >= 0) return fmt::format("the data of rank {} has not arrived", from);
  return source < 0 ? std::string("no rank has sent a message with this tag")
                    : fmt::format("rank {} has not sent a message with this tag", source);
}

Mailbox::Mailbox(collectives::Communicator& ranks)
    : ranks_(ranks), peers_(static_cast<std::size_t>(ranks.size())) {}

Mailbox::Sent Mailbox::send(const at::Tensor& tensor, int to, int tag) {
  Sent sent;
  sent.header = std::make_shared<Header>(Header{tag, tensor.numel(),
                                                static_cast<std::int64_t>(tensor.nbytes()),
                                                static_cast<std::int64_t>(tensor.scalar_type())});
  sent.header_work = ranks_.send(sent.header.get(), sizeof(Header), DType::u8, to);
  const Moved type = moved(tensor.scalar_type());
  if (tensor.nbytes() > 0)
    sent.data_work =
        ranks_.send(tensor.const_data_ptr(), tensor.numel() * type.units, type.dtype, to);
  return sent;
}

void Mailbox::receive(std::shared_ptr<Receive> receive) {
  if (hand_over(*receive)) return;
  if (!may_come(*receive)) throw gone(*receive);
  for (int peer = 0; peer < ranks_.size(); ++peer)
    if (peer != ranks_.rank() && (receive->source < 0 || receive->source == peer)) ask(peer);
  waiting_.push_back(std::move(receive));
  progress();
}

void Mailbox::ask(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  if (p.header_work || p.left) return;
  p.header = std::make_unique<Header>();
  p.header_work = ranks_.recv(p.header.get(), sizeof(Header), DType::u8, peer);
}

// Gives the receive the earliest matching message that has already arrived. Returns false if there
// is none.
bool Mailbox::hand_over(Receive& receive) {
  std::deque<Unexpected>* queue = nullptr;
  std::size_t place = 0;
  int from = -1;
  for (int peer = 0; peer < ranks_.size(); ++peer) {
    if (receive.source >= 0 && receive.source != peer) continue;
    auto& unexpected = peers_[static_cast<std::size_t>(peer)].unexpected;
    for (std::size_t i = 0; i < unexpected.size(); ++i) {
      if (unexpected[i].header.tag != receive.tag) continue;
      if (!queue || unexpected[i].arrival < (*queue)[place].arrival) {
        queue = &unexpected;
        place = i;
        from = peer;
      }
      break;
    }
  }
  if (!queue) return false;
  Unexpected found = std::move((*queue)[place]);
  queue->erase(queue->begin() + static_cast<std::ptrdiff_t>(place));
  if (!fits(receive, found.header, from)) {
    refused_.push_back(std::move(found));
    return true;
  }
  receive.aside = found.bytes;
  receive.data = std::move(found.data);
  receive.from = from;
  return true;
}

bool Mailbox::fits(Receive& receive, const Header& header, int from) {
  if (header.scalar_type == static_cast<std::int64_t>(receive.into.scalar_type()) &&
      header.elements == receive.into.numel())
    return true;
  receive.problem = Error(ErrorCode::mismatch,
                          fmt::format("{}, but rank {} sent {} {}", receive.name(), from,
                                      header.elements, type_name(header.scalar_type)),
                          "send and receive tensors of one size and dtype");
  return false;
}

void Mailbox::progress() {
  try {
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      Peer& p = peers_[static_cast<std::size_t>(peer)];
      while (p.header_work && p.header_work->test()) take(peer);
    }
    std::erase_if(refused_,
                  [](Unexpected& message) { return !message.data || message.data->test(); });
    std::erase_if(cancelled_, [](const auto& receive) { return receive->data->test(); });
  } catch (const Error& error) {  // the Communicator of the messages has failed
    for (Peer& p : peers_) p.header_work.reset();
    refused_.clear();
    cancelled_.clear();
    for (const auto& receive : waiting_) receive->problem = error;
    waiting_.clear();
  }
}

void Mailbox::leave() {
  try {
    for (int peer = 0; peer < ranks_.size(); ++peer) {
      if (peer == ranks_.rank() || peers_[static_cast<std::size_t>(peer)].left) continue;
      Sent& sent = last_words_.emplace_back();
      sent.header = std::make_shared<Header>(Header{.leaves = 1});
      sent.header_work = ranks_.send(sent.header.get(), sizeof(Header), DType::u8, peer);
    }
    const Deadline until =
        Deadline::in_seconds(std::chrono::duration<double>(deadlines::kLastWords).count());
    for (const Sent& sent : last_words_)
      while (!sent.header_work->test() && !until.passed()) std::this_thread::yield();
  } catch (const Error&) {  // the group has failed, and the other ranks know it
  }
}

bool Mailbox::may_come(const Receive& receive) const {
  for (int peer = 0; peer < ranks_.size(); ++peer)
    if (peer != ranks_.rank() && (receive.source < 0 || receive.source == peer) &&
        !peers_[static_cast<std::size_t>(peer)].left)
      return true;
  return false;
}

void Mailbox::note_left(int peer) {
  peers_[static_cast<std::size_t>(peer)].left = true;
  std::erase_if(waiting_, [&](const std::shared_ptr<Receive>& receive) {
    if (may_come(*receive)) return false;
    receive->problem = gone(*receive);
    return true;
  });
}

void Mailbox::cancel(const std::shared_ptr<Receive>& receive) {
  std::erase(waiting_, receive);
  if (receive->data) cancelled_.push_back(receive);
}

void Mailbox::take(int peer) {
  Peer& p = peers_[static_cast<std::size_t>(peer)];
  p.header_work.reset();
  if (p.header->leaves != 0) return note_left(peer);
  Unexpected message{*p.header, arrivals_++, {}, nullptr};
  const auto matches = [&](const Receive& receive) {
    return receive.tag == message.header.tag && (receive.source < 0 || receive.source == peer);
  };
  const auto found = std::ranges::find_if(waiting_, [&](const auto& r) { return matches(*r); });
  const std::shared_ptr<Receive> receive = found == waiting_.end() ? nullptr : *found;
  const bool taken = receive && fits(*receive, message.header, peer);
  if (!taken) message.bytes = at::empty({message.header.bytes}, at::kByte);
  const Moved type = moved(static_cast<at::ScalarType>(message.header.scalar_type));
  if (message.header.bytes > 0)
    message.data = ranks_.recv(taken ? receive->into.data_ptr() : message.bytes.data_ptr(),
                               message.header.elements * type.units, type.dtype, peer);
  if (receive) waiting_.erase(found);
  if (taken) {
    receive->data = std::move(message.data);
    receive->from = peer;
  } else if (receive) {
    refused_.push_back(std::move(message));
  } else {
    p.unexpected.push_back(std::move(message));
  }
  for (const auto& r : waiting_)
    if (r->source < 0 || r->source == peer) return ask(peer);
}

}  // namespace shoal::pytorch
