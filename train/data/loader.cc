#include "shoal/train/data/loader.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal {

namespace {

constexpr std::int64_t kNoEnd = std::numeric_limits<std::int64_t>::max();

// The samples chosen for a batch, before they are read and collated.
struct Draft {
  std::vector<SampleStream::Item> items;
  BatchPlace place;
  StreamState after;  // streams only
};

// Rethrows `problem` with `place` prefixed to its message.
[[noreturn]] void rethrow_at(const std::string& place, const std::exception& problem) {
  if (const auto* error = dynamic_cast<const Error*>(&problem))
    throw Error(error->code(), fmt::format("{}: {}", place, error->message()), error->remedy());
  if (dynamic_cast<const std::bad_alloc*>(&problem) != nullptr) throw;
  throw_error(ErrorCode::internal, "{}: {}", place, problem.what());
}

}  // namespace

LoaderStatistics operator-(LoaderStatistics a, const LoaderStatistics& b) {
  a.batches -= b.batches;
  a.samples -= b.samples;
  a.work_seconds -= b.work_seconds;
  a.stalls -= b.stalls;
  a.stall_seconds -= b.stall_seconds;
  return a;
}

double LoaderStatistics::samples_per_second(int workers) const {
  const double seconds = work_seconds / std::max(1, workers);
  return seconds > 0 ? static_cast<double>(samples) / seconds : 0;
}

// `mutex` guards the ring and the counters; workers hold it only to claim a batch and to store the
// result. `drafting` serializes the choice of samples. That happens outside `mutex`, because a
// stream may have to open a shard for it. Lock order: drafting, then mutex. The sampler and the
// stream change only after stop().
struct Loader::Impl {
  struct Slot {
    bool ready = false;
    Batch batch;
    StreamState after;
    std::exception_ptr failure;
  };

  void check() const;
  std::optional<Draft> draft(std::int64_t k) const;  // nullopt: the stream was stopped
  Batch make(const Draft& draft) const;
  std::string name_of(const SampleStream::Item& item) const;
  std::int64_t batch_begin(std::int64_t k) const { return first_sample + k * options.batch_size; }
  std::int64_t batches_left() const;
  void start();
  void stop();
  void work();
  Batch take(std::int64_t k);
  Batch make_now();

  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const Collator> collator;
  const PlacedCollator* placed = nullptr;  // `collator` if it is a PlacedCollator
  std::unique_ptr<Sampler> sampler;
  std::unique_ptr<SampleStream> stream;  // instead of dataset and sampler
  MemoryResource* memory = nullptr;
  LoaderOptions options;

  std::int64_t first_sample = 0;  // this rank's sample at which batch 0 begins, set by seek()
  std::int64_t batch_count = 0;   // batches from there to the end of the epoch
  bool is_waiting = false;        // start() is deferred until the first next() or seek
  std::int64_t next_batch = 0;    // the next batch to return
  StreamState stream_state;       // position of that batch
  LoaderStatistics statistics;

  std::mutex drafting;
  std::mutex mutex;
  std::condition_variable room, ready;
  std::vector<Slot> ring;              // batch k is in slot k % ring.size()
  std::int64_t next_claim = 0;         // the next batch to make
  std::atomic<bool> stopping = false;  // written under `mutex`; make() reads it without
  std::vector<std::thread> workers;
};

void Loader::Impl::check() const {
  SHOAL_CHECK(options.batch_size > 0, "loader: a batch of {} samples", options.batch_size);
  SHOAL_CHECK(options.num_workers >= 0 && options.num_workers <= 1024,
              "loader: dataloader_num_workers is {}; 0 to 1024 are possible", options.num_workers);
  SHOAL_CHECK(options.prefetch_factor > 0, "loader: prefetch_factor is {}",
              options.prefetch_factor);
}

std::int64_t Loader::Impl::batches_left() const {
  if (stream) return kNoEnd;
  const std::int64_t left = std::max<std::int64_t>(sampler->samples() - first_sample, 0);
  const std::int64_t round_up = options.drop_last_batch ? 0 : options.batch_size - 1;
  return (left + round_up) / options.batch_size;
}

std::optional<Draft> Loader::Impl::draft(std::int64_t k) const {
  Draft draft;
  if (stream) {
    auto claim = stream->claim(options.batch_size);
    if (!claim) return std::nullopt;
    draft.items = std::move(claim->items);
    draft.place.ordinals = claim->ordinals;
    draft.after = std::move(claim->after);
    return draft;
  }
  const std::int64_t begin = batch_begin(k);
  const std::int64_t end = std::min(begin + options.batch_size, sampler->samples());
  for (std::int64_t i = begin; i < end; ++i) draft.items.push_back({dataset, sampler->index(i), 0});
  draft.place = {{sampler->ordinal(begin), sampler->ranks()}, sampler->epoch()};
  return draft;
}

std::string Loader::Impl::name_of(const SampleStream::Item& item) const {
  return stream ? stream->name(item) : fmt::format("sample {} of the set", item.index);
}

Batch Loader::Impl::make(const Draft& draft) const {
  std::vector<Sample> samples;
  samples.reserve(draft.items.size());
  for (const SampleStream::Item& item : draft.items) {
    if (stopping) return {};  // the batch will not be requested
    try {
      samples.push_back(item.shard->get(item.index));
    } catch (const std::exception& problem) {
      rethrow_at(name_of(item), problem);
    }
  }
  try {
    Batch batch = placed != nullptr ? placed->collate_at(draft.place, samples, *memory)
                                    : collator->collate(samples, *memory);
    batch.ordinals = draft.place.ordinals;
    return batch;
  } catch (const std::exception& problem) {
    const auto count = draft.items.size();
    rethrow_at(count == 1 ? name_of(draft.items.front())
                          : fmt::format("a batch of {} samples from {} on", count,
                                        name_of(draft.items.front())),
               problem);
  }
}

void Loader::Impl::start() {
  stopping = is_waiting = false;
  batch_count = batches_left();
  next_batch = next_claim = 0;
  if (options.num_workers == 0 || batch_count == 0) return;
  if (stream) stream->read_ahead();
  ring.clear();
  ring.resize(static_cast<std::size_t>(options.num_workers) *
              static_cast<std::size_t>(options.prefetch_factor));
  const auto useful = std::min<std::int64_t>(options.num_workers, batch_count);
  try {
    for (std::int64_t i = 0; i < useful; ++i) workers.emplace_back([this] { work(); });
  } catch (const std::system_error& error) {
    const std::size_t started = workers.size();
    stop();
    throw_error(ErrorCode::unavailable, "loader: only {} of {} worker threads could be started: {}",
                started, options.num_workers, error.what());
  }
}

void Loader::Impl::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
  }
  room.notify_all();
  if (stream) stream->stop();
  for (std::thread& worker : workers) worker.join();
  workers.clear();
  ring.clear();
}

void Loader::Impl::work() {
  const auto slots = static_cast<std::int64_t>(ring.size());
  for (;;) {
    std::unique_lock turn(drafting);
    std::unique_lock lock(mutex);
    room.wait(lock, [&] {
      return stopping || next_claim == batch_count || next_claim < next_batch + slots;
    });
    if (stopping || next_claim == batch_count) return;
    const std::int64_t k = next_claim++;
    lock.unlock();
    const auto begin = Clock::now();
    Slot made;
    std::size_t samples = 0;
    try {
      auto what = draft(k);
      turn.unlock();
      if (!what) return;
      samples = what->items.size();
      made.after = std::move(what->after);
      made.batch = make(*what);
    } catch (...) {
      made.failure = std::current_exception();
    }
    made.ready = true;
    const double seconds = seconds_since(begin);
    lock.lock();
    ring[static_cast<std::size_t>(k % slots)] = std::move(made);
    ++statistics.batches;
    statistics.samples += static_cast<std::int64_t>(samples);
    statistics.work_seconds += seconds;
    if (k == next_batch) ready.notify_one();
  }
}

Batch Loader::Impl::take(std::int64_t k) {
  std::unique_lock lock(mutex);
  Slot& slot = ring[static_cast<std::size_t>(k) % ring.size()];
  if (!slot.ready) {
    const auto begin = Clock::now();
    ready.wait(lock, [&] { return slot.ready; });
    statistics.stall_seconds += seconds_since(begin);
    ++statistics.stalls;
  }
  Slot taken = std::exchange(slot, {});
  ++next_batch;
  lock.unlock();
  // At the end of the epoch, each worker in turn notices it and exits.
  room.notify_all();
  // A failed stream keeps its position.
  if (stream && taken.after.position > 0) stream_state = std::move(taken.after);
  if (taken.failure) std::rethrow_exception(taken.failure);
  return std::move(taken.batch);
}

// Used with 0 workers.
Batch Loader::Impl::make_now() {
  const auto begin = Clock::now();
  const std::int64_t k = next_batch++;  // incremented first, so that a failing batch is skipped
  const auto count = [&](std::size_t samples) {
    const double seconds = seconds_since(begin);
    ++statistics.batches;
    ++statistics.stalls;
    statistics.samples += static_cast<std::int64_t>(samples);
    statistics.work_seconds += seconds;
    statistics.stall_seconds += seconds;
  };
  auto what = draft(k);
  SHOAL_ASSERT(what.has_value());
  if (stream) stream_state = what->after;
  Batch batch = make(*what);
  count(what->items.size());
  return batch;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Collator> collator,
               std::unique_ptr<Sampler> sampler, MemoryResource& memory,
               const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHOAL_CHECK(dataset && collator && sampler, "loader: dataset, collator and sampler are needed");
  impl_->options = options;
  impl_->check();
  SHOAL_CHECK(dataset->size() > 0, "loader: the dataset is empty");
  impl_->dataset = std::move(dataset);
  impl_->placed = dynamic_cast<const PlacedCollator*>(collator.get());
  impl_->collator = std::move(collator);
  impl_->sampler = std::move(sampler);
  impl_->memory = &memory;
  impl_->start();
}

Loader::Loader(std::unique_ptr<SampleStream> stream, std::shared_ptr<const Collator> collator,
               MemoryResource& memory, const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHOAL_CHECK(stream && collator, "loader: a stream and a collator are needed");
  impl_->options = options;
  impl_->check();
  impl_->placed = dynamic_cast<const PlacedCollator*>(collator.get());
  impl_->collator = std::move(collator);
  impl_->stream = std::move(stream);
  impl_->stream_state = impl_->stream->origin();
  impl_->memory = &memory;
  // Do not read a sequential set yet: the caller may still seek to another position.
  impl_->is_waiting = impl_->stream->is_sequential();
  if (!impl_->is_waiting) impl_->start();
}

Loader::~Loader() { impl_->stop(); }

std::int64_t Loader::batches() const {
  SHOAL_CHECK(!impl_->stream, "loader: a stream has no last batch");
  const std::int64_t round_up = impl_->options.drop_last_batch ? 0 : impl_->options.batch_size - 1;
  return (impl_->sampler->samples() + round_up) / impl_->options.batch_size;
}

void Loader::seek(const SamplerState& state) {
  Impl& impl = *impl_;
  SHOAL_ASSERT(impl.sampler != nullptr);
  const std::int64_t ranks = impl.sampler->ranks();
  SHOAL_CHECK(state.epoch >= 0 && state.position >= 0, "loader: epoch {}, position {}", state.epoch,
              state.position);
  // At the end of an uneven evaluation, some ranks have one sample more than others.
  const std::int64_t total = ranks * impl.sampler->samples();
  if (state.position % ranks != 0 && state.position < total)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("loader: position {} does not divide by {} data-parallel ranks",
                            state.position, ranks),
                "resume on a number of ranks that divides it");
  impl.stop();
  impl.sampler->set_epoch(state.epoch);
  impl.first_sample = std::min(state.position / ranks, impl.sampler->samples());
  impl.start();
}

void Loader::seek_stream(const StreamState& state) {
  Impl& impl = *impl_;
  SHOAL_ASSERT(impl.stream != nullptr);
  impl.stop();
  impl.stream->seek(state);
  impl.stream_state = impl.stream->origin();
  impl.start();
}

std::optional<Batch> Loader::next() {
  Impl& impl = *impl_;
  if (impl.is_waiting) impl.start();
  if (impl.next_batch == impl.batch_count) return std::nullopt;
  return impl.options.num_workers > 0 ? impl.take(impl.next_batch) : impl.make_now();
}

SamplerState Loader::state() const {
  const Impl& impl = *impl_;
  SHOAL_ASSERT(impl.sampler != nullptr);
  const std::int64_t samples = std::min(impl.batch_begin(impl.next_batch), impl.sampler->samples());
  return {impl.sampler->epoch(), samples * impl.sampler->ranks()};
}

const StreamState& Loader::stream_state() const { return impl_->stream_state; }

const Sampler& Loader::sampler() const {
  SHOAL_ASSERT(impl_->sampler != nullptr);
  return *impl_->sampler;
}

LoaderStatistics Loader::statistics() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->statistics;
}

}  // namespace shoal
