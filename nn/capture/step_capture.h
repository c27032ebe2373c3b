// Step capture: after some steps of the same kind the whole step, with its memory planned once and
// for all, is noted as a graph and replayed by one call (on a device), or served from the plan (on
// the host). The idea of CUDA graphs and of static memory planning in training compilers; the
// numbers are those of the step run call by call.
//
//   PlannedMemory memory(pool, source);  // below what kernels and Context allocate from
//   StepCapture capture(kernels, memory, {.say = log});
//   capture.run(key, [&] { forward, backward, update; });
//
// What is replayed are kernels with the addresses and host numbers they were given: inputs must be
// copied into tensors that stay, numbers that change must lie on the device
// (OptimizerKernels::set_step), and whatever else the step depends on must be in the key. The
// step's host code does not run then, and tensors made in it are void after it.
//
// What no graph can hold, such as a sum over ranks whose hosts take part, goes through a HostWork:
// the step is then captured in pieces, graphs over one arena, and replayed with that work between
// them. Ranks need not agree on it: a step makes the same calls captured or not. Collectives that
// are captured themselves (Communicator::can_capture) must be so on every rank alike, and replayed
// from the graphs of one capture: options.exchange lets the ranks agree.
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
#include "shoal/nn/capture/host_work.h"
#include "shoal/nn/capture/planned_memory.h"
#include "shoal/nn/capture/step_recorder.h"

namespace shoal::nn {

struct StepCaptureOptions {
  int warmup = 3;      // steps of a key before it is captured, the last of them recorded
  int most_kept = 4;   // keys; the one that was not used for longest goes first
  bool graphs = true;  // false: the memory plan alone, as on devices without graphs
  std::function<void(const std::string&)> say = {};  // each capture, and each step that differs
  DeviceBackend* backend = nullptr;                  // null: that of the kernels' device
  HostWork* host_work = nullptr;                     // of the step; null: it has none
  // What the step's operations pass. In the first of each kind it is looked at which of them the
  // catalogue of fusions would have made one; null: it is not.
  StepRecorder* operations = nullptr;
  // What the step's tensors come from besides, as memory that peers reach: planned alike, each in
  // an arena of its own. They outlive the capture.
  std::vector<PlannedMemory*> beside = {};
  // Called before the host waits for the stream, which may stand at a collective for a lost rank:
  // has the deadline that the wait itself lacks, and throws then. Not asked by the destructor.
  std::function<void()> before_waiting = {};
  // Where graphs hold collectives: hands every rank the numbers of all, in rank order; collective,
  // and called once a step, on the host. Every rank then makes the same calls of run(), and a step
  // that cannot be captured on one is captured on none. Empty: a rank's graphs are its own matter.
  std::function<std::vector<std::uint64_t>(std::span<const std::uint64_t>)> exchange = {};
};

// The arena is held between steps. What has no room beside it (a step of another shape, an
// evaluation, run call by call) gets it: graphs are dropped, which is said once, and captured again
// when their steps come next.
class StepCapture {
 public:
  // `memory` is what the step's tensors and the kernels' scratch come from. Both outlive it. Graphs
  // are made where the kernels are on a device, or options.backend says so.
  StepCapture(kernels::Kernels& kernels, PlannedMemory& memory, StepCaptureOptions options);
  ~StepCapture();  // waits for what is queued
  StepCapture(const StepCapture&) = delete;
  StepCapture& operator=(const StepCapture&) = delete;

  // Runs `step`, or replays what it did for this key. A step that fails while it is captured is run
  // once more, call by call; its key is not captured then, and `say` is told why. `warm`: under
  // another key it has warmed up already, so that it is recorded at once.
  void run(std::string_view key, const std::function<void()>& step, bool warm = false);

  struct Statistics {
    std::int64_t direct = 0, served = 0, captured = 0, replayed = 0, deviated = 0;
    std::int64_t given_back = 0;   // how often the arena made room for other work
    std::int64_t pieces = 0;       // graphs of the step captured last: 1, or cut by HostWork
    std::int64_t arena_bytes = 0;  // of all plans
    // Of the last key that was planned: the least any plan could take, and what a pool kept.
    std::int64_t live_bytes = 0, pool_bytes = 0;
    std::int64_t allocations = 0;  // a step
    // Of the kind that came last, with options.operations.
    std::int64_t operations = 0;
    std::string left_apart;  // what the catalogue of fusions has left (StepRecorder); empty: none
    // On the stream: the recorded step, and the first one replayed, or planned, after those that
    // captured or planned. 0: not known yet.
    double before_ms = 0, after_ms = 0;
  };
  Statistics statistics();  // waits where times are to be read
  // Of the key that ran last, by memory, the step's own first; empty: its steps are not planned.
  std::span<const MemorySequence> planned() const {
    return entries_.empty() ? std::span<const MemorySequence>() : entries_.front().sequences;
  }
  // One line for a log: "step capture: ..."; empty before anything was captured.
  std::string describe();

 private:
  struct Entry {
    std::string key;
    int seen = 0;
    bool refused = false;                        // cannot be captured, or its plan has no room
    bool told = false;                           // that it is captured
    std::vector<MemorySequence> sequences = {};  // by memory; empty: not recorded
    // A graph, which may be null, and then the host's work, which may be empty. None: not captured.
    struct Piece {
      void* graph = nullptr;
      std::function<void()> work = {};
    };
    std::vector<Piece> pieces = {};
    std::vector<std::uint64_t> voided = {};  // voided_ of every rank, when it was captured
  };
  Entry& entry_of(std::string_view key);
  void drop_pieces(Entry& entry) noexcept;
  void wait_for_stream();
  void void_graphs();
  bool give_back();
  bool everywhere(Entry& entry, bool well);
  void replay(const Entry& entry);
  void refuse(Entry& entry, const std::string& why);
  void run_watched(const Entry& entry, const std::function<void()>& step);
  void record(Entry& entry, const std::function<void()>& step, bool warm);
  bool plan(Entry& entry);
  std::string note_pieces(Entry& entry, const std::function<void()>& step);
  bool serve(Entry& entry, const std::function<void()>& step);
  std::vector<MemorySequence> end_recording();
  bool is_prepared_for(const Entry& entry) const;
  void begin_serving(const Entry& entry, bool strict);
  std::string end_serving();
  std::int64_t arena_bytes() const;
  void capture(Entry& entry, const std::function<void()>& step);
  void timed(std::optional<std::pair<Event, Event>>& events, const std::function<void()>& work);
  void say(const std::string& line) const;

  std::vector<PlannedMemory*> memories_;  // the first is the step's own
  StepCaptureOptions options_;
  DeviceBackend& backend_;
  Stream stream_;
  bool graphs_;
  std::list<Entry> entries_;  // the most recently used first
  Statistics statistics_;
  int planned_steps_ = 0;
  std::uint64_t voided_ = 0;  // how often an arena that became another voided all graphs
  std::optional<std::pair<Event, Event>> before_, after_;
};

}  // namespace shoal::nn
