// Executes operations on device memory, with one thread for each Communicator. Collectives run one
// after the other in the order of their calls; messages run beside them.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <set>
#include <thread>

#include "shoal/collectives/backend/device/device_family.h"
#include "shoal/collectives/backend/device/direct_messages.h"
#include "shoal/collectives/backend/device/level_pass.h"
#include "shoal/collectives/backend/device/parts.h"
#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/collectives/backend/device/rdma_memory.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/kernels/kernels.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/stream_gate.h"

namespace shoal::collectives::device {

// Blocks of reachable memory that replace a call's buffers if peers cannot reach these buffers.
struct ReachableCopy {
  Buffer send{}, recv{};
  void* wanted = nullptr;  // where `recv`'s contents finally go
};

// A call in flight, or the collectives of a group, which share one exchange of addresses and one
// barrier. Owned jointly by the engine and the caller's Work.
struct DeviceOperation {
  DeviceOperation(std::vector<Call>&& what, std::uint32_t which, std::uint64_t kind_of_all,
                  Device device)
      : calls(std::move(what)), number(which), kind(kind_of_all), ready(device) {}
  std::vector<Call> calls;  // at least one
  const Call& call() const { return calls.front(); }
  const std::uint32_t number;
  const std::uint64_t kind;  // equal for operations that use the same memory, mappings and kernels
  std::vector<ReachableCopy> copies;  // by call; empty: none
  Event ready;                        // reached after the work queued earlier on the call's stream
  std::atomic<bool> over{false};
  std::optional<Error> failure;  // valid once `over`
  // The gate at which streams wait. The first block_stream() makes it; guarded by the engine's
  // lock.
  std::shared_ptr<StreamGate> gate;
};

// Reductions on a device, created on first use. Not thread-safe.
class DeviceReductions {
 public:
  DeviceReductions(Device device, bool fixed_order) : device_(device), fixed_order_(fixed_order) {}
  kernels::ReductionKernels& get();

 private:
  Device device_;
  bool fixed_order_;
  std::unique_ptr<kernels::Kernels> table_;  // used on a GPU
  std::unique_ptr<kernels::ReductionKernels> host_;
};

class DeviceEngine {
 public:
  struct Setup {
    Stream stream;     // for allocations without a stream; its device is this rank's
    std::string host;  // this rank's host name
    bool fixed_order = false;
    double deadline_seconds = 0;
    CountingMemory* counted_by = nullptr;
    MemoryResource* pinned = nullptr;                  // as in CommunicatorOptions
    std::int64_t slice_bytes = std::int64_t{4} << 20;  // bytes of a slice through host memory
    // If peers cannot reach a buffer of at most this size, it is copied into memory that they can
    // reach.
    std::int64_t copy_bytes = std::int64_t{128} << 20;
    std::int64_t levels_from = std::int64_t{256} << 10;  // smallest operation that runs by levels
    bool gates = false;  // let streams wait at gates if the device permits
    std::shared_ptr<DeviceFamily> family = std::make_shared<DeviceFamily>();
  };
  // Collective. `inner` moves host memory; only the engine uses it.
  DeviceEngine(std::unique_ptr<Communicator> inner, Setup setup);
  ~DeviceEngine();  // completes the calls made
  DeviceEngine(const DeviceEngine&) = delete;
  DeviceEngine& operator=(const DeviceEngine&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  double deadline_seconds() const { return setup_.deadline_seconds; }
  Device device() const { return setup_.stream.device; }
  ShareableMemory& memory() { return memory_; }
  CommunicatorStatistics statistics() const;

  std::shared_ptr<DeviceOperation> submit(Call&& call);
  // Whether these collectives may run as one operation. False: submit each by itself.
  bool may_join(const std::vector<Call>& calls) const;
  std::shared_ptr<DeviceOperation> submit(std::vector<Call> calls);
  // Returns true if done. Throws the operation's Error.
  static bool test(const DeviceOperation& operation);
  void wait(DeviceOperation& operation, Deadline deadline);
  // Makes later work on `stream` wait for the operation. Blocks the caller instead for the first
  // operation of a kind, or if streams cannot wait.
  void block_stream(DeviceOperation& operation, Stream stream);
  void abort(std::string_view reason);  // from any thread

 private:
  // A send or recv and its stage.
  struct Message {
    std::shared_ptr<DeviceOperation> operation;
    Buffer staged{};        // empty: messages use the call's own buffer
    void* place = nullptr;  // where the message's data lies
    bool on_device = false;
    Event copied;
    WorkPtr work{};
    enum class Stage : std::uint8_t { arrived, copying_in, posted, copying_out } stage{};
  };
  // One of the slices passing through host memory.
  struct Slot {
    Buffer send{}, recv{};
    Event copied_in, copied_out;
  };
  void meet();
  std::string try_opening(const std::vector<bool>& which);
  std::string reach_neighbours();
  void run();
  void carry_out(DeviceOperation& operation);
  bool may_be_direct(const Call& call) const;
  bool peers_read(const Call& call) const;   // whether peers read its send buffer
  bool peers_write(const Call& call) const;  // whether peers write its recv buffer
  SharedPlace place_of(const void* pointer, std::int64_t bytes);
  void make_reachable(DeviceOperation& operation);
  void copy_back(DeviceOperation& operation);
  // Every rank's buffers of a call, as pointers of this rank.
  struct Reached {
    std::vector<std::byte*> send, recv;
  };
  // Blocking. Returns pointers for each call, or nothing if a rank's buffer cannot be reached.
  // `room`: whether this rank has the memory it needs. If any rank lacks it, the result is empty.
  std::vector<Reached> exchange_places(const std::vector<Call>& calls, bool room = true);
  void carry_out_directly(const std::vector<Call>& calls, const std::vector<Reached>& reached);
  void reduce_shard(const Call& call, const std::vector<std::byte*>& send,
                    const std::vector<std::byte*>& recv);
  void fetch(const Call& call, const std::vector<std::byte*>& send, std::byte* recv);
  // Operations between hosts that bypass pinned memory (rdma.cc).
  struct RdmaPlaces {
    SharedPlace send, recv;  // where neighbours read
    std::uint64_t usable = 0;
  };
  std::string set_up_rdma();
  bool uses_rdma(const Call& call) const;
  std::byte* rdma_place(const void* wanted, std::int64_t bytes, Buffer& block);
  bool carry_out_by_rdma(DeviceOperation& operation, const Call& call);
  std::vector<RdmaPlaces> exchange_rdma_places(const Call& call, const RdmaPlaces& own);
  void take_from_neighbours(const Call& call, const std::vector<RdmaPlaces>& places,
                            std::byte* recv);
  // Operations over several hosts with several ranks each (levels.cc).
  struct LevelGroups {
    // `node`: this host's ranks. `rail`: null if this rank has none.
    std::shared_ptr<Communicator> node, rail;
    std::unique_ptr<kernels::ReductionKernels> on_host;
  };
  void meet_levels();
  bool goes_by_levels(const Call& call) const;
  bool carry_out_by_levels(DeviceOperation& operation, const Call& call);
  void bring_on(const Call& call, LevelPass& pass);
  void abort_hosts(std::string_view reason);
  void stage(DeviceOperation& operation, const Call& call);
  void copy_in(const Call& call, const Parts& parts, const Slicing& slicing, std::int64_t s,
               Slot& slot);
  void copy_out(const Call& call, const Parts& parts, const Slicing& slicing, std::int64_t s,
                Slot& slot);
  bool progress_messages();
  bool has_messages() const;
  bool progress(Message& message);
  void end_message(DeviceOperation& operation, bool staged);
  void give_up_messages();
  void step_of(std::optional<OuterCall> outer);
  // Polls until `condition` holds, and advances messages meanwhile. Throws timeout at the deadline.
  void until(const Call& call, const std::function<bool()>& condition);
  void until_done(Work& work);
  bool is_late() const { return Clock::now() >= give_up_at_.load(); }
  // Aborts the operations of all ranks and throws timeout.
  [[noreturn]] void device_is_late(const std::string& who_waits, const std::string& operation);
  void finish(DeviceOperation& operation);
  void end(DeviceOperation& operation);
  void fail(const Error& error);
  void give_up_hosts(const std::exception& problem);
  void let_streams_end() noexcept;
  void let_hosts_end() noexcept;
  bool others_have_closed() noexcept;

  const Setup setup_;
  const int rank_, size_;
  DeviceBackend& backend_;
  const std::shared_ptr<Communicator> inner_;
  std::optional<OuterCall> step_of_;
  std::shared_ptr<PeerAccess> access_;
  ShareableMemory memory_;
  std::unique_ptr<OpenedSegments> opened_;
  std::unique_ptr<RdmaMemory> rdma_;                  // null on every rank or on none
  std::unique_ptr<LevelGroups> levels_;               // null on every rank or on none
  std::optional<hierarchical::Placement> placement_;  // which ranks share a host
  std::vector<Device> devices_;                       // by rank
  std::vector<bool> same_process_;                    // by rank
  bool neighbours_ = true;  // the ranks of each host reach each other's memory
  bool direct_ = false;     // all ranks are on one host and reach each other's memory
  bool processes_ = false;  // some ranks are in other processes
  bool gates_ = false;
  std::unique_ptr<MemoryResource> own_pinned_;  // null: Setup::pinned is used
  PoolMemory staging_;
  DeviceReductions reductions_;
  OwnedStream in_, out_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, over_;
  std::deque<std::shared_ptr<DeviceOperation>> collectives_;  // the head is being executed
  std::deque<std::shared_ptr<DeviceOperation>> arriving_;     // messages the thread has not taken
  std::optional<Error> failure_;
  bool stop_ = false;
  std::uint32_t submitted_ = 0;
  std::atomic<Clock::time_point> give_up_at_{Clock::time_point::max()};
  CommunicatorStatistics statistics_;
  std::set<std::uint64_t> kinds_;  // of completed operations
  // Used by the thread only.
  std::vector<Slot> slots_;                          // of the staged operation
  std::unique_ptr<LevelPass> pass_;                  // of the operation that runs by levels
  std::list<Message> messages_;                      // in the order of their calls
  std::unique_ptr<DirectMessages> direct_messages_;  // if ranks reach each other's memory
  std::thread thread_;
};

// The pause between two polls of something that another thread or a device advances.
class Backoff {
 public:
  void take() {
    if (++looks_ < 100)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(30));
  }

 private:
  int looks_ = 0;
};

}  // namespace shoal::collectives::device
