// Operations between ranks in a captured step that need the host: each replay runs them between its
// graphs.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "shoal/collectives/work.h"
#include "shoal/nn/capture/host_work.h"

namespace shoal::parallel {

// Notes the operations of one communicator or one reduction. Called by the computing thread.
class NotedWorks {
 public:
  // `host_work` must outlive the object.
  explicit NotedWorks(const nn::HostWork& host_work) : host_work_(host_work) {}

  // True while a step is captured; otherwise the caller starts operations itself.
  bool notes() const { return host_work_.captured(); }
  // Each replay calls `begin`. Where the step calls block_stream() on the returned Work, the replay
  // calls block_stream() on the Work that `begin` returned. The returned Work supports nothing
  // else: nothing runs during a capture, so test() is false and wait() throws. A step that does not
  // wait for everything it begins throws at its second replay.
  collectives::WorkPtr note(std::function<collectives::WorkPtr()> begin);
  // Call before freeing memory that a replay's operations use. If a failed replay left operations
  // running, calls `abort`, after which this rank touches no buffer any more.
  void give_up(const std::function<void()>& abort) noexcept;

 private:
  struct Slot {  // the running operation of one call of note() in this replay
    collectives::WorkPtr work;
  };
  class Noted;
  const nn::HostWork& host_work_;
  std::vector<std::shared_ptr<Slot>> slots_;
};

}  // namespace shoal::parallel
