#include "shoal/nn/capture/step_capture.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

double mebibytes(std::int64_t bytes) { return static_cast<double>(bytes) / 0x1p20; }

}  // namespace

StepCapture::StepCapture(kernels::Kernels& kernels, PlannedMemory& memory,
                         StepCaptureOptions options)
    : memory_(memory),
      options_(std::move(options)),
      backend_(options_.backend ? *options_.backend : device_backend(kernels.device().type)),
      stream_(kernels.stream()),
      graphs_(options_.graphs && (options_.backend || !kernels.device().is_cpu())) {
  SHOAL_CHECK(options_.warmup >= 1 && options_.most_kept >= 1,
              "step capture after {} steps, keeping {}; both are 1 or more", options_.warmup,
              options_.most_kept);
  memory_.set_give_back([this] { return give_back(); });
}

StepCapture::~StepCapture() {
  memory_.set_give_back({});
  try {
    backend_.synchronize(stream_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost, and the graphs with it
  }
  for (Entry& entry : entries_) drop_graph(entry);
}

void StepCapture::drop_graph(Entry& entry) noexcept {
  if (entry.graph) backend_.destroy_graph(std::exchange(entry.graph, nullptr));
}

StepCapture::Entry& StepCapture::entry_of(std::string_view key) {
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const Entry& entry) { return entry.key == key; });
  if (found != entries_.end()) {
    entries_.splice(entries_.begin(), entries_, found);
    return entries_.front();
  }
  if (entries_.size() >= static_cast<std::size_t>(options_.most_kept)) {
    if (entries_.back().graph) backend_.synchronize(stream_);
    drop_graph(entries_.back());
    entries_.pop_back();
  }
  entries_.push_front({.key = std::string(key)});
  return entries_.front();
}

void StepCapture::run(std::string_view key, const std::function<void()>& step) {
  Entry& entry = entry_of(key);
  ++entry.seen;
  if (entry.refused || entry.seen < options_.warmup) {
    ++statistics_.direct;
    return step();
  }
  if (!entry.sequence) return record(entry, step);
  ++planned_steps_;
  const auto planned = [&] {
    if (!graphs_) {
      if (!serve(entry, step)) entry.sequence.reset();  // the next step is recorded again
      return;
    }
    if (!entry.graph) capture(entry, step);
    if (!entry.graph) return;  // it was run call by call
    backend_.launch_graph(entry.graph, stream_);
    ++statistics_.replayed;
  };
  if (planned_steps_ == 2)
    timed(after_, planned);
  else
    planned();
}

void StepCapture::timed(std::optional<std::pair<Event, Event>>& events,
                        const std::function<void()>& work) {
  const Device device = stream_.device;
  events.emplace(Event(device, EventKind::timing), Event(device, EventKind::timing));
  events->first.record(stream_);
  work();
  events->second.record(stream_);
}

void StepCapture::record(Entry& entry, const std::function<void()>& step) {
  ++statistics_.direct;
  memory_.begin_recording();
  try {
    timed(before_, step);
  } catch (...) {
    (void)memory_.end_recording();
    throw;
  }
  entry.sequence = memory_.end_recording();
  statistics_.live_bytes = entry.sequence->live_bytes;
  statistics_.pool_bytes = entry.sequence->pool_bytes;
  statistics_.allocations = static_cast<std::int64_t>(entry.sequence->offsets.size());
  if (graphs_ && entry.sequence->outliving > 0) {
    refuse(entry, fmt::format("{} tensors of a step outlive it", entry.sequence->outliving));
  }
}

void StepCapture::refuse(Entry& entry, const std::string& why) {
  drop_graph(entry);
  entry.refused = true;
  entry.sequence.reset();
  say(fmt::format("step capture: steps of this kind run call by call: {}", why));
}

// Of an arena that is to become another, or none.
void StepCapture::void_graphs() {
  backend_.synchronize(stream_);
  for (Entry& entry : entries_) drop_graph(entry);
}

bool StepCapture::give_back() {
  void_graphs();
  const std::int64_t bytes = memory_.release();
  if (bytes == 0) return false;
  statistics_.arena_bytes = memory_.arena_bytes();
  if (++statistics_.given_back == 1)
    say(
        fmt::format("step capture: what runs beside captured steps has no room beside their arena "
                    "of {:.1f} MiB: it is given back, and such steps are captured again when they "
                    "come next (a smaller batch would save that)",
                    mebibytes(bytes)));
  return true;
}

// Room for the plan; where the arena becomes another, what was captured in the old one is void.
bool StepCapture::plan(Entry& entry) {
  if (memory_.is_prepared_for(*entry.sequence)) return true;
  void_graphs();
  try {
    memory_.prepare(*entry.sequence);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    refuse(entry, error.message());
    return false;
  }
  statistics_.arena_bytes = memory_.arena_bytes();
  return true;
}

bool StepCapture::serve(Entry& entry, const std::function<void()>& step) {
  if (!memory_.is_prepared_for(*entry.sequence)) {
    if (!plan(entry)) {
      step();
      return true;
    }
    if (!std::exchange(entry.told, true)) say(describe());
  }
  memory_.begin_serving(*entry.sequence, false);
  try {
    step();
  } catch (...) {
    (void)memory_.end_serving();
    throw;
  }
  const std::string difference = memory_.end_serving();
  ++statistics_.served;
  if (difference.empty()) return true;
  ++statistics_.deviated;
  say(fmt::format("step capture: a step's memory differs from its plan: {}; it is planned again",
                  difference));
  return false;
}

void StepCapture::capture(Entry& entry, const std::function<void()>& step) {
  if (!plan(entry)) {
    ++statistics_.direct;
    return step();
  }
  std::string problem;
  memory_.begin_serving(*entry.sequence, true);
  bool capturing = false;
  try {
    backend_.begin_capture(stream_);
    capturing = true;
    step();
    capturing = false;
    entry.graph = backend_.end_capture(stream_);
  } catch (const Error& error) {
    if (capturing) backend_.abandon_capture(stream_);
    problem = error.message();
  } catch (...) {
    if (capturing) backend_.abandon_capture(stream_);
    (void)memory_.end_serving();
    throw;
  }
  if (const std::string difference = memory_.end_serving(); problem.empty()) problem = difference;
  if (problem.empty()) {
    ++statistics_.captured;
    if (!std::exchange(entry.told, true)) say(describe());
    return;
  }
  refuse(entry, problem);
  ++statistics_.direct;
  step();
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
      graphs_ ? "a graph" : "a plan", s.allocations, mebibytes(s.arena_bytes),
      mebibytes(s.live_bytes), mebibytes(s.pool_bytes));
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
