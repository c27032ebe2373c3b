#include "shoal/collectives/backend/native/group.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>
#include <thread>

#include <fmt/ranges.h>
#include <sched.h>
#include <unistd.h>

#include "shoal/collectives/transport/doorbell.h"
#include "shoal/collectives/transport/shm_endpoint.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::native {
namespace {

constexpr std::int64_t kControlSegment = -1;
// Segment numbers from here on belong to the group whose memory this one shares (memory_).
constexpr std::int32_t kShared = 1 << 20;
constexpr std::size_t kMostAnnouncements = 16;  // segments that peers have not received yet
constexpr std::size_t kPageBytes = (sizeof(transport::RankPage) + 4095) / 4096 * 4096;
constexpr std::size_t kMailboxOffset = kPageBytes + static_cast<std::size_t>(kBounceBytes);

std::size_t index(int peer) { return static_cast<std::size_t>(peer); }

std::int64_t size_of_last_cache() {
  for (const int level : {_SC_LEVEL3_CACHE_SIZE, _SC_LEVEL2_CACHE_SIZE})
    if (const long bytes = sysconf(level); bytes > 0) return bytes;
  return std::int64_t{32} << 20;  // a guess: not every C library reports cache sizes
}

}  // namespace

Group::Group(int rank, int size, Store& store, const std::string& prefix, Deadline deadline,
             std::vector<int> members, std::shared_ptr<Group> memory)
    : rank_(rank),
      size_(size),
      members_(std::move(members)),
      last_cache_bytes_(size_of_last_cache()),
      control_(index(size)),
      pages_(index(size)),
      segments_(index(size)),
      memory_(std::move(memory)) {
  control_[index(rank)] = transport::SharedSegment::create("shoal-control", control_bytes());
  pages_[index(rank)] = new (control_[index(rank)]->data()) transport::RankPage;
  own_page().can_fence.store(transport::register_for_fences());
  transport::publish_cores(own_page());
  introduce_memory();
  links_ = std::make_unique<transport::PeerLinks>(rank, size, store, prefix, deadline, members_);
  links_->announce(kControlSegment, control_[index(rank)]);
  for (;;) {
    poll_links();
    std::vector<int> missing;
    for (int peer = 0; peer < size; ++peer) {
      if (control_[index(peer)]) continue;
      missing.push_back(peer);
      if (link_state(peer) != transport::LinkState::open)
        throw Error(ErrorCode::peer_lost,
                    fmt::format("rank {} left while the group formed", member(peer)),
                    "look at that rank's own output for the cause")
            .at_rank(member(rank))
            .with_peer(member(peer))
            .in_operation("make_communicator");
    }
    if (missing.empty()) missing = links_->behind();
    if (missing.empty()) break;
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("rank(s) {} did not share their memory, or map ours, in time",
                              fmt::join(named(missing), ", ")))
          .at_rank(member(rank))
          .with_peer(member(missing.front()))
          .in_operation("make_communicator");
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  sleepers_fence_ = true;
  std::vector<const transport::RankPage*> pages;
  for (int peer = 0; peer < size; ++peer) {
    sleepers_fence_ = sleepers_fence_ && page(peer).can_fence.load();
    pages.push_back(&page(peer));
  }
  cores_ = transport::cores_of(pages);
  if (size_ > cores_) sleepers_fence_ = false;  // ranks sleep often
  agree_on_memory(deadline);
}

Group::~Group() = default;

std::vector<int> Group::named(std::vector<int> peers) const {
  for (int& peer : peers) peer = member(peer);
  return peers;
}

std::size_t Group::control_bytes() const {
  return kMailboxOffset + transport::shm_mailbox_bytes(size_);
}

std::byte* Group::mailboxes(int peer) const {
  return control_[index(peer)]->data() + kMailboxOffset;
}

std::byte* Group::bounce(int peer) const { return control_[index(peer)]->data() + kPageBytes; }

bool Group::sleepers_fence() const {
  for (int peer = 0; sleepers_fence_ && peer < size_; ++peer)
    if (peer != rank_ && !page(peer).fences.load()) return true;
  return false;
}

// A peer that sees the flag also sees everything that this rank published earlier without a fence.
void Group::fence_at_publishing() { own_page().fences.store(true); }

int Group::first_behind(std::uint64_t target) const {
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && !transport::reached(page(peer).place.load(), target)) return peer;
  return -1;
}

std::shared_ptr<transport::SharedSegment> Group::add_segment(std::size_t bytes, Deadline deadline) {
  std::unique_lock lock(mutex_);
  // Every waiting segment holds a file descriptor. Polls, because the other ranks may be blocked
  // here as well, until this rank receives their segments.
  while (links_ && links_->backlog() >= kMostAnnouncements) {
    poll_links_locked();
    if (links_->backlog() < kMostAnnouncements) break;
    if (deadline.passed())
      throw Error(
          ErrorCode::timeout,
          fmt::format("{} segments of symmetric memory wait to be mapped by rank(s) {}",
                      links_->backlog(), fmt::join(named(links_->behind()), ", ")),
          "see what those ranks do, raise `ulimit -n`, or allocate fewer and larger buffers")
          .at_rank(member(rank_))
          .with_peer(member(links_->behind().front()))
          .in_operation("memory_resource");
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    lock.lock();
  }
  auto segment = transport::SharedSegment::create("shoal-symmetric", bytes);
  auto& own = segments_[index(rank_)];
  own.push_back(segment);
  if (links_) links_->announce(static_cast<std::int64_t>(own.size()) - 1, segment);
  return segment;
}

transport::Location Group::locate(const void* pointer, std::int64_t bytes) const {
  const auto* address = static_cast<const std::byte*>(pointer);
  {
    const std::lock_guard lock(mutex_);
    const auto& own = segments_[index(rank_)];
    for (std::size_t number = 0; number < own.size(); ++number) {
      const std::byte* begin = own[number]->data();
      if (address >= begin && address + bytes <= begin + own[number]->size())
        return {static_cast<std::int32_t>(number), address - begin};
    }
  }
  if (!memory_) return {};
  transport::Location location = memory_->locate(pointer, bytes);
  if (location.segment >= 0) location.segment += kShared;
  return location;
}

std::byte* Group::resolve(int peer, const transport::Location& location) {
  if (memory_ && location.segment >= kShared)
    return memory_->resolve(peer, {location.segment - kShared, location.offset});
  const std::lock_guard lock(mutex_);
  auto& theirs = segments_[index(peer)];
  const auto number = static_cast<std::size_t>(location.segment);
  if (number >= theirs.size() || !theirs[number]) {
    poll_links_locked();
    if (number >= theirs.size() || !theirs[number]) return nullptr;
  }
  if (location.offset < 0 || static_cast<std::size_t>(location.offset) > theirs[number]->size())
    throw_error(ErrorCode::corrupt_data,
                "rank {} says its buffer is at {} in a segment of {} bytes", member(peer),
                location.offset, theirs[number]->size());
  return theirs[number]->data() + location.offset;
}

void Group::accept_segment(int peer, std::int64_t number, std::size_t bytes,
                           transport::FileDescriptor fd) {
  std::shared_ptr<transport::SharedSegment> segment;
  try {
    segment = transport::SharedSegment::map(std::move(fd), bytes);
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::corrupt_data) throw;
    throw unreadable_card(member(peer), "native", problem.message());
  }
  if (number == kControlSegment) {
    if (control_[index(peer)])
      throw unreadable_card(member(peer), "native", "it shares a second control page");
    if (bytes != control_bytes())
      throw Error(ErrorCode::mismatch,
                  fmt::format("rank {} has a control page of {} bytes, not {}", member(peer), bytes,
                              control_bytes()),
                  "run the same version of Shoal on every rank");
    pages_[index(peer)] = std::launder(reinterpret_cast<transport::RankPage*>(segment->data()));
    control_[index(peer)] = std::move(segment);
    return;
  }
  auto& theirs = segments_[index(peer)];
  if (number < 0 || static_cast<std::size_t>(number) != theirs.size())
    throw unreadable_card(member(peer), "native",
                          fmt::format("it announced segment {} after {}", number, theirs.size()));
  theirs.push_back(std::move(segment));
}

void Group::poll_links() {
  const std::lock_guard lock(mutex_);
  poll_links_locked();
}

void Group::poll_links_locked() {
  if (!links_) return;
  links_->drain(
      [this](int peer, std::int64_t number, std::size_t bytes, transport::FileDescriptor fd) {
        accept_segment(peer, number, bytes, std::move(fd));
      });
}

transport::LinkState Group::link_state(int peer) const {
  const std::lock_guard lock(mutex_);
  return links_ && peer != rank_ ? links_->state(peer) : transport::LinkState::open;
}

void Group::close_links() {
  const std::lock_guard lock(mutex_);
  links_.reset();
}

void Group::say_last_words(std::string_view text, transport::LastWords why) {
  const std::lock_guard lock(mutex_);  // one thread may fail while another aborts
  transport::RankPage& own = own_page();
  if (own.has_last_words.load() != 0) return;
  const std::size_t length = std::min(text.size(), sizeof own.last_words - 1);
  std::memcpy(own.last_words, text.data(), length);
  own.last_words[length] = '\0';
  own.has_last_words.store(static_cast<std::uint32_t>(why));
}

bool Group::has_failed(int peer) const {
  return page(peer).has_last_words.load() ==
         static_cast<std::uint32_t>(transport::LastWords::failed);
}

std::string Group::last_words(int peer) const {
  const transport::RankPage& theirs = page(peer);
  if (theirs.has_last_words.load() == 0) return {};
  return std::string(theirs.last_words, strnlen(theirs.last_words, sizeof theirs.last_words));
}

void Group::broadcast_abort(std::string_view reason) {
  say_last_words(reason, transport::LastWords::aborted);
  for (int peer = 0; peer < size_; ++peer) {
    std::uint32_t expected = 0;
    page(peer).aborted_by.compare_exchange_strong(expected, static_cast<std::uint32_t>(rank_) + 1);
    transport::wake_always(page(peer));
  }
}

std::optional<int> Group::aborted_by() const {
  const std::uint32_t by = own_page().aborted_by.load();
  return by == 0 ? std::nullopt : std::optional<int>(static_cast<int>(by) - 1);
}

}  // namespace shoal::collectives::native
