#include "shoal/train/data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal {

// One mutex guards the ring and the counters; workers hold it only to claim a batch and to put it
// down. The sampler is read by workers without it: the consumer changes it only after stop().
struct Loader::Impl {
  struct Slot {
    bool ready = false;
    Batch batch;
    std::exception_ptr failure;
  };

  Batch make(std::int64_t k) const;
  std::int64_t batch_begin(std::int64_t k) const { return first_sample + k * options.batch_size; }
  std::int64_t batches_left() const;
  void start();
  void stop();
  void work();
  Batch take(std::int64_t k);

  std::shared_ptr<const Dataset> dataset;
  std::shared_ptr<const Collator> collator;
  const PlacedCollator* placed = nullptr;  // the collator, where it is one
  std::unique_ptr<Sampler> sampler;
  MemoryResource* memory = nullptr;
  LoaderOptions options;

  std::int64_t first_sample = 0;  // of this rank, where seek() went; batch 0 begins there
  std::int64_t batch_count = 0;   // from there to the end of the epoch
  std::int64_t next_batch = 0;    // handed out next
  double stall_seconds = 0;
  std::int64_t stalls = 0;

  std::mutex mutex;
  std::condition_variable room, ready;
  std::vector<Slot> ring;       // batch k lives in slot k % ring.size()
  std::int64_t next_claim = 0;  // made next
  bool stopping = false;
  std::vector<std::thread> workers;
};

std::int64_t Loader::Impl::batches_left() const {
  const std::int64_t left = std::max<std::int64_t>(sampler->samples() - first_sample, 0);
  const std::int64_t round_up = options.drop_last_batch ? 0 : options.batch_size - 1;
  return (left + round_up) / options.batch_size;
}

Batch Loader::Impl::make(std::int64_t k) const {
  const std::int64_t begin = batch_begin(k);
  const std::int64_t end = std::min(begin + options.batch_size, sampler->samples());
  std::vector<Sample> samples;
  samples.reserve(static_cast<std::size_t>(end - begin));
  for (std::int64_t i = begin; i < end; ++i) samples.push_back(dataset->get(sampler->index(i)));
  const BatchPlace place{{sampler->ordinal(begin), sampler->ranks()}, sampler->epoch()};
  Batch batch = placed != nullptr ? placed->collate_at(place, samples, *memory)
                                  : collator->collate(samples, *memory);
  batch.ordinals = place.ordinals;
  return batch;
}

void Loader::Impl::start() {
  batch_count = batches_left();
  next_batch = next_claim = 0;
  if (options.num_workers == 0 || batch_count == 0) return;
  ring.clear();
  ring.resize(static_cast<std::size_t>(options.num_workers) *
              static_cast<std::size_t>(options.prefetch_factor));
  stopping = false;
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
  for (std::thread& worker : workers) worker.join();
  workers.clear();
  ring.clear();
}

void Loader::Impl::work() {
  std::unique_lock lock(mutex);
  const auto slots = static_cast<std::int64_t>(ring.size());
  for (;;) {
    room.wait(lock, [&] {
      return stopping || next_claim == batch_count || next_claim < next_batch + slots;
    });
    if (stopping || next_claim == batch_count) return;
    const std::int64_t k = next_claim++;
    lock.unlock();
    Batch batch;
    std::exception_ptr failure;
    try {
      batch = make(k);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    Slot& slot = ring[static_cast<std::size_t>(k % slots)];
    slot.batch = std::move(batch);
    slot.failure = std::move(failure);
    slot.ready = true;
    if (k == next_batch) ready.notify_one();
  }
}

Batch Loader::Impl::take(std::int64_t k) {
  std::unique_lock lock(mutex);
  Slot& slot = ring[static_cast<std::size_t>(k) % ring.size()];
  if (!slot.ready) {
    const auto begin = Clock::now();
    ready.wait(lock, [&] { return slot.ready; });
    stall_seconds += seconds_since(begin);
    ++stalls;
  }
  Batch batch = std::exchange(slot.batch, {});
  const std::exception_ptr failure = std::exchange(slot.failure, nullptr);
  slot.ready = false;
  ++next_batch;
  // Everybody: at the end of the epoch several workers have to wake and leave.
  lock.unlock();
  room.notify_all();
  if (failure) std::rethrow_exception(failure);
  return batch;
}

Loader::Loader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Collator> collator,
               std::unique_ptr<Sampler> sampler, MemoryResource& memory,
               const LoaderOptions& options)
    : impl_(std::make_unique<Impl>()) {
  SHOAL_CHECK(dataset && collator && sampler, "loader: dataset, collator and sampler are needed");
  SHOAL_CHECK(options.batch_size > 0, "loader: a batch of {} samples", options.batch_size);
  SHOAL_CHECK(options.num_workers >= 0 && options.num_workers <= 1024,
              "loader: dataloader_num_workers is {}; 0 to 1024 are possible", options.num_workers);
  SHOAL_CHECK(options.prefetch_factor > 0, "loader: prefetch_factor is {}",
              options.prefetch_factor);
  SHOAL_CHECK(dataset->size() > 0, "loader: the dataset is empty");
  impl_->dataset = std::move(dataset);
  impl_->placed = dynamic_cast<const PlacedCollator*>(collator.get());
  impl_->collator = std::move(collator);
  impl_->sampler = std::move(sampler);
  impl_->memory = &memory;
  impl_->options = options;
  impl_->start();
}

Loader::~Loader() { impl_->stop(); }

std::int64_t Loader::batches() const {
  const std::int64_t round_up = impl_->options.drop_last_batch ? 0 : impl_->options.batch_size - 1;
  return (impl_->sampler->samples() + round_up) / impl_->options.batch_size;
}

void Loader::seek(const SamplerState& state) {
  Impl& impl = *impl_;
  const std::int64_t ranks = impl.sampler->ranks();
  SHOAL_CHECK(state.epoch >= 0 && state.position >= 0, "loader: epoch {}, position {}", state.epoch,
              state.position);
  // The last samples of an uneven evaluation: some ranks have one more than others.
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

std::optional<Batch> Loader::next() {
  Impl& impl = *impl_;
  if (impl.next_batch == impl.batch_count) return std::nullopt;
  if (impl.options.num_workers > 0) return impl.take(impl.next_batch);
  const auto begin = Clock::now();
  const std::int64_t k = impl.next_batch++;
  Batch batch = impl.make(k);  // after the count: a batch that throws is behind us
  impl.stall_seconds += seconds_since(begin);
  ++impl.stalls;
  return batch;
}

SamplerState Loader::state() const {
  const Impl& impl = *impl_;
  const std::int64_t samples = std::min(impl.batch_begin(impl.next_batch), impl.sampler->samples());
  return {impl.sampler->epoch(), samples * impl.sampler->ranks()};
}

double Loader::stall_seconds() const { return impl_->stall_seconds; }
std::int64_t Loader::stalls() const { return impl_->stalls; }
const Sampler& Loader::sampler() const { return *impl_->sampler; }

}  // namespace shoal
