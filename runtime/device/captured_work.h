// Work that a thread queues on a stream, captured so that it can run again: graphs, and between
// them work of the host, such as a collective that needs the hosts.
//
//   CapturedWork step(backend, stream, [&] { forward, backward, update; });
//   each step: step.launch();
//
// Capturing is a state of the calling thread. Code inside a step needs no flag for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "shoal/runtime/device/device.h"

namespace shoal {

// True while the calling thread captures. Nothing that it queues or passes to host_node() runs, and
// no other rank waits for it.
bool is_capturing();

// Runs `work` immediately. While the calling thread captures, it is stored instead. Each launch
// then runs it after earlier work has been queued on the stream and before later work is. Stored
// `work` must own what it uses, may run any number of times or never, and must not allocate from
// the step's memory. A buffer that it hands to a device belongs to the device until later work of
// the step waits for it.
void host_node(std::function<void()> work);

// True while the calling thread runs a step that a later replay, or a step served from the same
// memory plan, must match. What such a step does, and when, must not depend on timing, and nothing
// of it may still be running when it ends.
bool is_repeatable_step();

// Makes the calling thread's step repeatable while it lives.
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
  // Calls `work`, whose work on `stream` is recorded and does not run. Throws what `work` throws,
  // and unavailable if `backend` has no graphs. `backend` must outlive the object.
  CapturedWork(DeviceBackend& backend, Stream stream, const std::function<void()>& work);
  CapturedWork(const CapturedWork&) = delete;
  CapturedWork& operator=(const CapturedWork&) = delete;

  // Queues the graphs on the stream and runs the host's work between them, in order. An error of
  // the host's work ends the launch.
  void launch() const;
  std::int64_t graphs() const;

 private:
  friend void host_node(std::function<void()> work);
  struct Destroy {
    DeviceBackend* backend;
    void operator()(void* graph) const noexcept { backend->destroy_graph(graph); }
  };
  struct Piece {
    std::unique_ptr<void, Destroy> graph;  // null: nothing was queued
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
