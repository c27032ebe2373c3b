#include "shoal/nn/capture/planned_memory.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/memory/block_marks.h"
#include "shoal/runtime/memory/limited_memory.h"

namespace shoal::nn {
namespace {

constexpr std::int64_t kOutlives = -1;  // marks a block that outlives the step

// Bytes that a plan reserves for a block: its size rounded up to the alignment.
std::size_t room_of(std::size_t bytes, Device device) {
  const auto alignment = static_cast<std::size_t>(alignment_of(device));
  return (bytes + alignment - 1) / alignment * alignment;
}

}  // namespace

std::int64_t alignment_of(Device device) { return device.is_cpu() ? 64 : 256; }

std::vector<StorageLifetime> lifetimes_of(const MemorySequence& sequence) {
  std::vector<StorageLifetime> lives;
  for (std::size_t i = 0; i < sequence.calls.size(); ++i) {
    const MemorySequence::Call& call = sequence.calls[i];
    if (call.bytes == 0)
      lives[static_cast<std::size_t>(call.block)].last = static_cast<int>(i);
    else
      lives.push_back({.bytes = static_cast<std::int64_t>(call.bytes),
                       .first = static_cast<int>(i),
                       .last = static_cast<int>(sequence.calls.size()),
                       .produced = sequence.offsets[lives.size()] != kOutlives,
                       .lane = sequence.lanes[lives.size()]});
  }
  return lives;
}

PlannedMemory::Arena::~Arena() {
  if (buffer) forget_marks(buffer.device(), buffer.data(), buffer.size());
}

bool PlannedMemory::Arena::holds(const void* pointer) const {
  const auto* const begin = static_cast<const std::byte*>(buffer.data());
  const auto* const at = static_cast<const std::byte*>(pointer);
  return at >= begin && at < begin + buffer.size();
}

PlannedMemory::PlannedMemory(PoolMemory& pool, MemoryResource& source)
    : below_(pool), pool_(&pool), source_(source) {}

PlannedMemory::PlannedMemory(MemoryResource& memory)
    : below_(memory), pool_(nullptr), source_(memory) {}

PlannedMemory::~PlannedMemory() = default;

void PlannedMemory::begin_recording() {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ == Mode::pass, "a step's memory is recorded inside another");
  mode_ = Mode::record;
  computing_ = std::this_thread::get_id();
  recorded_ = {};
  streams_.clear();
  block_of_.clear();
}

MemorySequence PlannedMemory::end_recording() {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ == Mode::record, "no step's memory is being recorded");
  mode_ = Mode::pass;
  MemorySequence sequence = std::exchange(recorded_, {});
  sequence.outliving = static_cast<int>(block_of_.size());
  if (pool_) sequence.pool_bytes = static_cast<std::int64_t>(pool_->cached_bytes());

  for (const auto& [pointer, block] : block_of_)
    sequence.offsets[static_cast<std::size_t>(block)] = kOutlives;
  block_of_.clear();
  MemoryPlan plan = plan_memory(lifetimes_of(sequence), alignment_of(device()));
  sequence.offsets = std::move(plan.offsets);
  sequence.arena_bytes = plan.arena_bytes;
  sequence.live_bytes = plan.live_bytes;
  return sequence;
}

void PlannedMemory::prepare(const MemorySequence& sequence) {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ == Mode::pass, "an arena is prepared within a step");
  // Keep arenas that still hold blocks of a step that deviated.
  std::erase_if(arenas_, [&](const std::unique_ptr<Arena>& arena) {
    return arena->live == 0 && arena != arenas_.back();
  });
  if (pool_) pool_->trim();
  if (fits(sequence)) return;
  const auto wanted = static_cast<std::size_t>(sequence.arena_bytes);
  if (!arenas_.empty() && arenas_.back()->live == 0) arenas_.pop_back();
  auto arena = std::make_unique<Arena>();
  // No stream: the arena may outlive the owner of the stream that steps run on.
  arena->buffer = Buffer(source_, wanted, MemoryTag::activations, Stream{device(), nullptr});
  arenas_.push_back(std::move(arena));
}

bool PlannedMemory::fits(const MemorySequence& sequence) const {
  return !arenas_.empty() && arenas_.back()->live == 0 &&
         static_cast<std::int64_t>(arenas_.back()->buffer.size()) >= sequence.arena_bytes;
}

bool PlannedMemory::is_prepared_for(const MemorySequence& sequence) const {
  const std::scoped_lock lock(mutex_);
  return fits(sequence);
}

void PlannedMemory::begin_serving(const MemorySequence& sequence, bool strict) {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ == Mode::pass, "a step's memory is served inside another");
  SHOAL_CHECK(fits(sequence), "a step is served without an arena of its size; prepare() it");
  // Stored host work runs later than the stream order suggests, so AddressSanitizer marks on blocks
  // would be wrong.
  if (strict && device().is_cpu() && std::exchange(arenas_.back()->tracks_blocks, false))
    forget_marks(device(), arenas_.back()->buffer.data(), arenas_.back()->buffer.size());
  mode_ = Mode::serve;
  computing_ = std::this_thread::get_id();
  served_ = &sequence;
  cursor_ = 0;
  strict_ = strict;
  deviation_.clear();
  block_of_.clear();
}

std::string PlannedMemory::end_serving() {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ == Mode::serve, "no step's memory is being served");
  mode_ = Mode::pass;
  block_of_.clear();
  if (deviation_.empty() && cursor_ != served_->calls.size())
    deviate(fmt::format("it ended after {} of {} calls", cursor_, served_->calls.size()));
  return std::exchange(deviation_, {});
}

void PlannedMemory::deviate(std::string what) {
  if (deviation_.empty()) deviation_ = std::move(what);
}

void* PlannedMemory::serve(std::size_t bytes, MemoryTag tag, Stream stream) {
  if (deviation_.empty()) {
    const auto& calls = served_->calls;
    if (cursor_ >= calls.size())
      deviate(fmt::format("{} bytes of {} after the last of {} calls", bytes, to_string(tag),
                          calls.size()));
    else if (calls[cursor_].bytes != bytes)
      deviate(fmt::format("call {} was {}, now it is for {} bytes of {}", cursor_,
                          calls[cursor_].bytes == 0
                              ? std::string("a deallocation")
                              : fmt::format("for {} bytes", calls[cursor_].bytes),
                          bytes, to_string(tag)));
  }
  if (!deviation_.empty()) {
    if (strict_) throw_error(ErrorCode::internal, "the step's memory differs: {}", deviation_);
    return below_.allocate(bytes, tag, stream);
  }
  const int block = served_->calls[cursor_++].block;
  const std::int64_t offset = served_->offsets[static_cast<std::size_t>(block)];
  if (offset < 0) {
    void* const pointer = below_.allocate(bytes, tag, stream);
    block_of_.emplace(pointer, block);
    return pointer;
  }
  Arena& arena = *arenas_.back();
  void* const pointer = static_cast<std::byte*>(arena.buffer.data()) + offset;
  block_of_.insert_or_assign(pointer, block);
  ++arena.live;
  if (arena.tracks_blocks)
    mark_taken(device(), pointer, bytes, room_of(bytes, device()), stream, true);
  return pointer;
}

void PlannedMemory::set_give_back(std::function<bool()> give_back) {
  const std::scoped_lock lock(mutex_);
  give_back_ = std::move(give_back);
}

std::int64_t PlannedMemory::release() {
  const std::scoped_lock lock(mutex_);
  SHOAL_CHECK(mode_ != Mode::serve, "an arena is given back while a step is served from it");
  std::int64_t bytes = 0;
  std::erase_if(arenas_, [&](const std::unique_ptr<Arena>& arena) {
    if (arena->live > 0) return false;
    bytes += static_cast<std::int64_t>(arena->buffer.size());
    return true;
  });
  return bytes;
}

// Never called for a served step, whose arena is in use. Called without the lock, since give_back_
// waits for steps.
void* PlannedMemory::allocate_beside(std::size_t bytes, MemoryTag tag, Stream stream,
                                     bool may_give_back) {
  try {
    return below_.allocate(bytes, tag, stream);
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::out_of_memory || !may_give_back || !give_back_()) throw;
  }
  return below_.allocate(bytes, tag, stream);
}

void* PlannedMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  std::unique_lock lock(mutex_);
  const bool computes = std::this_thread::get_id() == computing_;
  const bool own = computes && mode_ != Mode::pass;
  if (own && mode_ == Mode::serve) return serve(bytes, tag, stream);
  const bool may_give_back = computes && give_back_ && !arenas_.empty();
  lock.unlock();
  void* const pointer = allocate_beside(bytes, tag, stream, may_give_back);
  if (!own) return pointer;
  lock.lock();
  const int block = static_cast<int>(recorded_.offsets.size());
  recorded_.offsets.push_back(0);  // planned when the step has ended
  const auto lane = std::ranges::find(streams_, stream.handle) - streams_.begin();
  if (lane == std::ssize(streams_)) streams_.push_back(stream.handle);
  recorded_.lanes.push_back(static_cast<int>(lane));
  recorded_.calls.push_back({block, bytes});
  block_of_.insert_or_assign(pointer, block);
  return pointer;
}

void PlannedMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                               Stream stream) noexcept {
  const std::scoped_lock lock(mutex_);
  // Any thread may free a block of the step.
  if (const auto found = block_of_.find(pointer); found != block_of_.end()) {
    const int block = found->second;
    block_of_.erase(found);
    if (mode_ == Mode::record) {
      recorded_.calls.push_back({block, 0});
    } else if (deviation_.empty()) {
      const auto& calls = served_->calls;
      if (cursor_ < calls.size() && calls[cursor_].bytes == 0 && calls[cursor_].block == block)
        ++cursor_;
      else
        deviate(fmt::format("a block of {} bytes is given back at call {}", bytes, cursor_));
    }
  }
  for (const auto& arena : arenas_)
    if (arena->holds(pointer)) {
      --arena->live;
      if (arena->tracks_blocks)
        mark_given_back(device(), pointer, room_of(bytes, device()), stream);
      return;
    }
  below_.deallocate(pointer, bytes, tag, stream);
}

std::optional<std::int64_t> PlannedMemory::available_bytes() const {
  const auto* const limited = dynamic_cast<const LimitedMemory*>(&source_);
  const DeviceBackend::MemoryInfo there = device_backend(device().type).memory_info(device());
  if (limited == nullptr && there.total == 0) return std::nullopt;
  std::int64_t free = std::numeric_limits<std::int64_t>::max();
  if (limited != nullptr) free = limited->limit().bytes - limited->in_use();
  if (there.total > 0) free = std::min(free, static_cast<std::int64_t>(there.free));
  const std::size_t held = pool_ ? pool_->cached_bytes() : 0;
  return arena_bytes() + static_cast<std::int64_t>(held) + std::max<std::int64_t>(free, 0);
}

std::int64_t PlannedMemory::arena_bytes() const {
  const std::scoped_lock lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& arena : arenas_) bytes += static_cast<std::int64_t>(arena->buffer.size());
  return bytes;
}

}  // namespace shoal::nn
