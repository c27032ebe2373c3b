// Operations over ranks in a step that is captured although hosts take part in them: each replay
// makes them, between the graphs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shoal/collectives/work.h"
#include "shoal/nn/capture/host_work.h"

namespace shoal::parallel {

// Of one communicator, or one reduction. The thread that computes.
class NotedWorks {
 public:
  // Outlived by `host_work`.
  explicit NotedWorks(const nn::HostWork& host_work) : host_work_(host_work) {}

  // While a step is captured, else the caller begins by itself.
  bool notes() const { return host_work_.captured(); }
  // Each replay calls `begin`, and, at the place where the step calls block_stream() of what is
  // returned, that of what it began. That is all the Work returned is good for: nothing is under
  // way while a step is captured, so test() is false, and wait() throws. A step that does not wait
  // for all that it begins throws when it is replayed again.
  collectives::WorkPtr note(std::function<collectives::WorkPtr()> begin);
  // Before the memory of what a replay began goes: where one that failed has left some of it under
  // way, calls `abort`, after which this rank touches no buffer any more.
  void give_up(const std::function<void()>& abort) noexcept;

 private:
  struct Slot {  // what one call of note() has under way in this replay
    collectives::WorkPtr work;
  };
  class Noted;
  const nn::HostWork& host_work_;
  std::vector<std::shared_ptr<Slot>> slots_;
};

}  // namespace shoal::parallel
