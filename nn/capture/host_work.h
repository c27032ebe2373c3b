// Host work inside a step, such as a collective that needs the hosts. During capture, it ends the
// current graph and starts another one. Each replay does the work between the two graphs, in call
// order.
#pragma once

#include <functional>
#include <utility>

namespace shoal::nn {

// Used by the compute thread. All captures of an engine share one, which must outlive them.
class HostWork {
 public:
  HostWork() = default;
  HostWork(const HostWork&) = delete;
  HostWork& operator=(const HostWork&) = delete;

  // Runs `work` immediately. During capture it is stored instead and runs in each replay, after
  // earlier work has been queued on the stream and before later work is. Stored `work` must own
  // what it uses, may run any number of times or never, and must not allocate from the step's
  // memory. A buffer that it hands to a device belongs to the device until later work of the step
  // waits for it.
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
