// The nccl backend: NCCL's collectives on the caller's CUDA streams.
#include <algorithm>
#include <atomic>
#include <thread>

#include <cuda_runtime_api.h>
#include <fmt/ranges.h>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/backend/device/peer_memory.h"
#include "shoal/collectives/backend/nccl/launch.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/runtime/device/identity.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::nccl {
namespace {

class NcclWork final : public Work {
 public:
  // `events`: one for each stream on which the calls were launched. `captured`: the calls are graph
  // nodes, for which the host cannot wait.
  NcclWork(std::shared_ptr<NcclComm> comm, std::vector<Event> events, std::string operation,
           bool captured)
      : comm_(std::move(comm)),
        events_(std::move(events)),
        operation_(std::move(operation)),
        captured_(captured) {}
  bool test() override {
    comm_->check(operation_);
    if (captured_) return false;
    return std::ranges::all_of(events_, [](const Event& event) { return event.query(); });
  }
  void wait(Deadline deadline) override {
    if (captured_)
      throw_error(ErrorCode::internal, "nccl: the host waits for {} while it is being captured",
                  operation_);
    const auto start = Clock::now();
    for (int round = 0; !test(); ++round) {
      if (deadline.passed())
        comm_->fail(Error(ErrorCode::timeout,
                          fmt::format("{} did not finish within {:.1f} s", operation_,
                                      seconds_since(start)),
                          "see whether every rank called it, or raise SHOAL_DEADLINE_S")
                        .at_rank(comm_->rank())
                        .in_operation(operation_));
      if (round > 100) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  double default_deadline_seconds() const override { return comm_->deadline_seconds(); }
  void block_stream(Stream stream) override {
    for (const Event& event : events_) event.block_stream(stream);
  }

 private:
  std::shared_ptr<NcclComm> comm_;
  std::vector<Event> events_;
  std::string operation_;
  bool captured_;
};

// GPUs of a node can map NCCL's own allocations without registration. Each allocation costs a
// driver call and whole pages, so ShareableMemory subdivides and caches them.
class NcclAccess final : public device::PeerAccess {
 public:
  explicit NcclAccess(Device device) : device_(device) {}
  std::string name() const override { return "NCCL"; }
  void* allocate(std::size_t bytes) override {
    const CurrentCudaDevice current(device_);
    void* pointer = nullptr;
    device_backend(DeviceType::cuda).count({.allocations = 1});
    const ncclResult_t result = ncclMemAlloc(&pointer, bytes);
    if (result != ncclSuccess)
      throw_error(ErrorCode::out_of_memory, "ncclMemAlloc of {} bytes: {}", bytes,
                  ncclGetErrorString(result));
    return pointer;
  }
  // NCCL unmaps without waiting. If the device cannot be synchronized, the memory stays until the
  // process ends.
  void deallocate(void* base) noexcept override try {
    const CurrentCudaDevice current(device_);
    device_backend(DeviceType::cuda).count({.synchronizations = 1, .deallocations = 1});
    if (cudaDeviceSynchronize() == cudaSuccess) ncclMemFree(base);
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the device is lost
  }

 private:
  Device device_;
};

class NcclRegistration final : public Registration {
 public:
  NcclRegistration(std::shared_ptr<NcclComm> comm, void* data, std::int64_t bytes)
      : comm_(std::move(comm)) {
    comm_->run("ncclCommRegister", [&](ncclComm_t handle) {
      return ncclCommRegister(handle, data, static_cast<std::size_t>(bytes), &handle_);
    });
  }
  ~NcclRegistration() override {
    try {
      comm_->run("ncclCommDeregister",
                 [&](ncclComm_t handle) { return ncclCommDeregister(handle, handle_); });
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): the communicator is lost
    }
  }

 private:
  std::shared_ptr<NcclComm> comm_;
  void* handle_ = nullptr;
};

class NcclCommunicator final : public BackendCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclComm> comm, const CommunicatorOptions& options,
                   std::string host_name)
      : comm_(std::move(comm)),
        options_(options),
        host_name_(std::move(host_name)),
        memory_(std::make_shared<NcclAccess>(comm_->device()),
                {comm_->device(), options.stream.device.is_cpu() ? nullptr : options.stream.handle},
                options.counted_by),
        device_memory_(make_device_memory(comm_->device())),
        word_(*device_memory_, 4, MemoryTag::communication),
        reductions_(comm_->device(), false) {
    const Stream stream{comm_->device(), nullptr};
    device_backend(DeviceType::cuda).fill(word_.data(), 0, 4, stream);
    device_backend(DeviceType::cuda).synchronize(stream);
  }

  int rank() const override { return comm_->rank(); }
  int size() const override { return comm_->size(); }
  std::string backend() const override { return "nccl"; }
  MemoryResource& memory_resource() override { return memory_; }
  Stream stream() const override { return options_.stream; }
  std::unique_ptr<Registration> register_buffer(void* data, std::int64_t bytes) override {
    return std::make_unique<NcclRegistration>(comm_, data, bytes);
  }
  CommunicatorStatistics statistics() const override {
    CommunicatorStatistics statistics = statistics_;
    statistics.transport = statistics.algorithm = "nccl";
    return statistics;
  }
  // Works over shared memory and libfabric; made on first use. If this Communicator's parent
  // already had a host Communicator when it was split, this one's host Communicator is split from
  // the parent's.
  Communicator& host() override {
    if (host_) return *host_;
    World world;
    world.rank = rank();
    world.size = size();
    world.host = host_name_;
    prefixed_ =
        make_prefix_store(comm_->prefix() + "/host", {std::shared_ptr<Store>{}, &comm_->store()});
    CommunicatorOptions options;
    options.deadline_seconds = deadline_seconds();
    options.flight_directory = options_.flight_directory;
    give_host(size() == 1 ? make_single_communicator("native", options)
                          : hierarchical::make_native_communicator(world, *prefixed_, options));
    return *host_;
  }
  // Supported since NCCL 2.9 and CUDA 11.3 (NCCL's guide, "Using NCCL with CUDA Graphs").
  bool can_capture() const override { return true; }
  WorkPtr watch(Stream stream) override {
    std::vector<Event> events;
    events.emplace_back(stream.device).record(stream);
    return std::make_unique<NcclWork>(comm_, std::move(events),
                                      "what was queued before a wait of the host's", false);
  }
  void abort(std::string_view reason) override {
    comm_->abort(reason);
    if (Communicator* const host = abortable_host_.load()) host->abort(reason);
  }

 private:
  void give_host(std::unique_ptr<Communicator> host) {
    host_ = std::move(host);
    abortable_host_ = host_.get();
  }

  WorkPtr submit(Call&& call) override {
    std::vector<Call> one;
    one.push_back(std::move(call));
    return submit_group(std::move(one));
  }

  WorkPtr submit_group(std::vector<Call> calls) override {
    for (Call& call : calls)  // a barrier may come without a stream
      if (call.stream.device.is_cpu()) call.stream = {comm_->device(), nullptr};
    const std::string operation = calls.size() == 1
                                      ? describe(calls.front())
                                      : fmt::format("a group of {} calls, the first {}",
                                                    calls.size(), describe(calls.front()));
    comm_->run(std::string(to_string(calls.front().operation)).c_str(), [&](ncclComm_t handle) {
      ncclResult_t result = ncclGroupStart();
      for (const Call& call : calls) {
        if (result != ncclSuccess) break;
        if (is_scaled_alone(call)) continue;
        result = launch(call, handle, rank(), size(), word_.data());
        if (result == ncclInProgress) result = ncclSuccess;
      }
      const ncclResult_t ended = ncclGroupEnd();
      return result == ncclSuccess ? ended : result;
    });
    for (const Call& call : calls)
      if (is_scaled_alone(call)) scale_alone(call);
    // Counts launches, because NCCL does not report completion. The events do.
    statistics_.operations += static_cast<std::int64_t>(calls.size());
    const bool captured = std::ranges::any_of(calls, [](const Call& call) {
      return device_backend(DeviceType::cuda).is_captured(call.stream);
    });
    return std::make_unique<NcclWork>(comm_, record(calls), operation, captured);
  }

  // With one rank, NCCL 2.28 left the result of a premultiplied sum unchanged (seen on an H200).
  bool is_scaled_alone(const Call& call) const {
    return size() == 1 && call.reduces() && call.op == ReduceOp::premultiplied_sum &&
           call.count > 0;
  }
  void scale_alone(const Call& call) {
    const CurrentCudaDevice current(comm_->device());
    if (call.recv != call.send)
      device_backend(DeviceType::cuda)
          .copy(call.recv, call.send, static_cast<std::size_t>(call.send_bytes(0, 1)), call.stream);
    reductions_.get().scale(call.dtype, call.recv, call.factor, call.count, call.stream);
  }

  static std::vector<Event> record(const std::vector<Call>& calls) {
    std::vector<Event> events;
    std::vector<void*> streams;
    for (const Call& call : calls) {
      if (std::ranges::find(streams, call.stream.handle) != streams.end()) continue;
      streams.push_back(call.stream.handle);
      events.emplace_back(call.stream.device).record(call.stream);
    }
    return events;
  }

  double deadline_seconds() const override { return comm_->deadline_seconds(); }
  DeviceType device_type() const override { return DeviceType::cuda; }

  static Place read_place(std::string_view card) {
    CardFields fields(card, ' ');
    const int color = fields.number<int>("color"), key = fields.number<int>("key");
    fields.end();
    return {color, key};
  }

  // Colors and keys are host values, so they go through the store.
  std::vector<Place> exchange_places(Place own) override {
    const std::string prefix = fmt::format("{}/places/{}", comm_->prefix(), exchanges_++);
    const auto key = [&](int peer) { return fmt::format("{}/{}", prefix, peer); };
    comm_->store().set(key(rank()), fmt::format("{} {}", own.color, own.key));
    const Deadline deadline = Deadline::in_seconds(deadline_seconds());
    std::vector<Place> places;
    std::vector<int> missing;
    for (int peer = 0; peer < size(); ++peer) {
      try {
        places.push_back(
            read_card(peer, "nccl", comm_->store().get(key(peer), deadline), read_place));
      } catch (const Error& problem) {
        if (problem.code() != ErrorCode::timeout) throw;
        missing.push_back(peer);
      }
    }
    if (!missing.empty())
      comm_->fail(Error(ErrorCode::timeout,
                        fmt::format("split did not finish within {} s; missing: rank(s) {}",
                                    deadline_seconds(), fmt::join(missing, ", ")),
                        "see what those ranks do, or raise SHOAL_DEADLINE_S")
                      .at_rank(rank())
                      .with_peer(missing.front())
                      .in_operation("split"));
    places[static_cast<std::size_t>(rank())] = own;
    return places;
  }

  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    ncclComm_t part = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    comm_->run("ncclCommSplit", [&](ncclComm_t handle) {
      return ncclCommSplit(handle, plan.ranks.empty() ? NCCL_SPLIT_NOCOLOR : plan.color, plan.rank,
                           &part, &config);
    });
    auto host = host_ ? host_->split(plan.ranks.empty() ? -1 : plan.color, plan.rank) : nullptr;
    if (plan.ranks.empty()) return nullptr;
    // NCCL (2.28) sets `part` from its own thread, after the parent has reported completion.
    const Deadline deadline = Deadline::in_seconds(deadline_seconds());
    while (!std::atomic_ref(part).load()) {
      comm_->check("split");
      if (deadline.passed())
        comm_->fail(Error(ErrorCode::timeout, "nccl: ncclCommSplit gave no communicator",
                          "NCCL_DEBUG=INFO says more")
                        .at_rank(rank())
                        .in_operation("split"));
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    const std::string prefix =
        fmt::format("{}/split/{}/{}", comm_->prefix(), plan.ordinal, plan.color);
    auto made = std::make_unique<NcclCommunicator>(
        std::make_shared<NcclComm>(*comm_, part, plan.rank, static_cast<int>(plan.ranks.size()),
                                   prefix),
        options_, host_name_);
    if (host) made->give_host(std::move(host));
    return made;
  }

  std::shared_ptr<NcclComm> comm_;
  const CommunicatorOptions options_;
  const std::string host_name_;  // of this rank's machine
  device::ShareableMemory memory_;
  std::unique_ptr<MemoryResource> device_memory_;
  Buffer word_;
  device::DeviceReductions reductions_;  // for groups of one rank
  CommunicatorStatistics statistics_;
  std::int64_t exchanges_ = 0;
  std::shared_ptr<Store> prefixed_;  // outlives host_
  std::unique_ptr<Communicator> host_;
  std::atomic<Communicator*> abortable_host_{nullptr};  // host_, once made
};

// NCCL needs a GPU for each rank. Compares the GPUs' own names, because CUDA_VISIBLE_DEVICES may
// give each rank a different GPU under the same index.
void check_gpu_of_its_own(const World& world, Store& store, Device device, std::int64_t generation,
                          double deadline_seconds) {
  const auto cards = exchange_cards(
      store, fmt::format("shoal/nccl/{}/gpu", generation), world.rank, world.size,
      device_identity(device), Deadline::in_seconds(deadline_seconds), "GPUs", card_name_or_none);
  const auto shared = ranks_on_one_gpu(cards);
  if (!shared) return;
  throw Error(
      ErrorCode::unavailable,
      fmt::format("nccl: ranks {} and {} are both on {}, and NCCL wants a GPU for each rank",
                  shared->first, shared->second, cards[static_cast<std::size_t>(shared->first)]),
      "start one rank a GPU, or use the native backend (SHOAL_BACKEND, ddp_backend or "
      "--backend)");
}

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Store& store,
                                                     const CommunicatorOptions& options) {
  const int devices = std::max(1, device_backend(DeviceType::cuda).count());
  const Device device = options.stream.device.is_cpu() ? Device::cuda(world.local_rank % devices)
                                                       : options.stream.device;
  device_backend(DeviceType::cuda).check_available(device);
  check_nccl_version();
  const auto generation = store.add(fmt::format("shoal/nccl/generation/{}", world.rank), 1);
  check_gpu_of_its_own(world, store, device, generation, options.deadline_seconds);
  return std::make_unique<NcclCommunicator>(
      std::make_shared<NcclComm>(world.rank, world.size, device, store,
                                 fmt::format("shoal/nccl/{}", generation),
                                 options.deadline_seconds),
      options, world.host);
}

std::string nccl_problem() {
  try {
    check_nccl_version();
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

}  // namespace shoal::collectives::nccl
