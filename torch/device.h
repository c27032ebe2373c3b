// A GPU's streams: PyTorch's current ones, and those of a group's calls.
//
// It uses only the interface that PyTorch has for every kind of device, so that it compiles without
// CUDA and loads beside a PyTorch without it. Events order the streams of the two libraries: a
// stream's handle is not in that interface of PyTorch 2.8.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "shoal/runtime/device/device.h"

namespace shoal::pytorch {

class DeviceStreams {
 public:
  using Reached = std::shared_ptr<const c10::Event>;

  // Throws unavailable, naming `operation`, unless this build of Shoal and this machine can use
  // `device`.
  DeviceStreams(const char* operation, c10::Device device);
  ~DeviceStreams();  // waits for what runs, but not for long
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  c10::Device device() const { return copies_.device(); }
  // The streams of the Communicators' calls.
  Stream calls() const { return calls_.view(); }
  Stream messages() const { return messages_.view(); }
  c10::Stream copies() const { return copies_; }  // where results are copied out

  // Later calls on `calls` come after the work that this thread has queued on its current stream.
  // Throws if that stream is being captured.
  void follow_current(const Stream& calls) const;
  // Later work of this thread's current stream comes after the calls, or after `reached`.
  void current_follows_calls() const;
  void current_follows(const c10::Event& reached) const;

  // Runs `copy_out` (may be null) on copies(), behind the calls if `behind_calls`. Keeps it, and so
  // the tensors that it holds, until the stream has come to its end.
  Reached queue(std::function<void()> copy_out, bool behind_calls);

 private:
  struct Running {
    Reached reached;
    std::function<void()> copy_out;
  };
  void wait_for_calls(c10::Stream stream) const;
  std::deque<Running> take_ended();

  const Device shoals_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream copies_;
  const OwnedStream calls_, messages_;
  std::mutex mutex_;
  std::deque<Running> running_;
};

}  // namespace shoal::pytorch
