// torch.distributed's backend "shoal": PyTorch's collectives over Shoal's Communicator.
//
// One backend serves all devices of a group. Calls from several threads are queued in the order in
// which they are made. As with every backend, all ranks must make calls in the same order.
//
// CUDA tensors use a separate communicator. The first call with a CUDA tensor makes it, so that
// call is collective. Calls run after the work of PyTorch's current stream, and Work::wait() makes
// that stream wait.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/torch/lane.h"
#include "shoal/torch/tensors.h"
#include "shoal/torch/work.h"

namespace shoal::pytorch {

using Tensors = std::vector<at::Tensor>;
using WorkResult = c10::intrusive_ptr<c10d::Work>;

class ProcessGroupShoal final : public c10d::Backend {
 public:
  // Collective; blocks for at most `timeout` until all ranks have called it. If `timeout` is
  // PyTorch's default, SHOAL_DEADLINE_S applies instead. `members`: as of JobRanks. `job`: a store
  // that all groups of the job share; null: the one that `store` is a part of.
  ProcessGroupShoal(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                    c10::intrusive_ptr<Options> options, std::vector<int> members = {},
                    c10::intrusive_ptr<c10d::Store> job = nullptr);
  ~ProcessGroupShoal() override;

  const std::string getBackendName() const override { return "shoal"; }
  // No `override` here and at functions below with this mark: PyTorch 2.8 has no such functions.
  // NOLINTBEGIN(modernize-use-override)
  c10::intrusive_ptr<Options> getBackendOptions() { return options_; }
  // NOLINTEND(modernize-use-override)
  bool supportsSplitting() const override { return true; }
  bool supportsShrinking() const { return true; }  // NOLINT(modernize-use-override)
  bool supportsCoalescing() const override { return true; }
  // Makes the device's communicator at once, instead of in the first call.
  void eagerConnectSingleDevice(at::Device device) override;
  // Applies to later calls. On a device, a longer timeout than the one that the device's
  // communicator was made with has no effect but a warning.
  void setTimeout(std::chrono::milliseconds timeout);
  double deadline_seconds() const { return deadline_seconds_; }
  // Throws what an operation would that has lost this rank of the group.
  [[noreturn]] void lose(int peer, const std::string& problem);
  // Does nothing but warn.
  void addEphemeralTimeout(const std::chrono::milliseconds& timeout);

  WorkResult broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkResult allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkResult allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkResult allreduce_coalesced(Tensors& tensors,
                                 const c10d::AllreduceCoalescedOptions& options) override;
  WorkResult reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkResult allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                       const c10d::AllgatherOptions& options) override;
  WorkResult _allgather_base(at::Tensor& output, at::Tensor& input,
                             const c10d::AllgatherOptions& options) override;
  WorkResult allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                 const c10d::AllgatherOptions& options) override;
  WorkResult allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::AllgatherOptions& options) override;
  WorkResult gather(std::vector<Tensors>& outputs, Tensors& inputs,
                    const c10d::GatherOptions& options) override;
  // NOLINTNEXTLINE(modernize-use-override)
  WorkResult gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                const c10d::GatherOptions& options);
  WorkResult scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                     const c10d::ScatterOptions& options) override;
  WorkResult reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                            const c10d::ReduceScatterOptions& options) override;
  WorkResult _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                  const c10d::ReduceScatterOptions& options) override;
  WorkResult reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                             const c10d::ReduceScatterOptions& options) override;
  WorkResult alltoall_base(at::Tensor& output, at::Tensor& input,
                           std::vector<std::int64_t>& output_splits,
                           std::vector<std::int64_t>& input_splits,
                           const c10d::AllToAllOptions& options) override;
  WorkResult alltoall(Tensors& outputs, Tensors& inputs,
                      const c10d::AllToAllOptions& options) override;
  WorkResult send(Tensors& tensors, int to, int tag) override;
  WorkResult recv(Tensors& tensors, int from, int tag) override;
  WorkResult recvAnysource(Tensors& tensors, int tag) override;
  WorkResult barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // The Work of endCoalescing() ends when all calls in between have ended. Messages and calls on
  // host memory begin at once. Collectives of a device begin together, at endCoalescing() or when a
  // thread waits for one of them. If an exception keeps the caller from endCoalescing(), later
  // calls work as usual.
  void startCoalescing() override;
  WorkResult endCoalescing() override;

  void setSequenceNumberForGroup() override {}  // starts at 0 everywhere
  std::uint64_t getSequenceNumberForGroup() override { return sequence_; }

  // Makes a group of these ranks. Only its members take part in the rendezvous.
  c10::intrusive_ptr<Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                    const std::vector<int>& ranks,
                                    const c10::intrusive_ptr<Options>& options);
  // Makes a group of the ranks that are not `excluded`. Each of them calls this. Only they take
  // part in the rendezvous, since this group may have failed. `flags` & 1 first aborts this group.
  // NOLINTNEXTLINE(modernize-use-override)
  c10::intrusive_ptr<Backend> shrink(const std::vector<std::int64_t>& excluded, int flags,
                                     const c10::intrusive_ptr<Options>& options);
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  // A group made with Options::enable_reconfigure has no ranks until reconfigure(). Each
  // reconfigure() ends the current ranks' connections and connects the ranks of the given handles.
  // It blocks until all of them have called it. No other call of the group may run meanwhile. A
  // list of handles gives the order of the ranks; a set is ordered by the ranks that PyTorch gave
  // at construction.
  bool supportsReconfigure() const override { return options_->enable_reconfigure; }
  c10d::ReconfigureHandle get_reconfigure_handle() const override { return handle_; }
  WorkResult reconfigure(const c10d::ReconfigureOptions& options) override;
#endif
#ifdef C10D_BACKEND_HAS_HOOKS
  // Abort hooks are called before a failed operation's waits throw its error. Completion hooks are
  // called after an operation has succeeded.
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(std::int64_t number, c10d::AbortHook hook) override {
    hooks_->failed.add(number, std::move(hook));
  }
  void unregisterAbortHook(std::int64_t number) override { hooks_->failed.remove(number); }
  bool supportsCompletionHooks() const override { return true; }
  void registerCompletionHook(std::int64_t number, c10d::CompletionHook hook) override {
    hooks_->completed.add(number, [hook = std::move(hook)](std::uint64_t key) {
      hook({.completionKey = key, .duration_ms = std::nullopt});
    });
  }
  void unregisterCompletionHook(std::int64_t number) override { hooks_->completed.remove(number); }
#endif
  c10d::ErrorType getError() override;
  // True for CPU tensors, whose device has no index. DDP asks this before it allocates its buckets.
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }
  // Returns a tensor in memory that every rank of the host maps. Collectives do not copy it.
  at::Tensor allocateTensor(long elements, at::TensorOptions options) override;
  void abort() override;
  void shutdown() override;

 private:
  using Call = std::function<void(collectives::Communicator&, CallWork&)>;
  struct Title {
    const char* name;  // "shoal:all_reduce"
    c10d::OpType type;
    std::chrono::milliseconds timeout;
  };
  // Numbers the call, makes its Work and starts it with `call`.
  WorkResult start(const Title& title, Tensors inputs, Tensors outputs, const Call& call,
                   std::function<void()> copy_out = nullptr);
  WorkResult hand_out(const c10::intrusive_ptr<PolledWork>& work);
  // Like start(), for one of several coalesced calls on a device, which become one operation.
  WorkResult join(const std::shared_ptr<Lane>& lane, const Title& title, const Tensors& inputs,
                  const Tensors& outputs, const Call& call, std::function<void()> copy_out);
  // Sends or receives a message of device memory. Such messages match in the order of the calls and
  // have no tags.
  WorkResult message(const Title& title, const at::Tensor& tensor, const at::Tensor& own, int tag,
                     const Call& call);
  // Returns the lane for `device`. The first call with a device is collective.
  std::shared_ptr<Lane> lane_of(const char* operation, c10::Device device);
  std::shared_ptr<Lane> make_device_lane(const char* operation, c10::Device device);
  std::vector<std::shared_ptr<Lane>> lanes() const;
  // Makes the lane of host memory. Blocks for at most `seconds` until all ranks have joined through
  // `store_`.
  void connect(double seconds);
  // A group of these ranks of this one.
  c10::intrusive_ptr<ProcessGroupShoal> part(const c10::intrusive_ptr<c10d::Store>& store,
                                             const std::vector<int>& ranks,
                                             const c10::intrusive_ptr<Options>& options,
                                             std::vector<int> members);
  // Ends this group's lanes, and removes them from the lanes that close_all_groups() ends.
  void disconnect();
  const std::shared_ptr<Lane>& host_lane() const;  // throws if reconfigure() has not been called
  World world() const;
  WorkResult receive(const Title& title, Tensors& tensors, int from, int tag);
  WorkResult reduce_all(const Title& title, Tensors tensors, const c10d::ReduceOp& op);
  // Each output is the sum over ranks of this rank's part of the input with the same index.
  WorkResult reduce_parts(const Title& title, Tensors outputs, Tensors inputs,
                          const std::vector<Flat>& flats, const c10d::ReduceOp& op);
  // outputs[i][r] receives inputs[i] of rank r.
  WorkResult gather_all(const Title& title, std::vector<Tensors> outputs, Tensors inputs);
  WorkResult gather_flat(const Title& title, Tensors outputs, Tensors inputs);
  double limit(std::chrono::milliseconds timeout) const;

  c10::intrusive_ptr<c10d::Store> store_;
  const c10::intrusive_ptr<c10d::Store> job_;
  c10::intrusive_ptr<Options> options_;
  std::shared_ptr<Store> adapted_;  // used by the communicators
  std::unique_ptr<Store> messages_store_;
  double deadline_seconds_, limit_seconds_ = 0;
  const std::shared_ptr<GroupHooks> hooks_ = std::make_shared<GroupHooks>();
  std::shared_ptr<JobRanks> ranks_;
  std::shared_ptr<Lane> lane_;  // of host memory; null before reconfigure()
  std::mutex making_mutex_;     // of a device's lane
  mutable std::mutex lanes_mutex_;
  std::map<c10::DeviceIndex, std::shared_ptr<Lane>> device_lanes_;
  std::atomic<std::uint64_t> sequence_{0};
  std::int64_t monitored_ = 0, shrunk_ = 0;
  const c10::intrusive_ptr<c10d::Store> first_store_;  // shared by all ranks that may join later
  const std::string handle_;                           // names this rank in reconfigure()
  std::mutex coalescing_mutex_;
  std::atomic<bool> coalescing_{false};  // written under the mutex
  std::deque<c10::intrusive_ptr<PolledWork>> coalesced_;
  std::map<std::shared_ptr<Lane>, c10::intrusive_ptr<CoalescedWork>> joined_;  // on devices
};

// Closes all groups of this process. Pending operations get a few seconds. Called at the
// interpreter's exit, while its threads still exist.
void close_all_groups();

}  // namespace shoal::pytorch
