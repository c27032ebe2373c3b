// A Communicator for captured steps. Its callers need not know whether a step is captured.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shoal/collectives/backend_communicator.h"
#include "shoal/nn/capture/planned_memory.h"

namespace shoal::parallel {

// Passes calls to `inner`. While the calling thread captures (is_capturing()), operations that
// graphs cannot hold (Communicator::can_capture()) become host nodes, which each replay runs. Their
// Works support block_stream() only: nothing runs during a capture, so test() is false and wait()
// throws. A step that does not wait for everything it begins throws at its second replay. host()
// and watch() throw during a capture, because a replay could not repeat what the host reads.
//
// memory_resource() returns planned memory (PlannedMemory). split() returns a ReplayedCommunicator.
// abort() and the destructor also end the operations that a failed replay left running.
class ReplayedCommunicator final : public collectives::BackendCommunicator {
 public:
  // Planned memories of a world and its splits, for StepCaptureOptions::beside. One thread.
  using Memories = std::vector<nn::PlannedMemory*>;

  // `inner` must outlive the object. Captured steps must not outlive it.
  explicit ReplayedCommunicator(collectives::Communicator& inner)
      : ReplayedCommunicator(nullptr, inner, std::make_shared<Memories>()) {}
  ~ReplayedCommunicator() override;
  ReplayedCommunicator(const ReplayedCommunicator&) = delete;
  ReplayedCommunicator& operator=(const ReplayedCommunicator&) = delete;

  const Memories& memories() const { return *memories_; }

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string backend() const override { return inner_.backend(); }
  MemoryResource& memory_resource() override { return memory_; }
  std::unique_ptr<collectives::Registration> register_buffer(void* data,
                                                             std::int64_t bytes) override;
  collectives::CommunicatorStatistics statistics() const override;
  Stream stream() const override { return inner_.stream(); }
  Communicator& host() override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  bool can_capture() const override { return inner_.can_capture(); }
  collectives::WorkPtr watch(Stream stream) override;
  void abort(std::string_view reason) override;
  double deadline_seconds() const override { return inner_.deadline_seconds(); }
  DeviceType device_type() const override { return inner_.device_type(); }

 private:
  struct Slot {  // the running operation of one host node
    collectives::WorkPtr work;
  };
  class NodeWork;
  using Begin = std::function<collectives::WorkPtr()>;
  ReplayedCommunicator(std::unique_ptr<Communicator> owned, Communicator& inner,
                       std::shared_ptr<Memories> memories);
  collectives::WorkPtr repeat(const collectives::PlainCall& call) override;
  collectives::WorkPtr submit(collectives::Call&& call) override;
  collectives::WorkPtr submit_group(std::vector<collectives::Call> calls) override;
  bool makes_nodes() const;
  collectives::WorkPtr make_node(Begin begin);
  void end_operations(std::string_view reason) noexcept;

  const std::unique_ptr<Communicator> owned_;  // null: the caller owns it
  BackendCommunicator& inner_;
  const std::shared_ptr<Memories> memories_;
  nn::PlannedMemory memory_;
  std::vector<std::shared_ptr<Slot>> slots_;
  std::thread::id captures_;  // the thread that captures and replays
};

}  // namespace shoal::parallel
