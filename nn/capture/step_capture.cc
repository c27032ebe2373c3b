#include "shoal/nn/capture/step_capture.h"

#include <algorithm>
#include <array>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

constexpr std::string_view kElsewhere = "those of another rank could not be captured";

// `exchanged` holds two numbers per rank; returns every rank's number at index `first` (0 or 1).
std::vector<std::uint64_t> every_other(const std::vector<std::uint64_t>& exchanged,
                                       std::size_t first) {
  std::vector<std::uint64_t> half;
  for (std::size_t i = first; i < exchanged.size(); i += 2) half.push_back(exchanged[i]);
  return half;
}

}  // namespace

StepCapture::StepCapture(kernels::Kernels& kernels, PlannedMemory& memory,
                         StepCaptureOptions options)
    : memories_{&memory},
      options_(std::move(options)),
      backend_(options_.backend ? *options_.backend : device_backend(kernels.device().type)),
      stream_(kernels.stream()),
      graphs_(options_.graphs && (options_.backend || !kernels.device().is_cpu())) {
  SHOAL_CHECK(options_.warmup >= 1 && options_.most_kept >= 1,
              "step capture after {} steps, keeping {}; both are 1 or more", options_.warmup,
              options_.most_kept);
  memories_.insert(memories_.end(), options_.beside.begin(), options_.beside.end());
  for (PlannedMemory* each : memories_) each->set_give_back([this] { return give_back(); });
}

StepCapture::~StepCapture() {
  for (PlannedMemory* memory : memories_) memory->set_give_back({});
  try {
    backend_.synchronize(stream_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost, and the graphs with it
  }
}

StepCapture::Entry& StepCapture::entry_of(std::string_view key) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  if (entries_.size() >= static_cast<std::size_t>(options_.most_kept)) {
    if (entries_.back().captured) wait_for_stream();
    entries_.pop_back();
  }
  entries_.push_front({.key = std::string(key)});
  return entries_.front();
}

// If ranks agree on captures, the kind of a step combines the keys of all ranks. All ranks then
// warm up, record and capture the same kinds.
void StepCapture::run(std::string_view key, const std::function<void()>& step, bool warm) {
  const RepeatableStep repeatable;
  std::string kind(key);
  std::vector<std::uint64_t> voided;
  if (options_.exchange && graphs_) {
    const std::array<std::uint64_t, 2> own{std::hash<std::string_view>{}(key), voided_};
    const std::vector<std::uint64_t> exchanged = options_.exchange(own);
    std::string all;
    for (const std::uint64_t hash : every_other(exchanged, 0)) all += fmt::format("{:x} ", hash);
    kind += fmt::format(" {:x}", std::hash<std::string>{}(all));
    voided = every_other(exchanged, 1);
  }
  Entry& entry = entry_of(kind);
  ++entry.seen;
  if (entry.refused || (!warm && entry.seen < options_.warmup)) {
    ++statistics_.direct;
    return run_watched(entry, step);
  }
  if (entry.sequences.empty()) return record(entry, [&] { run_watched(entry, step); }, warm);
  ++planned_steps_;
  const auto planned = [&] {
    if (!graphs_) {
      if (!serve(entry, step)) entry.sequences.clear();  // the next step is recorded again
      return;
    }
    if (!entry.captured || entry.voided != voided) capture(entry, step);
    if (!entry.captured) return;  // capture() ran it call by call
    entry.captured->launch();
    ++statistics_.replayed;
  };
  const bool again = graphs_ ? entry.captured && entry.voided == voided : planned_steps_ > 1;
  if (again && !after_)
    timed(after_, planned);
  else
    planned();
}

// Records the first step of a kind, which is not the timed one if the kind has a warmup.
void StepCapture::run_watched(const Entry& entry, const std::function<void()>& step) {
  if (options_.operations == nullptr || entry.seen > 1) return step();
  options_.operations->begin();
  try {
    step();
  } catch (...) {
    (void)options_.operations->end();
    throw;
  }
  StepRecorder::Operations found = options_.operations->end();
  statistics_.operations = found.count;
  statistics_.left_apart = std::move(found.left_apart);
}

void StepCapture::timed(std::optional<std::pair<Event, Event>>& events,
                        const std::function<void()>& work) {
  const Device device = stream_.device;
  std::pair made(Event(device, EventKind::timing), Event(device, EventKind::timing));
  made.first.record(stream_);
  work();
  made.second.record(stream_);
  events = std::move(made);  // only now, since reading the time of an unrecorded event is an error
}

void StepCapture::record(Entry& entry, const std::function<void()>& step, bool warm) {
  for (PlannedMemory* memory : memories_) memory->begin_recording();
  try {
    if (warm)
      step();
    else
      timed(before_, step);
  } catch (...) {
    (void)end_recording();
    throw;
  }
  ++statistics_.direct;
  entry.sequences = end_recording();
  statistics_.live_bytes = statistics_.pool_bytes = statistics_.allocations = 0;
  int outliving = 0;
  for (const MemorySequence& sequence : entry.sequences) {
    statistics_.live_bytes += sequence.live_bytes;
    statistics_.pool_bytes += sequence.pool_bytes;
    statistics_.allocations += static_cast<std::int64_t>(sequence.offsets.size());
    outliving += sequence.outliving;
  }
  if (!graphs_) return;
  if (!everywhere(entry, outliving == 0))
    refuse(entry, outliving > 0 ? fmt::format("{} tensors of a step outlive it", outliving)
                                : std::string(kElsewhere));
}

// True if `well` holds on every rank.
bool StepCapture::everywhere(Entry& entry, bool well) {
  if (!options_.exchange) return well;
  const std::array<std::uint64_t, 2> own{well ? 1U : 0U, voided_};
  const std::vector<std::uint64_t> exchanged = options_.exchange(own);
  entry.voided = every_other(exchanged, 1);
  return std::ranges::all_of(every_other(exchanged, 0), [](std::uint64_t one) { return one == 1; });
}

void StepCapture::refuse(Entry& entry, const std::string& why) {
  entry.captured.reset();
  entry.refused = true;
  entry.sequences.clear();
  say(fmt::format("step capture: steps of this kind run call by call: {}", why));
}

std::vector<MemorySequence> StepCapture::end_recording() {
  std::vector<MemorySequence> sequences;
  for (PlannedMemory* memory : memories_) sequences.push_back(memory->end_recording());
  return sequences;
}

bool StepCapture::is_prepared_for(const Entry& entry) const {
  for (std::size_t i = 0; i < memories_.size(); ++i)
    if (!memories_[i]->is_prepared_for(entry.sequences[i])) return false;
  return true;
}

void StepCapture::begin_serving(const Entry& entry, bool strict) {
  for (std::size_t i = 0; i < memories_.size(); ++i)
    memories_[i]->begin_serving(entry.sequences[i], strict);
}

// Returns the first difference that a memory reports; empty: none.
std::string StepCapture::end_serving() {
  std::string difference;
  for (PlannedMemory* memory : memories_)
    if (std::string one = memory->end_serving(); difference.empty()) difference = std::move(one);
  return difference;
}

std::int64_t StepCapture::arena_bytes() const {
  std::int64_t bytes = 0;
  for (const PlannedMemory* memory : memories_) bytes += memory->arena_bytes();
  return bytes;
}

void StepCapture::wait_for_stream() {
  if (options_.before_waiting) options_.before_waiting();
  backend_.synchronize(stream_);
}

// Call before the arena is replaced or freed.
void StepCapture::void_graphs() {
  wait_for_stream();
  for (Entry& entry : entries_) {
    if (entry.captured) ++voided_;
    entry.captured.reset();
  }
}

bool StepCapture::give_back() {
  void_graphs();
  std::int64_t bytes = 0;
  for (PlannedMemory* memory : memories_) bytes += memory->release();
  if (bytes == 0) return false;
  statistics_.arena_bytes = arena_bytes();
  if (++statistics_.given_back == 1)
    say(
        fmt::format("step capture: what runs beside captured steps has no room beside their arena "
                    "of {:.1f} MiB: it is given back, and such steps are captured again when they "
                    "come next (a smaller batch would save that)",
                    mebibytes(bytes)));
  return true;
}

// Prepares memory for the plan. If the arena is replaced, graphs captured in the old one are
// dropped.
bool StepCapture::plan(Entry& entry) {
  if (!is_prepared_for(entry)) {
    void_graphs();
    try {
      for (std::size_t i = 0; i < memories_.size(); ++i) memories_[i]->prepare(entry.sequences[i]);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      refuse(entry, error.message());
      statistics_.arena_bytes = arena_bytes();  // the previous arena may have been freed
      return false;
    }
  }
  statistics_.arena_bytes = arena_bytes();
  return true;
}

bool StepCapture::serve(Entry& entry, const std::function<void()>& step) {
  if (!is_prepared_for(entry)) {
    if (!plan(entry)) {
      step();
      return true;
    }
    if (!std::exchange(entry.logged, true)) say(describe());
  }
  begin_serving(entry, false);
  try {
    step();
  } catch (...) {
    (void)end_serving();
    throw;
  }
  const std::string difference = end_serving();
  ++statistics_.served;
  if (difference.empty()) return true;
  ++statistics_.deviated;
  say(fmt::format("step capture: a step's memory differs from its plan: {}; it is planned again",
                  difference));
  return false;
}

void StepCapture::capture(Entry& entry, const std::function<void()>& step) {
  // At the end of each piece, memory freed during it is released, which waits for the device. No
  // pending work of this rank may then depend on another thread (runtime/device/stream_gate.h).
  wait_for_stream();
  entry.captured.reset();  // stale if another rank dropped its graphs
  std::string problem;
  const bool room = plan(entry);
  if (room) problem = try_capture(entry, step);
  const bool captured = everywhere(entry, room && problem.empty());
  if (captured) {
    ++statistics_.captured;
    statistics_.pieces = entry.captured->graphs();
    if (!std::exchange(entry.logged, true)) say(describe());
    return;
  }
  if (room) refuse(entry, problem.empty() ? std::string(kElsewhere) : problem);
  ++statistics_.direct;
  step();
}

// Returns an empty string, or the reason of a failure.
std::string StepCapture::try_capture(Entry& entry, const std::function<void()>& step) {
  std::string problem;
  begin_serving(entry, true);
  try {
    entry.captured = std::make_unique<CapturedWork>(backend_, stream_, step);
  } catch (const Error& error) {
    problem = error.message();
  } catch (...) {
    (void)end_serving();
    throw;
  }
  if (const std::string difference = end_serving(); problem.empty()) problem = difference;
  if (!problem.empty()) entry.captured.reset();
  return problem;
}

StepCapture::Statistics StepCapture::statistics() {
  const auto read = [](const std::optional<std::pair<Event, Event>>& events) {
    if (!events) return 0.0;
    events->second.synchronize();
    return events->second.elapsed_ms_since(events->first);
  };
  statistics_.before_ms = read(before_);
  statistics_.after_ms = read(after_);
  return statistics_;
}

std::string StepCapture::describe() {
  const Statistics& s = statistics_;
  if (s.arena_bytes == 0 && s.captured == 0 && s.given_back == 0) return {};
  std::string line = fmt::format(
      "step capture: {} with {} allocations in an arena of {:.1f} MiB (alive at once {:.1f}; the "
      "pool kept {:.1f})",
      !graphs_       ? "a plan"
      : s.pieces > 1 ? fmt::format("{} graphs", s.pieces)
                     : "a graph",
      s.allocations, mebibytes(s.arena_bytes), mebibytes(s.live_bytes), mebibytes(s.pool_bytes));
  if (s.operations > 0)
    line += fmt::format("; chains left to fuse among {} operations: {}", s.operations,
                        s.left_apart.empty() ? "none" : s.left_apart);
  if (before_ && after_) {
    const Statistics timed = statistics();
    line += fmt::format("; {:.3f} ms a step call by call, {:.3f} ms {}", timed.before_ms,
                        timed.after_ms, graphs_ ? "replayed" : "planned");
  }
  if (s.given_back > 0)
    line += fmt::format("; the arena was given back {} time{}", s.given_back,
                        s.given_back == 1 ? "" : "s");
  if (s.replayed > 0)
    line += fmt::format("; {} of {} steps replayed", s.replayed, s.direct + s.replayed);
  return line;
}

void StepCapture::say(const std::string& line) const {
  if (options_.say) options_.say(line);
}

}  // namespace shoal::nn
