// Copies between the ordinary memories of a group's ranks (process_memory.h): finds out whether
// they are permitted, makes them, and handles peers that end meanwhile.
#include <cerrno>
#include <cstring>
#include <random>
#include <thread>

#include <unistd.h>

#include "shoal/collectives/backend/native/group.h"
#include "shoal/collectives/transport/process_memory.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::native {
namespace {

constexpr auto kPoll = std::chrono::microseconds(50);

}  // namespace

void Group::introduce_memory() {
  std::random_device random;
  secret_ = std::uint64_t{random()} << 32 | random();
  transport::MemoryAccess& own = own_page().memory;
  own.pid = getpid();
  own.address = reinterpret_cast<std::uintptr_t>(&secret_);
  own.secret = secret_;
}

// In another namespace, the same process id may belong to another process. So a successful read is
// not enough: the value must be the peer's secret. Writing it back changes nothing, and shows that
// writes work too.
int Group::try_memory() const {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const transport::MemoryAccess& theirs = page(peer).memory;
    std::uint64_t found = 0;
    if (const int problem =
            transport::read_process(theirs.pid, theirs.address, &found, sizeof found))
      return problem;
    if (found != theirs.secret) return ESRCH;
    if (const int problem =
            transport::write_process(theirs.pid, theirs.address, &found, sizeof found))
      return problem;
  }
  return 0;
}

void Group::agree_on_memory(Deadline deadline) {
  own_page().memory.reaches.store(1 + try_memory());
  single_copy_ = true;
  for (int peer = 0; peer < size_; ++peer) {
    std::int32_t verdict = 0;
    while ((verdict = page(peer).memory.reaches.load()) == 0) {
      poll_links();
      const bool gone =
          link_state(peer) != transport::LinkState::open && page(peer).memory.reaches.load() == 0;
      if (gone || deadline.passed())
        throw Error(gone ? ErrorCode::peer_lost : ErrorCode::timeout,
                    fmt::format("rank {} {} while the group formed", member(peer),
                                gone ? "left" : "said nothing"),
                    "look at that rank's own output for the cause")
            .at_rank(member(rank_))
            .with_peer(member(peer))
            .in_operation("make_communicator");
      std::this_thread::sleep_for(kPoll);
    }
    if (verdict == 1) continue;
    if (single_copy_)
      log::once(log::Level::warn, "native-single-copy", why_not_single_copy(peer, verdict - 1));
    single_copy_ = false;
  }
}

std::string Group::why_not_single_copy(int peer, int problem) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size_; ++rank) ranks.push_back(member(rank));
  const std::string apart = transport::why_memory_is_apart(links_->hosts(), ranks);
  return fmt::format(
      "native: rank {} may not copy between processes (process_vm_readv: {}); large collectives on "
      "ordinary buffers go through bounce slots, slower; {}, or use "
      "Communicator::memory_resource()",
      member(peer), std::strerror(problem), apart.empty() ? "allow ptrace among the ranks" : apart);
}

void Group::throw_unreachable(int peer, int problem) {
  // Copies fail as soon as the peer's process ends, which may be before its socket closes.
  const auto deadline = Deadline::in_seconds(deadlines::kMemoryClosing);
  transport::LinkState state = transport::LinkState::open;
  for (;;) {
    poll_links();
    state = link_state(peer);
    if (state != transport::LinkState::open || page(peer).memory.closed.load() != 0 ||
        deadline.passed())
      break;
    std::this_thread::sleep_for(kPoll);
  }
  const std::string words = last_words(peer);
  const bool closed = page(peer).memory.closed.load() != 0;
  if (state == transport::LinkState::open && !closed)
    throw Error(
        ErrorCode::io,
        fmt::format("cannot reach the memory of rank {}: {}", member(peer), std::strerror(problem)),
        "see whether its buffers live until the operation is done")
        .at_rank(member(rank_))
        .with_peer(member(peer));
  throw Error(ErrorCode::peer_lost,
              fmt::format("rank {} {}{}", member(peer),
                          state == transport::LinkState::lost ? "died" : "gave up",
                          words.empty() ? "" : " (its last words: " + words + ")"),
              "look at that rank's own output for the cause")
      .at_rank(member(rank_))
      .with_peer(member(peer));
}

void Group::read_memory(int peer, std::uint64_t from, void* to, std::int64_t bytes) {
  if (bytes <= 0) return;
  if (const int problem =
          transport::read_process(page(peer).memory.pid, from, to, static_cast<std::size_t>(bytes)))
    throw_unreachable(peer, problem);
}

void Group::write_memory(int peer, std::uint64_t to, const void* from, std::int64_t bytes) {
  if (bytes <= 0) return;
  // First makes sure that the peer is alive: the process id of a dead peer may be reused.
  poll_links();
  if (link_state(peer) != transport::LinkState::open) throw_unreachable(peer, ESRCH);
  const transport::MemoryAccess& theirs = page(peer).memory;
  auto& writing = own_page().memory.writing;
  writing.store(1);
  const int problem =
      theirs.closed.load() != 0
          ? ECANCELED
          : transport::write_process(theirs.pid, to, from, static_cast<std::size_t>(bytes));
  writing.store(0);
  if (problem != 0) throw_unreachable(peer, problem);
}

void Group::close_memory() {
  if (own_page().memory.closed.exchange(1) != 0) return;
  const auto deadline = Deadline::in_seconds(deadlines::kMemoryClosing);
  for (int peer = 0; peer < size_; ++peer)
    while (peer != rank_ && page(peer).memory.writing.load() != 0 &&
           link_state(peer) == transport::LinkState::open && !deadline.passed()) {
      std::this_thread::sleep_for(kPoll);
      poll_links();
    }
}

}  // namespace shoal::collectives::native
