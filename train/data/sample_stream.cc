#include "shoal/train/data/sample_stream.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/shards_of_rank.h"
#include "shoal/train/data/stream_order.h"
#include "shoal/train/data/tokenizer/sha256.h"

namespace shoal {
namespace {

// Hashes everything that a position depends on. Uses file names, not paths, so shards may move.
std::string identity_of(const ShardSet& shards, const StreamOptions& options) {
  Sha256 hash;
  hash.add(fmt::format("{} {} {}\n", shards.count(), options.buffer, options.seed));
  if (options.shard_by_rank) hash.add(fmt::format("of {} ranks\n", options.ranks));
  for (std::int64_t i = 0; i < shards.count(); ++i)
    hash.add(std::filesystem::path(shards.name(i)).filename().string() + "\n");
  return to_hex(hash.finish()).substr(0, 32);
}

// Opens upcoming shards on background threads; the set's worth_opening_ahead() gives their number.
class Opener {
 public:
  explicit Opener(const ShardSet& shards) : shards_(shards) {}
  ~Opener() { stop(); }

  void start() {
    const int ahead = shards_.worth_opening_ahead();
    while (std::ssize(threads_) < ahead) threads_.emplace_back([this] { run(); });
  }
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (runs()) shards_.interrupt();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    const std::lock_guard lock(mutex_);
    stopping_ = false;
    wanted_.clear();
    done_.clear();
  }
  // Makes take() return nothing, even if it is waiting, until release().
  void interrupt() {
    {
      const std::lock_guard lock(mutex_);
      interrupted_ = true;
    }
    changed_.notify_all();
  }
  void release() {
    const std::lock_guard lock(mutex_);
    interrupted_ = false;
  }
  bool runs() const { return !threads_.empty(); }

  using Opened = std::shared_ptr<const Dataset>;
  // The opened shard; nothing if interrupted. Background threads open the `following` shards next,
  // in this order.
  std::optional<Opened> take(std::int64_t shard, std::vector<std::int64_t> following) {
    std::unique_lock lock(mutex_);
    wanted_ = {shard};
    wanted_.insert(wanted_.end(), following.begin(), following.end());
    std::erase_if(done_, [&](const auto& one) { return !is_wanted(one.first); });
    changed_.notify_all();
    changed_.wait(lock, [&] { return interrupted_ || done_.contains(shard); });
    if (interrupted_) return std::nullopt;
    const Done done = std::move(done_.extract(shard).mapped());
    wanted_ = std::move(following);  // may contain `shard` again if the next epoch begins with it
    changed_.notify_all();
    lock.unlock();
    if (done.failure) std::rethrow_exception(done.failure);
    return done.dataset;
  }

 private:
  struct Done {
    std::shared_ptr<const Dataset> dataset;
    std::exception_ptr failure;
  };

  bool is_wanted(std::int64_t shard) const {
    return std::find(wanted_.begin(), wanted_.end(), shard) != wanted_.end();
  }
  std::optional<std::int64_t> next() const {
    const auto found = std::find_if(wanted_.begin(), wanted_.end(), [this](std::int64_t shard) {
      return !done_.contains(shard) && !opening_.contains(shard);
    });
    return found == wanted_.end() ? std::nullopt : std::optional(*found);
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || next(); });
      if (stopping_) return;
      const std::int64_t shard = *next();
      opening_.insert(shard);
      lock.unlock();
      Done done;
      try {
        done.dataset = shards_.open(shard);
      } catch (...) {
        done.failure = std::current_exception();
      }
      lock.lock();
      opening_.erase(shard);
      if (is_wanted(shard)) done_[shard] = std::move(done);
      changed_.notify_all();
    }
  }

  const ShardSet& shards_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> wanted_;  // in order of need
  std::set<std::int64_t> opening_;
  std::map<std::int64_t, Done> done_;
  bool stopping_ = false, interrupted_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

nlohmann::json StreamState::to_json() const {
  nlohmann::json json = {{"position", position},
                         {"epoch", epoch},
                         {"epoch_begin", epoch_begin},
                         {"progress", progress},
                         {"shard_sizes", sizes ? *sizes : std::vector<std::int64_t>()},
                         {"identity", identity}};
  if (known) json["known_sizes"] = *known;
  if (ended) json["ended"] = true;
  return json;
}

StreamState StreamState::from_json(const nlohmann::json& json) {
  StreamState state;
  try {
    constexpr std::string_view kName = "the stream's state";
    state.position = need_field<std::int64_t>(json, "position", kName);
    state.epoch = need_field<std::int64_t>(json, "epoch", kName);
    state.epoch_begin = need_field<std::int64_t>(json, "epoch_begin", kName);
    state.progress = need_field<double>(json, "progress", kName);
    auto sizes = need_field<std::vector<std::int64_t>>(json, "shard_sizes", kName);
    state.identity = need_field<std::string>(json, "identity", kName);
    if (const auto* known = find_field(json, "known_sizes"))
      state.known = std::make_shared<const std::vector<std::int64_t>>(
          field_as<std::vector<std::int64_t>>(*known, "known_sizes", kName));
    state.ended = field_or(json, "ended", false, kName);
    const bool negative =
        std::any_of(sizes.begin(), sizes.end(), [](auto size) { return size < 0; });
    // Each epoch has at least one sample.
    if (state.epoch < 0 || state.epoch_begin < state.epoch || state.position < state.epoch_begin ||
        negative)
      throw_error(ErrorCode::corrupt_data, "{}: epoch {} began at {}, and the position is {}",
                  kName, state.epoch, state.epoch_begin, state.position);
    state.sizes = std::make_shared<const std::vector<std::int64_t>>(std::move(sizes));
  } catch (const Error& problem) {
    throw Error(ErrorCode::corrupt_data, problem.message());
  }
  return state;
}

struct SampleStream::Impl {
  Impl(const std::shared_ptr<const ShardSet>& all, const StreamOptions& given)
      : own(given.shard_by_rank ? std::make_shared<ShardsOfRank>(all, given.rank, given.ranks)
                                : nullptr),
        shards(own ? own : all),
        options(given),
        order(shards->is_sequential() ? StreamOrder::kUnknown : shards->count(), given.buffer,
              given.seed),
        opener(*shards),
        identity(identity_of(*all, given)) {
    if (own) all_known = std::make_shared<std::vector<std::int64_t>>(all->count(), -1);
  }

  struct Open {
    std::shared_ptr<const Dataset> dataset;  // null: the resumed run has not reopened it yet
    std::int64_t size = 0, left = 0;         // samples in total; samples not drawn yet
  };

  using Opened = std::shared_ptr<const Dataset>;
  bool is_sequential() const { return shards->is_sequential(); }
  std::optional<Opened> open(std::int64_t shard);
  std::optional<Opened> read_to(std::int64_t piece);
  std::optional<Opened> next_piece();
  void check_size(std::int64_t shard, const Dataset& dataset);
  void note_size(std::int64_t shard, std::int64_t size);
  void replay_own(const StreamState& state);
  void replay(const StreamState& state);
  [[noreturn]] void throw_ended(std::int64_t piece) const;
  bool feed(bool replaying);
  bool pass(const StreamPlace& place, bool replaying);
  void check_not_empty() const;
  StreamPlace draw();
  std::shared_ptr<const Dataset> dataset_of(std::int64_t shard);
  void begin_epoch(std::int64_t epoch);
  std::optional<Claim> claim(std::int64_t count);
  StreamState state() const;

  std::shared_ptr<const ShardsOfRank> own;  // set with shard_by_rank
  std::shared_ptr<const ShardSet> shards;
  StreamOptions options;
  StreamOrder order;
  Opener opener;
  std::string identity;
  std::shared_ptr<const std::vector<std::int64_t>> all_known;  // StreamState::known
  StreamState origin;
  std::int64_t position = 0, epoch_begin = 0;
  std::map<std::int64_t, Open> opened;  // shards with samples in the buffer or about to enter it
  std::map<std::int64_t, std::int64_t> known;  // sizes seen; sequential: in this epoch
  std::shared_ptr<const std::vector<std::int64_t>> sizes;
  std::vector<std::int64_t> replayed;  // sizes of the epoch's first shards, from a checkpoint
  // Sequential sets: the next piece to open, counted over all epochs, and the number of pieces read
  // in this one. is_behind: the order has begun an epoch, because a checkpoint gave the end of the
  // previous one, but the reader has not reached that end.
  std::int64_t serial = 0, pieces_read = 0;
  bool is_behind = false, end_was_read = false;
  std::exception_ptr failure;
  std::atomic<bool> stopping{false};
};

// Returns nullopt if the stream was stopped, and a null pointer if the epoch of a sequential set
// has no such piece.
std::optional<SampleStream::Impl::Opened> SampleStream::Impl::open(std::int64_t shard) {
  std::optional<Opened> dataset;
  try {
    if (is_sequential())
      dataset = read_to(shard);
    else
      dataset = opener.runs() ? opener.take(shard, order.upcoming(shards->worth_opening_ahead()))
                              : shards->open(shard);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("shard {}: {}", shards->name(shard), error.message()),
                error.remedy());
  }
  if (dataset && *dataset) check_size(shard, **dataset);
  return dataset;
}

void SampleStream::Impl::check_size(std::int64_t shard, const Dataset& dataset) {
  const auto [at, is_new] = known.emplace(shard, dataset.size());
  if (is_new) note_size(shard, dataset.size());
  if (!is_new && at->second != dataset.size())
    throw Error(ErrorCode::corrupt_data,
                fmt::format("shard {} has {} samples, but had {} before", shards->name(shard),
                            dataset.size(), at->second),
                "a stream's shards must stay as they are while a run lasts");
}

void SampleStream::Impl::note_size(std::int64_t shard, std::int64_t size) {
  if (!own) return;
  auto all = std::make_shared<std::vector<std::int64_t>>(*all_known);
  (*all)[static_cast<std::size_t>(own->number(shard))] = size;
  all_known = std::move(all);
}

void SampleStream::Impl::throw_ended(std::int64_t piece) const {
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{} ended before piece {}, which the run had met", shards->name(0), piece),
      "a stream's shards must stay as they are while a run lasts");
}

std::optional<SampleStream::Impl::Opened> SampleStream::Impl::next_piece() {
  auto piece = opener.runs() ? opener.take(serial, {serial + 1}) : shards->open(serial);
  if (piece) ++serial;
  return piece;
}

// Reads pieces until `piece` of the epoch and returns it. Keeps earlier pieces that still have
// samples to draw.
std::optional<SampleStream::Impl::Opened> SampleStream::Impl::read_to(std::int64_t piece) {
  for (;;) {
    auto dataset = next_piece();
    if (!dataset) return std::nullopt;
    if (!*dataset && is_behind) {  // the end of the previous epoch
      is_behind = false;
      pieces_read = 0;
      continue;
    }
    const std::int64_t number = pieces_read++;
    if (!*dataset) end_was_read = true;
    if (!*dataset && number < piece) throw_ended(piece);
    if (!*dataset || (number == piece && !is_behind)) return dataset;
    const auto kept = opened.find(number);
    if (is_behind || kept == opened.end()) continue;
    check_size(number, **dataset);
    kept->second.dataset = std::move(*dataset);
  }
}

// Gives the order all sizes that it wants, opening shards as needed. False: the stream was stopped.
bool SampleStream::Impl::feed(bool replaying) {
  while (const auto shard = order.wanted()) {
    if (stopping) return false;
    const auto k = order.sizes().size();
    Open entry;
    if (replaying && own && known.contains(*shard)) {
      entry.size = known.at(*shard);
    } else if (replaying && !own && k < replayed.size()) {
      entry.size = replayed[k];
      known[*shard] = entry.size;
    } else if (replaying && origin.ended) {
      order.end();
      break;
    } else {
      auto dataset = open(*shard);
      if (!dataset) return false;
      if (!*dataset) {
        order.end();
        break;
      }
      entry.dataset = std::move(*dataset);
      entry.size = entry.dataset->size();
    }
    entry.left = entry.size;
    order.give(entry.size);
    if (entry.size > 0) opened[*shard] = std::move(entry);
    sizes = std::make_shared<const std::vector<std::int64_t>>(order.sizes());
  }
  return true;
}

StreamPlace SampleStream::Impl::draw() {
  const StreamPlace place = order.next();
  position += own ? options.ranks : 1;
  return place;
}

// Returns null if the stream was stopped.
std::shared_ptr<const Dataset> SampleStream::Impl::dataset_of(std::int64_t shard) {
  Open& entry = opened.at(shard);
  if (entry.dataset) return entry.dataset;
  auto dataset = open(shard);
  if (!dataset) return nullptr;
  if (!*dataset) throw_ended(shard);
  entry.dataset = std::move(*dataset);
  return entry.dataset;
}

void SampleStream::Impl::begin_epoch(std::int64_t epoch) {
  // If a checkpoint gave the end of the epoch, the reader has not reached that end yet.
  if (is_sequential()) {
    is_behind = !end_was_read;
    end_was_read = false;
    if (!is_behind) pieces_read = 0;
    known.clear();
  }
  order.begin(epoch);
  opened.clear();
  sizes.reset();
  epoch_begin = position;
}

StreamState SampleStream::Impl::state() const {
  const auto done = static_cast<double>(order.epoch());
  return {position, order.epoch(), epoch_begin,   done + order.progress(),
          sizes,    all_known,     order.ended(), identity};
}

std::optional<SampleStream::Claim> SampleStream::Impl::claim(std::int64_t count) {
  Claim claim;
  claim.ordinals = {position + options.rank, options.ranks};
  claim.items.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < (own ? count : count * options.ranks); ++i) {
    if (!feed(false)) return std::nullopt;
    check_not_empty();
    const StreamPlace place = draw();
    if (own || i % options.ranks == options.rank) {
      auto dataset = dataset_of(place.shard);
      if (!dataset) return std::nullopt;
      claim.items.push_back({std::move(dataset), place.index, place.shard});
    }
    if (!pass(place, false)) return std::nullopt;
  }
  claim.after = state();
  return claim;
}

// A new epoch must have at least one sample.
void SampleStream::Impl::check_not_empty() const {
  if (!order.done()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("the training stream is empty: its {} shards, {} and so on, have no "
                          "sample",
                          shards->count(), shards->name(0)),
              "a shard needs at least one line of text, or block_size tokens");
}

// Marks a drawn sample as done. False: the stream was stopped.
bool SampleStream::Impl::pass(const StreamPlace& place, bool replaying) {
  if (--opened.at(place.shard).left == 0) opened.erase(place.shard);
  if (!order.done()) return true;
  // If this sample was the epoch's last, begin the next epoch now.
  if (!feed(replaying)) return false;
  if (order.done()) begin_epoch(order.epoch() + 1);
  return true;
}

// Moves to a position in the state's epoch; the state gives the sizes of that epoch's first shards.
void SampleStream::Impl::replay(const StreamState& state) {
  replayed = state.sizes ? *state.sizes : std::vector<std::int64_t>();
  position = state.epoch_begin;
  SHOAL_ASSERT(!is_sequential() || serial == 0);
  begin_epoch(state.epoch);
  is_behind = false;
  pieces_read = 0;
  while (position < state.position) {
    if (!feed(true)) return;
    if (order.done())
      throw_error(ErrorCode::corrupt_data,
                  "the stream's state: sample {} of epoch {}, which has {} samples",
                  state.position - state.epoch_begin, state.epoch, order.drawn());
    const StreamPlace place = draw();
    if (--opened.at(place.shard).left == 0) opened.erase(place.shard);
  }
  // The pipe must deliver the samples in the buffer again, but not those already drawn.
  if (is_sequential())
    shards->pass_over(opened.empty() ? std::ssize(order.sizes()) : opened.begin()->first);
  replayed.clear();
}

// The state may come from another rank, whose epochs end elsewhere. Replay from the beginning with
// the known sizes.
void SampleStream::Impl::replay_own(const StreamState& state) {
  if (state.known && state.known->size() != all_known->size())
    throw_error(ErrorCode::corrupt_data, "the stream's state: sizes of {} shards, and there are {}",
                state.known->size(), all_known->size());
  known.clear();
  for (std::int64_t shard = 0; state.known && shard < shards->count(); ++shard)
    if (const auto size = (*state.known)[static_cast<std::size_t>(own->number(shard))]; size >= 0) {
      known[shard] = size;
      note_size(shard, size);
    }
  position = 0;
  begin_epoch(0);
  while (position < state.position) {
    if (!feed(true)) return;
    check_not_empty();
    if (!pass(draw(), true)) return;
  }
}

SampleStream::SampleStream(std::shared_ptr<const ShardSet> shards, const StreamOptions& options) {
  SHOAL_CHECK(shards != nullptr && shards->count() > 0, "stream: there are no shards");
  SHOAL_CHECK(options.ranks > 0 && options.rank >= 0 && options.rank < options.ranks,
              "stream: rank {} of {}", options.rank, options.ranks);
  impl_ = std::make_unique<Impl>(shards, options);
  impl_->origin.identity = impl_->identity;
}

SampleStream::~SampleStream() = default;

void SampleStream::read_ahead() { impl_->opener.start(); }

void SampleStream::seek(const StreamState& state) {
  Impl& impl = *impl_;
  if (!state.identity.empty() && state.identity != impl.identity)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("the checkpoint stands at sample {} of a stream of other shards, or with "
                    "another shuffle_buffer_size or data_seed{}, than these {} shards",
                    state.position, impl.own ? ", or by other ranks" : "", impl.shards->count()),
        "give what the run was started with, or begin the stream anew with "
        "--ignore_data_skip true");
  impl.stopping = false;
  impl.opener.release();
  impl.failure = nullptr;
  impl.origin = state;
  impl.origin.identity = impl.identity;
  if (impl.own)
    impl.replay_own(state);
  else
    impl.replay(state);
}

std::optional<SampleStream::Claim> SampleStream::claim(std::int64_t count) {
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  if (impl_->stopping) return std::nullopt;
  try {
    return impl_->claim(count);
  } catch (...) {
    impl_->failure = std::current_exception();
    throw;
  }
}

void SampleStream::stop() {
  impl_->stopping = true;
  impl_->opener.interrupt();
}

const StreamState& SampleStream::origin() const { return impl_->origin; }
bool SampleStream::is_sequential() const { return impl_->is_sequential(); }
std::int64_t SampleStream::ranks() const { return impl_->options.ranks; }
std::string SampleStream::name(const Item& item) const {
  return fmt::format("sample {} of {}", item.index, impl_->shards->name(item.number));
}

}  // namespace shoal
