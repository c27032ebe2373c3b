// A group's streams on one GPU, and their order relative to PyTorch's current stream.
//
// It uses only PyTorch's device-independent interface, so it compiles without CUDA and loads with a
// PyTorch without CUDA. Events order the streams of the two libraries, because that interface gives
// no stream handles in PyTorch 2.8.
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

  // Throws unavailable, naming `operation`, if this build of Shoal or this machine cannot use
  // `device`.
  DeviceStreams(const char* operation, c10::Device device);
  ~DeviceStreams();  // calls finish()
  DeviceStreams(const DeviceStreams&) = delete;
  DeviceStreams& operator=(const DeviceStreams&) = delete;

  c10::Device device() const { return copies_.device(); }
  // The Communicators' streams for collectives and for messages.
  Stream calls() const { return calls_.view(); }
  Stream messages() const { return messages_.view(); }
  c10::Stream copies() const { return copies_; }  // where results are copied out

  // Makes later calls on `calls` wait for the work that this thread has queued on its current
  // stream. Throws if that stream is being captured.
  void follow_current(const Stream& calls) const;
  // Makes later work on this thread's current stream wait for the calls, or for `reached`.
  void current_follows_calls() const;
  void current_follows(const c10::Event& reached) const;

  // Runs `copy_out` (may be null) on copies(), after the calls if `behind_calls`. Keeps `copy_out`
  // and its tensors until drop_ended() finds that the stream has run the copies. The returned event
  // marks this point.
  Reached queue(std::function<void()> copy_out, bool behind_calls);
  bool keeps_copies() const;
  // Destroys tensors: call it without a lock.
  void drop_ended();
  // Waits a few seconds until no copy is kept. If copies remain, the device hangs, and their memory
  // is leaked.
  void finish();

 private:
  struct Running {
    Reached reached;
    std::function<void()> copy_out;
  };
  void wait_for_calls(c10::Stream stream) const;

  const Device shoals_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream copies_;
  const OwnedStream calls_, messages_;
  mutable std::mutex mutex_;
  std::deque<Running> running_;
};

}  // namespace shoal::pytorch
