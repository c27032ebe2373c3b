// send and recv. The sender sends a card, which the receiver compares with its own call, then the
// data under the message's own tag. The order in which receives are posted therefore does not
// matter.
#include <algorithm>

#include "shoal/collectives/backend/mpi/engine.h"

namespace shoal::collectives::mpi {
namespace {

constexpr int kCardTag = 1;
int data_tag(std::uint64_t sequence) { return 16 + static_cast<int>(sequence % 16384); }

// The message as its sender calls it, on both sides.
Signature message_signature(const Call& call, int rank) {
  Signature s = signature_of(call);
  s.operation = Operation::send;
  if (call.operation == Operation::recv) s.root = rank;
  return s;
}

}  // namespace

void MpiEngine::post_message(MpiOperation& o) {
  const Call& c = o.call;
  const bool sends = c.operation == Operation::send;
  o.sequence = message_sequences_[sends ? std::pair(rank_, c.root) : std::pair(c.root, rank_)]++;
  o.ticket = flight_.message(static_cast<std::uint32_t>(o.sequence), signature_of(c));
  o.own_cards = {{o.sequence, message_signature(c, rank_)}};
  o.cards = o.own_cards;
  MPI_Request request = MPI_REQUEST_NULL;
  if (!sends) {
    check_mpi(MPI_Irecv(&o.cards[0], sizeof(MpiCard), MPI_BYTE, c.root, kCardTag, messages_comm_,
                        &request),
              "MPI_Irecv");
    o.card_requests = {request};
    o.stage = MpiOperation::Stage::cards;
    return;
  }
  check_mpi(MPI_Isend(&o.own_cards[0], sizeof(MpiCard), MPI_BYTE, c.root, kCardTag, messages_comm_,
                      &request),
            "MPI_Isend");
  o.requests = {request};
  if (c.count > 0) {
    check_mpi(MPI_Isend(c.send, static_cast<int>(c.count), mpi_type(c.dtype), c.root,
                        data_tag(o.sequence), messages_comm_, &request),
              "MPI_Isend");
    o.requests.push_back(request);
  }
  o.stage = MpiOperation::Stage::gather;
}

bool MpiEngine::advance_message(MpiOperation& o) {
  const Call& c = o.call;
  if (o.stage == MpiOperation::Stage::gather) {
    if (!all_done(o.requests)) return false;
    finish(o);
    return true;
  }
  if (!all_done(o.card_requests)) return false;
  const Signature &own = o.own_cards[0].signature, &theirs = o.cards[0].signature;
  if (own != theirs)
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {} called {}, rank {} called {}", member(c.root), words(theirs),
                            member(rank_), words(signature_of(c))),
                "let counts and dtypes of a send and its recv agree")
        .at_rank(member(rank_))
        .with_peer(member(c.root))
        .in_operation(words(signature_of(c)));
  if (c.count > 0) {
    MPI_Request request = MPI_REQUEST_NULL;
    check_mpi(MPI_Irecv(c.recv, static_cast<int>(c.count), mpi_type(c.dtype), c.root,
                        data_tag(o.sequence), messages_comm_, &request),
              "MPI_Irecv");
    o.requests = {request};
  }
  o.stage = MpiOperation::Stage::gather;
  return true;
}

bool MpiEngine::advance_messages() {
  bool moved = false;
  for (const auto& message : messages_) moved = advance_message(*message) || moved;
  std::erase_if(messages_, [](const auto& message) { return message->finished.load(); });
  return moved;
}

std::string MpiEngine::message_timeout(const MpiOperation& o, double waited) const {
  const bool sends = o.call.operation == Operation::send;
  const char* state = sends ? "has not received it"
                      : o.stage == MpiOperation::Stage::cards
                          ? "has not sent it"
                          : "has sent it, the data did not arrive";
  return fmt::format("{} (message {} between the two) did not finish within {:.1f} s; rank {} {}",
                     words(signature_of(o.call)), o.sequence + 1, waited, member(o.call.root),
                     state);
}

}  // namespace shoal::collectives::mpi
