// Ranks whose buffers are in device memory, over a host Communicator of the same ranks.
//
// Calls return at once; a thread executes them after the work queued earlier on their streams. If
// all ranks are on one host, they read and write buffers from memory_resource() in place
// (statistics: zero_copy). Other buffers are first copied into such memory on their stream
// (bounced). Buffers too large for that pass through pinned host memory (bounced, logged once).
//
// Between hosts, data also passes through pinned host memory, except for messages with GPUDirect
// (rdma_memory.h). If hosts have several ranks, each rank carries its share of an operation's
// traffic between hosts (level_plan.h). A buffer may also be host memory.
//
// block_stream() blocks the caller until the operation is done. With SHOAL_STREAM_GATES=1 it
// returns at once: the stream waits at a gate (runtime/device/stream_gate.h) that the thread opens.
// The caller still waits for the first operation of a kind (operation, dtype, size, peer), which
// loads and allocates for later ones. It also waits if streams have no gates (logged once).
//
// Host threads take part in each operation, so no call may be made while its stream is being
// captured, unless the rank is alone.
//
// Errors: a failure opens the gates, and streams continue over buffers with undefined contents. The
// next call on the Communicator throws the error, and so do Work::test() and wait(). If a stream
// was waiting at a gate, the caller may have dropped the Work and never see the error. Therefore
// host() and all Communicators split from the same one (DeviceFamily) fail too, on every rank.
// Later sums and agreements of a step then throw instead of returning undefined data.
//
// Neighbours that have not learned of the failure may still write into the operation's blocks of
// memory_resource(). Memory freed from then on is therefore not reused. This rank's own copies have
// ended, unless its device caused the timeout.
//
// The destructor completes or fails the calls made, and leaves no gate shut.
#pragma once

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives::device {

class DeviceCommunicator final : public BackendCommunicator {
 public:
  struct Options {
    Stream stream;     // for calls without a stream; its device is this rank's
    std::string host;  // this rank's host name
    bool fixed_order = false;
    double deadline_seconds = 0;
    CountingMemory* counted_by = nullptr;
    MemoryResource* pinned = nullptr;                  // as in CommunicatorOptions
    std::int64_t slice_bytes = std::int64_t{4} << 20;  // as in DeviceEngine::Setup
    std::int64_t copy_bytes = std::int64_t{128} << 20;
    std::int64_t levels_from = std::int64_t{256} << 10;
    bool gates = false;
    std::shared_ptr<DeviceFamily> family = std::make_shared<DeviceFamily>();
  };
  // Collective. `host` is a Communicator of the same ranks.
  DeviceCommunicator(std::unique_ptr<Communicator> host, Options options);

  int rank() const override { return host_->rank(); }
  int size() const override { return host_->size(); }
  std::string backend() const override { return host_->backend(); }
  MemoryResource& memory_resource() override { return engine_->memory(); }
  CommunicatorStatistics statistics() const override;
  Stream stream() const override { return options_.stream; }
  Communicator& host() override { return *host_; }
  WorkPtr watch(Stream stream) override;  // returns the last call's Work
  void abort(std::string_view reason) override;
  // Number of calls that have blocked their thread, over this Communicator and all its splits.
  std::int64_t waits() const { return options_.family->waits(); }

 private:
  WorkPtr submit(Call&& call) override;
  WorkPtr submit_group(std::vector<Call> calls) override;
  WorkPtr alone(const Call& call);
  WorkPtr work_of(std::shared_ptr<DeviceOperation> operation);
  double deadline_seconds() const override { return options_.deadline_seconds; }
  DeviceType device_type() const override { return options_.stream.device.type; }
  std::vector<Place> exchange_places(Place own) override;
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override;

  const Options options_;
  const std::shared_ptr<Communicator> host_;
  std::shared_ptr<DeviceEngine> engine_;
  std::shared_ptr<DeviceOperation> last_;  // the operation submitted last
  DeviceReductions reductions_;            // used if this rank is alone
  std::int64_t alone_operations_ = 0;
};

// `host`: a Communicator of the same ranks, made with the same options except the stream.
std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> host,
                                                       const World& world,
                                                       const CommunicatorOptions& options);

}  // namespace shoal::collectives::device
