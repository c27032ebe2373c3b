// Work of the host's inside a step, such as a collective that hosts take part in: where a step is
// captured, its graph ends there and another one begins, and each replay does the work between the
// two, in the order of the calls.
#pragma once

#include <functional>
#include <utility>

namespace shoal::nn {

// Belongs to the thread that computes. One for all captures of an engine; it outlives them.
class HostWork {
 public:
  HostWork() = default;
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  // Does `work` at once, or, while a step is captured, not now but in each replay, when what was
  // queued before it is on the stream and nothing after it is. `work` then owns what it needs, is
  // called any number of times, or never, and allocates nothing from the step's memory; what it
  // gives a device to read or write belongs to it until later work of the step waits for it.
  void run(std::function<void()> work) const {
    if (take_)
      take_(std::move(work));
    else
      work();
  }
  bool captured() const { return static_cast<bool>(take_); }

 private:
  friend class StepCapture;
  std::function<void(std::function<void()>)> take_;
};

}  // namespace shoal::nn
