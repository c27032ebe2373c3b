// Step capture. After some steps of the same kind, the whole step gets a static memory plan. On a
// device it is captured as a graph and replayed by one call; on the host it is served from the
// plan. The results equal those of the step run call by call. The idea is that of CUDA graphs and
// of static memory plans in training compilers.
//
//   PlannedMemory memory(pool, source);  // below what kernels and Context allocate from
//   StepCapture capture(kernels, memory, {.say = log});
//   capture.run(key, [&] { forward, backward, update; });
//
// A replay repeats kernels with the addresses and host values of the capture. Inputs must therefore
// be copied into persistent tensors, and changing numbers must be on the device
// (OptimizerKernels::set_step). Everything else that the step depends on must be in the key. The
// step's host code does not run in a replay, and tensors created in it are invalid afterwards.
//
// Work that a graph cannot hold, such as an all-reduce that needs the hosts, goes through
// host_node() (runtime/device/captured_work.h). The step is then captured in pieces over one arena
// and replayed with that work between them. This needs no agreement of the ranks: a step makes the
// same calls, captured or not.
//
// Captured collectives (Communicator::can_capture) must be captured on all ranks, and replayed from
// graphs of the same capture. options.exchange lets the ranks agree.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/nn/capture/step_recorder.h"
#include "shoal/runtime/device/captured_work.h"

namespace shoal::nn {

struct StepCaptureOptions {
  int warmup = 3;      // steps of a key before its capture; the last is recorded
  int most_kept = 4;   // number of keys; the least recently used is dropped first
  bool graphs = true;  // false: only the memory plan, as on devices without graphs
  std::function<void(const std::string&)> say = {};  // logs captures and deviating steps
  DeviceBackend* backend = nullptr;                  // null: the backend of the kernels' device
  // Dispatcher of the step's operations. The first step of each kind is searched for unfused chains
  // of the catalogue. Null: no search.
  StepRecorder* operations = nullptr;
  // Further memories that the step's tensors come from, such as memory reachable by peers. Each is
  // planned in an arena of its own. They must outlive the capture.
  std::vector<PlannedMemory*> beside = {};
  // Called before the host waits for the stream, which may be blocked in a collective with a lost
  // rank. It applies the deadline that the wait itself lacks, and throws on expiry. The destructor
  // does not call it.
  std::function<void()> before_waiting = {};
  // Needed if graphs contain collectives: an all-gather of numbers in rank order. Called on the
  // host, in every step. All ranks must make the same calls of run(); a step that fails to capture
  // on one rank is captured on none. Empty: each rank captures independently.
  std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange = {};
};

// The arena is kept between steps. If other work (a step of another shape, an evaluation) lacks
// memory beside it, graphs and arena are dropped. This is logged once. Each step is captured again
// at its next run.
class StepCapture {
 public:
  // The step's tensors and the kernels' scratch come from `memory`. Kernels and memory must outlive
  // this object. Graphs are used if the kernels are on a device or options.backend is set.
  StepCapture(kernels::Kernels& kernels, PlannedMemory& memory, StepCaptureOptions options);
  ~StepCapture();  // waits for queued work
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  // Runs `step`, or replays its capture for this key. A step that fails during capture is run again
  // call by call; its key is never captured, and the reason is logged. `warm`: another key has
  // already warmed the step up, so it is recorded immediately.
  void run(std::string_view key, const std::function<void()>& step, bool warm = false);

  struct Statistics {
    std::int64_t direct = 0, served = 0, captured = 0, replayed = 0, deviated = 0;
    std::int64_t given_back = 0;   // times the arena was freed for other work
    std::int64_t pieces = 0;       // graphs of the last captured step; more than 1 with host nodes
    std::int64_t arena_bytes = 0;  // arenas of all plans together
    // For the last planned key: a lower bound for any plan, and the bytes the pool held.
    std::int64_t live_bytes = 0, pool_bytes = 0;
    std::int64_t allocations = 0;  // per step
    // For the last step that was searched for unfused chains; 0 without options.operations.
    std::int64_t operations = 0;
    std::string left_apart;  // unfused chains (StepRecorder); empty: none
    // Stream time of the recorded step, and of the first step replayed or served after the
    // capturing or planning step. 0: not yet known.
    double before_ms = 0, after_ms = 0;
  };
  Statistics statistics();  // waits for the events that it reads
  // Sequences of the last key, one per memory, the step's own first. Empty if it is not planned.
  std::span<const MemorySequence> planned() const {
    return entries_.empty() ? std::span<const MemorySequence>() : entries_.front().sequences;
  }
  // One log line, "step capture: ..."; empty before the first capture.
  std::string describe();

 private:
  struct Entry {
    std::string key;
    int seen = 0;
    bool refused = false;                         // cannot be captured, or no memory for its plan
    bool logged = false;                          // capture was logged
    std::vector<MemorySequence> sequences = {};   // one per memory; empty: not recorded
    std::unique_ptr<CapturedWork> captured = {};  // null: not captured
    std::vector<std::uint64_t> voided = {};       // voided_ of all ranks at the capture
  };
  Entry& entry_of(std::string_view key);
  void wait_for_stream();
  void void_graphs();
  bool give_back();
  bool everywhere(Entry& entry, bool well);
  void refuse(Entry& entry, const std::string& why);
  void run_watched(const Entry& entry, const std::function<void()>& step);
  void record(Entry& entry, const std::function<void()>& step, bool warm);
  bool plan(Entry& entry);
  std::string try_capture(Entry& entry, const std::function<void()>& step);
  bool serve(Entry& entry, const std::function<void()>& step);
  std::vector<MemorySequence> end_recording();
  bool is_prepared_for(const Entry& entry) const;
  void begin_serving(const Entry& entry, bool strict);
  std::string end_serving();
  std::int64_t arena_bytes() const;
  void capture(Entry& entry, const std::function<void()>& step);
  void timed(std::optional<std::pair<Event, Event>>& events, const std::function<void()>& work);
  void say(const std::string& line) const;

  std::vector<PlannedMemory*> memories_;  // the step's own first
  StepCaptureOptions options_;
  DeviceBackend& backend_;
  Stream stream_;
  bool graphs_;
  std::list<Entry> entries_;  // most recently used first
  Statistics statistics_;
  int planned_steps_ = 0;
  std::uint64_t voided_ = 0;  // captures dropped because an arena was replaced or freed
  std::optional<std::pair<Event, Event>> before_, after_;
};

}  // namespace shoal::nn
