#include "shoal/collectives/backend/native/messages.h"

#include <algorithm>

namespace shoal::collectives::native {
namespace {

// Distinguishes the keys of messages from those of collectives that share the endpoint.
constexpr std::uint32_t kMessageGroup = 0x80000000;

class GroupHost final : public transport::ShmHost {
 public:
  explicit GroupHost(std::shared_ptr<Group> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  int member(int peer) const override { return group_->member(peer); }
  transport::RankPage& page(int peer) const override { return group_->page(peer); }
  std::byte* mailboxes(int peer) const override { return group_->mailboxes(peer); }
  transport::Location locate(const void* data, std::int64_t bytes) const override {
    return group_->locate(data, bytes);
  }
  std::byte* resolve(int peer, const transport::Location& location) const override {
    return group_->resolve(peer, location);
  }
  std::string fate(int peer) const override {
    group_->poll_links();
    const transport::LinkState state = group_->link_state(peer);
    if (state == transport::LinkState::open && !group_->has_failed(peer)) return {};
    const std::string words = group_->last_words(peer);
    return fmt::format("{}{}",
                       state == transport::LinkState::open   ? "failed"
                       : state == transport::LinkState::lost ? "died"
                                                             : "left the group",
                       words.empty() ? "" : " (its last words: " + words + ")");
  }

 private:
  std::shared_ptr<Group> group_;
};

}  // namespace

std::string message_name(const QueuedOperation& operation, const Group& group) {
  const bool sends = operation.call.operation == Operation::send;
  Signature signature = signature_of(operation.call);
  signature.root = group.member(operation.call.root);
  return fmt::format("{} (message {} from rank {})", describe(signature),
                     std::uint64_t{operation.sequence} + 1,
                     sends ? group.member(group.rank()) : signature.root);
}

Messages::Messages(std::shared_ptr<Group> group, FlightRecorder& flight)
    : group_(std::move(group)),
      flight_(flight),
      endpoint_(transport::make_shm_endpoint(std::make_unique<GroupHost>(group_))),
      sent_(static_cast<std::size_t>(group_->size())),
      received_(static_cast<std::size_t>(group_->size())) {}

void Messages::post(QueuedOperation& operation) {
  const Call& call = operation.call;
  const bool sends = call.operation == Operation::send;
  const int from = sends ? group_->rank() : call.root, to = sends ? call.root : group_->rank();
  operation.sequence = (sends ? sent_ : received_)[static_cast<std::size_t>(call.root)]++;

  auto posted = std::make_unique<InFlight>();
  posted->operation = &operation;
  posted->key = {kMessageGroup + static_cast<std::uint32_t>(from * group_->size() + to),
                 operation.sequence};
  InFlight& p = *posted;
  in_flight_.push_back(std::move(posted));
  // Both ends use the same signature.
  Signature signature = signature_of(call);
  p.ticket = flight_.message(p.operation->sequence, signature);
  signature.operation = Operation::send;
  signature.root = group_->member(to);
  try {
    endpoint_->begin(p.key, signature);
    if (sends)
      endpoint_->post_send(to, {p.key, 0}, call.send, call.send_bytes(from, group_->size()),
                           p.completion);
    else
      endpoint_->post_receive(from, {p.key, 0}, call.recv, call.recv_bytes(to, group_->size()),
                              p.completion);
  } catch (const Error& error) {
    rethrow(error);
  }
}

bool Messages::progress(std::vector<QueuedOperation*>& finished) {
  bool moved = false;
  try {
    moved = endpoint_->progress();
  } catch (const Error& error) {
    rethrow(error);
  }
  // Eager sends may have finished when they were posted.
  const auto done = std::ranges::stable_partition(
      in_flight_, [](const auto& p) { return !p->completion.done(); });
  for (const auto& p : done) {
    endpoint_->end(p->key);
    flight_.message_finished(p->ticket);
    finished.push_back(p->operation);
  }
  moved = moved || !done.empty();
  in_flight_.erase(done.begin(), done.end());
  return moved;
}

// Throws `error` with the name of the affected call.
void Messages::rethrow(const Error& error) const {
  Error named(error);
  for (const auto& p : in_flight_)
    if (group_->member(p->operation->call.root) == error.peer()) {
      named.in_operation(message_name(*p->operation, *group_));
      break;
    }
  throw named;
}

}  // namespace shoal::collectives::native
