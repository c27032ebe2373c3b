// Work that a thread queues on a stream, captured so that it can be repeated: CUDA graphs, with
// host work between them, such as a collective that needs the hosts.
//
//   CapturedWork step(backend, stream, [&] { forward, backward, update; });
//   each step: step.launch();
//
// Capturing is a state of the calling thread. Code inside a step calls is_capturing() instead of
// passing a flag.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shoal/runtime/device/device.h"

namespace shoal {

// True while the calling thread captures. Work that it queues or passes to host_node() meanwhile
// does not run, so other ranks must not wait for it.
bool is_capturing();

// Runs `work` now. During a capture by the calling thread, stores it instead. Each launch then runs
// it between the work that was queued on the stream before it and after it. Stored `work` must own
// what it uses, may run any number of times or never, and must not allocate from the step's memory.
// If `work` hands a buffer to a device, the device owns the buffer until later work of the step
// waits for the device.
void host_node(std::function<void()> work);

// True while the calling thread runs a step that a later replay, or a later step with the same
// memory plan, must repeat exactly. Such a step must not depend on timing, and all of its work must
// be complete when it ends.
bool is_repeatable_step();

// Marks the calling thread's step as repeatable during this object's lifetime.
class RepeatableStep {
 public:
  RepeatableStep();
  ~RepeatableStep();
  RepeatableStep(const RepeatableStep&) = delete;
  RepeatableStep& operator=(const RepeatableStep&) = delete;

 private:
  const bool before_;
};

class CapturedWork {
 public:
  // Calls `work`, and records what it queues on `stream` without running it. Throws what `work`
  // throws, and unavailable if `backend` has no graphs. `backend` must outlive the object.
  CapturedWork(DeviceBackend& backend, Stream stream, const std::function<void()>& work);
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Queues the graphs on the stream and runs the host work between them, in order. If host work
  // throws, the launch ends with that error.
  void launch() const;
  std::int64_t graphs() const;

 private:
  friend void host_node(std::function<void()> work);
  struct Destroy {
    DeviceBackend* backend;
    void operator()(void* graph) const noexcept { backend->destroy_graph(graph); }
  };
  struct Piece {
    std::unique_ptr<void, Destroy> graph;  // null: no work was queued
    std::function<void()> work;            // runs after the graph; may be empty
  };
  void begin_graph();
  void end_graph(std::function<void()> work);

  DeviceBackend& backend_;
  const Stream stream_;
  bool open_ = false;  // a graph is being recorded
  std::vector<Piece> pieces_;
};

}  // namespace shoal
