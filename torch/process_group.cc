#include "shoal/torch/process_group.h"

#include <algorithm>
#include <random>
#include <set>

#include <Python.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/torch/allocator.h"
#include "shoal/torch/store.h"

namespace shoal::pytorch {
namespace {

double seconds(std::chrono::milliseconds time) { return static_cast<double>(time.count()) / 1e3; }

// PyTorch 2.8's Options have no such field.
template <typename Options>
bool waits_for_ranks(const Options& options) {
  if constexpr (requires { options.enable_reconfigure; }) return options.enable_reconfigure;
  return false;
}

// The open groups, which close_all_groups() closes at the interpreter's exit.
struct Groups {
  std::mutex mutex;
  std::set<Lane*> lanes;
};
Groups& groups() {
  static auto* all = new Groups;  // outlives every group
  return *all;
}

}  // namespace

ProcessGroupShoal::ProcessGroupShoal(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     c10::intrusive_ptr<Options> options, std::vector<int> members,
                                     c10::intrusive_ptr<c10d::Store> job)
    : Backend(rank, size),
      store_(std::move(store)),
      job_(job ? std::move(job) : job_store(store_)),
      options_(std::move(options)),
      deadline_seconds_(options_->timeout == kBackendDefaultTimeout ? deadlines::seconds()
                                                                    : seconds(options_->timeout)),
      ranks_(std::make_shared<JobRanks>(rank, std::move(members), nullptr)),
      first_store_(store_),
      handle_(
          fmt::format("{:08}-{:08x}{:08x}", rank, std::random_device{}(), std::random_device{}())) {
  if (!waits_for_ranks(*options_)) connect(deadline_seconds_);
}

void ProcessGroupShoal::connect(double seconds) {
  const auto make = [&] {
    adapted_ = std::make_shared<TorchStore>(store_, seconds);
    collectives::CommunicatorOptions how;
    how.deadline_seconds = deadline_seconds_;
    // Tensors in the communicator's memory keep the communicator alive, and the communicator needs
    // its store.
    std::shared_ptr<collectives::Communicator> collectives(
        collectives::make_communicator(world(), *adapted_, how).release(),
        [store = adapted_](collectives::Communicator* ended) { delete ended; });
    std::unique_ptr<collectives::Communicator> messages;
    if (size_ > 1) {
      messages_store_ = make_part_store("messages", store_, seconds);
      // Receives of headers may wait forever. Waits for the store still have the group's deadline.
      how.deadline_seconds = deadlines::kHeadersMayNeverCome;
      messages = collectives::make_communicator(world(), *messages_store_, how);
    }
    offer_symmetric_memory(collectives);
    lane_ = std::make_shared<Lane>(std::move(collectives), std::move(messages));
  };
  translating(make, ranks_.get());
  // Only now, since statements of earlier failures do not count.
  ranks_ = std::make_shared<JobRanks>(rank_, ranks_->members(),
                                      std::make_shared<TorchStore>(job_, seconds));
  lane_->set_group(hooks_, ranks_);
  const std::lock_guard lock(groups().mutex);
  groups().lanes.insert(lane_.get());
}

void ProcessGroupShoal::disconnect() {
  {
    const std::lock_guard lock(groups().mutex);
    for (const auto& lane : lanes()) groups().lanes.erase(lane.get());
  }
  shutdown();
}

const std::shared_ptr<Lane>& ProcessGroupShoal::host_lane() const {
  if (!lane_)
    translating([] {
      throw Error(ErrorCode::invalid_argument, "this process group has no ranks yet",
                  "call reconfigure(), or make it without enable_reconfigure");
    });
  return lane_;
}

#ifdef C10D_BACKEND_HAS_RECONFIGURE
WorkResult ProcessGroupShoal::reconfigure(const c10d::ReconfigureOptions& options) {
  std::vector<std::string> handles;
  std::visit([&](const auto& given) { handles.assign(given.begin(), given.end()); },
             options.handles);
  if (!std::holds_alternative<std::vector<std::string>>(options.handles))
    std::ranges::sort(handles);
  const auto place = std::ranges::find(handles, handle_);
  translating([&] {
    SHOAL_CHECK(supportsReconfigure(),
                "reconfigure of a group that was made without "
                "enable_reconfigure");
    SHOAL_CHECK(place != handles.end(), "reconfigure without this rank's own handle, {}", handle_);
  });
  if (lane_) {
    abort();  // its other ranks may be dead
    disconnect();
    const std::lock_guard lock(lanes_mutex_);
    device_lanes_.clear();
    lane_ = nullptr;
  }
  rank_ = static_cast<int>(place - handles.begin());
  size_ = static_cast<int>(handles.size());
  ranks_ = std::make_shared<JobRanks>(rank_, std::vector<int>{}, nullptr);
  // A rank that joins anew counts from 0.
  monitored_ = shrunk_ = 0;
  sequence_ = 0;
  store_ = c10::make_intrusive<c10d::PrefixStore>(fmt::format("reconfigured/{}/", options.uuid),
                                                  first_store_);
  connect(options.timeout ? seconds(*options.timeout) : deadline_seconds_);
  return barrier({});
}
#endif

World ProcessGroupShoal::world() const {
  World world;
  world.rank = rank_;
  world.size = size_;
  world.launcher = Launcher::torchrun;
  return world;
}

ProcessGroupShoal::~ProcessGroupShoal() {
  if (!lane_) return;
  if (lane_->is_forked()) {
    // Leaks the lanes, because a forked child must not destroy them.
    new auto(lanes());  // NOLINT(bugprone-unhandled-exception-at-new)
    return;
  }
  // Releases Python's lock, because the Lane's thread may be about to call Python.
  const bool has_python = Py_IsInitialized() && PyGILState_Check();
  PyThreadState* const state = has_python ? PyEval_SaveThread() : nullptr;
  disconnect();
  if (state) PyEval_RestoreThread(state);
}

void close_all_groups() {
  std::vector<std::shared_ptr<Lane>> alive;
  {
    const std::lock_guard lock(groups().mutex);
    for (Lane* lane : groups().lanes) alive.push_back(lane->shared_from_this());
  }
  for (const auto& lane : alive) lane->close(true);
}

void ProcessGroupShoal::addEphemeralTimeout(const std::chrono::milliseconds& /*timeout*/) {
  TORCH_WARN_ONCE("shoal: a process group's timeout cannot be extended for a while; ",
                  "make the group with a longer timeout");
}

void ProcessGroupShoal::setTimeout(std::chrono::milliseconds timeout) {
  translating([&] {
    SHOAL_CHECK(timeout.count() > 0, "a timeout of {} s for a process group", seconds(timeout));
  });
  options_->timeout = timeout;
  deadline_seconds_ = limit_seconds_ = seconds(timeout);
  for (const auto& lane : lanes())
    if (const double still = lane->set_deadline_seconds(limit_seconds_); still < limit_seconds_) {
      TORCH_WARN("shoal: this group's operations on a device still end after ", still,
                 " s, the timeout that they began with; make the group with a longer timeout");
    }
}

void ProcessGroupShoal::lose(int peer, const std::string& problem) {
  try {
    throw Error(
        ErrorCode::peer_lost, problem,
        "look at that rank's own output for the cause; if it may spend that long outside of "
        "a step, raise the timeout of init_process_group() or SHOAL_DEADLINE_S")
        .with_peer(peer);
  } catch (const Error&) {
    std::rethrow_exception(host_lane()->failure());
  }
}

// Returns 0 for the Communicator's own deadline, whose error has the most details.
double ProcessGroupShoal::limit(std::chrono::milliseconds timeout) const {
  if (timeout.count() > 0 && timeout != options_->timeout && timeout != kBackendDefaultTimeout)
    return seconds(timeout);
  return limit_seconds_;
}

std::vector<std::shared_ptr<Lane>> ProcessGroupShoal::lanes() const {
  const std::lock_guard lock(lanes_mutex_);
  std::vector<std::shared_ptr<Lane>> all;
  for (const auto& [device, lane] : device_lanes_) all.push_back(lane);
  if (lane_) all.push_back(lane_);
  return all;
}

std::shared_ptr<Lane> ProcessGroupShoal::lane_of(const char* operation, c10::Device device) {
  if (device.is_cpu()) return host_lane();
  const std::lock_guard making(making_mutex_);
  const auto known = [&]() -> std::shared_ptr<Lane> {
    const std::lock_guard lock(lanes_mutex_);
    const auto found = device_lanes_.find(device.index());
    return found == device_lanes_.end() ? nullptr : found->second;
  };
  if (auto lane = known()) return lane;
  auto lane = make_device_lane(operation, device);
  lane->set_group(hooks_, ranks_);
  {
    const std::lock_guard lock(lanes_mutex_);
    device_lanes_.emplace(device.index(), lane);
  }
  const std::lock_guard lock(groups().mutex);
  groups().lanes.insert(lane.get());
  return lane;
}

std::shared_ptr<Lane> ProcessGroupShoal::make_device_lane(const char* operation,
                                                          c10::Device device) {
  host_lane()->call([] {});  // throws if the group has ended or belongs to the parent process
  const auto streams = std::make_shared<DeviceStreams>(operation, device);
  // Not named after the device, because ranks may use devices of different numbers.
  const std::string part = fmt::format("device {}", device_lanes_.size());
  const auto make = [&](const std::string& which, const std::string& backend, Stream stream) {
    const std::shared_ptr<Store> store = make_part_store(part + which, store_, deadline_seconds_);
    collectives::CommunicatorOptions how;
    how.backend = backend;
    how.stream = stream;
    how.deadline_seconds = deadline_seconds_;
    // Tensors in the communicator's memory keep the communicator alive, and the communicator needs
    // its stream and its store.
    return std::shared_ptr<collectives::Communicator>(
        collectives::make_communicator(world(), *store, how).release(),
        [store, streams](collectives::Communicator* ended) { delete ended; });
  };
  return translating(
      [&] {
        auto calls = make("", env::get_string(env::kBackend), streams->calls());
        // Over NCCL, messages would wait for each other and for collectives, because they are work
        // of one stream.
        auto messages =
            calls->can_capture() ? make(" messages", "native", streams->messages()) : calls;
        return std::make_shared<Lane>(std::move(calls), std::move(messages), streams);
      },
      ranks_.get());
}

WorkResult ProcessGroupShoal::start(const Title& title, Tensors inputs, Tensors outputs,
                                    const Call& call, std::function<void()> copy_out) {
  std::optional<c10::Device> device;
  for (const Tensors* tensors : {&inputs, &outputs})
    for (const at::Tensor& tensor : *tensors) {
      if (!device) device = tensor.device();
      SHOAL_CHECK(tensor.device() == *device,
                  "{} of tensors on {} and {}: all must be on one device", title.name,
                  device->str(), tensor.device().str());
    }
  const std::shared_ptr<Lane> lane = lane_of(title.name, device.value_or(c10::kCPU));
  if (coalescing_ && lane->device())
    return join(lane, title, inputs, outputs, call, std::move(copy_out));
  auto work = c10::make_intrusive<CallWork>(
      lane, WorkDescription{title.type, title.name, std::move(inputs), std::move(outputs),
                            ++sequence_, limit(title.timeout)});
  if (copy_out) work->copy_out(std::move(copy_out));
  lane->begin(work, [&] { call(lane->collectives(), *work); });
  return hand_out(work);
}

WorkResult ProcessGroupShoal::join(const std::shared_ptr<Lane>& lane, const Title& title,
                                   const Tensors& inputs, const Tensors& outputs, const Call& call,
                                   std::function<void()> copy_out) {
  const std::lock_guard lock(coalescing_mutex_);
  c10::intrusive_ptr<CoalescedWork>& work = joined_[lane];
  const auto joins = [&] {
    return work && work->join(inputs, outputs, [&] { call(lane->collectives(), *work); }, copy_out);
  };
  if (joins()) return work;
  if (work) coalesced_.push_back(work);  // it has begun, because a thread waited for it
  work = c10::make_intrusive<CoalescedWork>(
      lane, WorkDescription{
                c10d::OpType::COALESCED, title.name, {}, {}, ++sequence_, limit(title.timeout)});
  joins();
  return work;
}

WorkResult ProcessGroupShoal::hand_out(const c10::intrusive_ptr<PolledWork>& work) {
  if (coalescing_) {
    const std::lock_guard lock(coalescing_mutex_);
    // endCoalescing() may never be called, so ended calls are dropped here; otherwise all tensors
    // of later calls would be kept.
    while (!coalesced_.empty() && coalesced_.front()->isSuccess()) coalesced_.pop_front();
    coalesced_.push_back(work);
  }
  return work;
}

void ProcessGroupShoal::startCoalescing() {
  if (coalescing_) endCoalescing();  // an exception has kept the caller from it
  coalescing_ = true;
}

WorkResult ProcessGroupShoal::endCoalescing() {
  std::vector<c10::intrusive_ptr<PolledWork>> parts;
  decltype(joined_) joined;
  {
    const std::lock_guard lock(coalescing_mutex_);
    coalescing_ = false;
    parts.assign(coalesced_.begin(), coalesced_.end());
    coalesced_.clear();
    joined = std::exchange(joined_, {});
  }
  const bool had_parts = !parts.empty();
  for (const auto& [lane, work] : joined) {
    work->begin();
    parts.push_back(work);
  }
  // Unlike a GroupWork, the call's own Work need not wait until the stream has finished.
  if (parts.size() == 1 && !had_parts) return parts.front();
  return c10::make_intrusive<GroupWork>(
      host_lane(),
      WorkDescription{c10d::OpType::COALESCED, nullptr, {}, {}, sequence_, limit_seconds_},
      std::move(parts));
}

WorkResult ProcessGroupShoal::message(const Title& title, const at::Tensor& tensor,
                                      const at::Tensor& own, int tag, const Call& call) {
  const std::shared_ptr<Lane> lane = translating([&] {
    if (tag != 0)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} with tag {} of a tensor on {}", title.name, tag, tensor.device().str()),
          "leave the tag out: messages of CUDA tensors match in the order of the calls");
    return lane_of(title.name, tensor.device());
  });
  auto work = c10::make_intrusive<CallWork>(
      lane,
      WorkDescription{title.type, title.name, {own}, {tensor}, ++sequence_, limit(title.timeout)});
  if (title.type == c10d::OpType::RECV && !own.is_same(tensor))
    work->copy_out([own, tensor] { tensor.copy_(own); });
  lane->begin(work, [&] { call(lane->messages(), *work); }, true);
  return hand_out(work);
}

WorkResult ProcessGroupShoal::send(Tensors& tensors, int to, int tag) {
  const at::Tensor tensor = translating([&] {
    check_tensors("send", tensors);
    SHOAL_CHECK(to >= 0 && to < size_ && to != rank_, "send from rank {} to rank {} of {}", rank_,
                to, size_);
    return only("send", tensors).contiguous();
  });
  if (!tensor.is_cpu())
    return message({"shoal:send", c10d::OpType::SEND, c10d::kUnsetTimeout}, tensor, tensor, tag,
                   [&](collectives::Communicator& ranks, CallWork& work) {
                     const Moved type = moved(tensor.scalar_type());
                     work.add(ranks.send(tensor.const_data_ptr(), tensor.numel() * type.units,
                                         type.dtype, to));
                   });
  auto work = c10::make_intrusive<CallWork>(
      host_lane(), WorkDescription{c10d::OpType::SEND,
                                   "shoal:send",
                                   {tensor},
                                   {tensor},
                                   0,
                                   limit_seconds_ > 0 ? limit_seconds_ : deadline_seconds_});
  lane_->begin(work, [&] {
    Mailbox::Sent sent = lane_->mailbox().send(tensor, to, tag);
    work->keep_alive(std::move(sent.header));
    work->add(std::move(sent.header_work));
    if (sent.data_work) work->add(std::move(sent.data_work));
  });
  return hand_out(work);
}

WorkResult ProcessGroupShoal::receive(const Title& title, Tensors& tensors, int from, int tag) {
  auto posted = std::make_shared<Mailbox::Receive>();
  translating([&] {
    check_tensors("recv", tensors);
    const at::Tensor& tensor = only("recv", tensors);
    SHOAL_CHECK(from < size_ && from != rank_ && size_ > 1, "recv of rank {} from rank {} of {}",
                rank_, from, size_);
    posted->source = from;
    posted->tag = tag;
    posted->into = tensor.is_contiguous() ? tensor : at::empty(tensor.sizes(), tensor.options());
    if (!tensor.is_cpu() && from < 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("recv of a tensor on {} from any rank", tensor.device().str()),
                  "name the rank, or receive a CPU tensor");
  });
  if (const at::Tensor& own = posted->into; !own.is_cpu())
    return message(
        title, tensors.front(), own, tag, [&](collectives::Communicator& ranks, CallWork& work) {
          const Moved type = moved(own.scalar_type());
          work.add(ranks.recv(own.data_ptr(), own.numel() * type.units, type.dtype, from));
        });
  auto work = c10::make_intrusive<ReceiveWork>(
      host_lane(),
      WorkDescription{title.type,
                      title.name,
                      {tensors.front()},
                      {tensors.front()},
                      0,
                      limit_seconds_ > 0 ? limit_seconds_ : deadline_seconds_},
      posted, tensors.front());
  work->expire_after_limit();
  lane_->begin(work, [&] { lane_->mailbox().receive(posted); });
  lane_->follow(work);
  return hand_out(work);
}

WorkResult ProcessGroupShoal::recv(Tensors& tensors, int from, int tag) {
  if (from < 0) C10_THROW_ERROR(ValueError, "recv from a negative rank");
  return receive({"shoal:recv", c10d::OpType::RECV, c10d::kUnsetTimeout}, tensors, from, tag);
}

WorkResult ProcessGroupShoal::recvAnysource(Tensors& tensors, int tag) {
  return receive({"shoal:recvAnySource", c10d::OpType::RECVANYSOURCE, c10d::kUnsetTimeout}, tensors,
                 -1, tag);
}

// A barrier of hosts. With a device, this rank first waits for its current stream.
WorkResult ProcessGroupShoal::barrier(const c10d::BarrierOptions& options) {
  std::optional<c10::Device> device = options.device;
  if (!options.device_ids.empty())
    device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(options.device_ids.front()));
  if (device && !device->is_cpu()) {
    const c10::impl::VirtualGuardImpl guard(device->type());
    guard.synchronizeStream(guard.getStream(*device));
  }
  return start({"shoal:barrier", c10d::OpType::BARRIER, options.timeout}, {}, {},
               [](collectives::Communicator& ranks, CallWork& work) { work.add(ranks.barrier()); });
}

void ProcessGroupShoal::eagerConnectSingleDevice(at::Device device) {
  translating([&] { lane_of("a process group", device); });
}

// Rank 0 waits in the store for a key of every other rank, then publishes the verdict to all.
void ProcessGroupShoal::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  const double longest =
      options.timeout.count() >= 0 ? seconds(options.timeout) : deadline_seconds_;
  const Deadline deadline = Deadline::in_seconds(longest);
  host_lane();  // throws before reconfigure(), when there is no `adapted_`
  const std::string prefix = fmt::format("monitored/{}", monitored_++);
  const auto refuse = [](const std::string& text) { C10_THROW_ERROR(DistBackendError, text); };
  if (rank_ != 0) {
    std::string verdict;
    try {
      adapted_->set(fmt::format("{}/{}", prefix, rank_), "here");
      const double patience = deadlines::kVerdictTimes * longest + deadlines::kVerdictMore;
      verdict = adapted_->get(prefix + "/verdict", Deadline::in_seconds(patience));
    } catch (const Error& error) {
      verdict = error.what();
    }
    try {
      adapted_->set(fmt::format("{}/{}/read", prefix, rank_), "");
    } catch (const Error& gone) {
      log::debug("rank 0 cannot be told that its verdict was read: {}", gone.what());
    }
    if (verdict == "all came") return;
    refuse(
        fmt::format("Rank {} successfully reached monitoredBarrier, but received errors while "
                    "waiting for send/recv from rank {}: {}",
                    ranks_->in_job(rank_), ranks_->in_job(0), verdict));
  }
  std::vector<int> missing, came;
  for (int rank = 1; rank < size_ && (missing.empty() || wait_all_ranks); ++rank) try {
      adapted_->get(fmt::format("{}/{}", prefix, rank), deadline);
      came.push_back(rank);
    } catch (const Error&) {
      missing.push_back(rank);
    }
  std::string verdict = "all came";
  if (!missing.empty())
    verdict = fmt::format(
        "Rank{} {} failed to pass monitoredBarrier in {} ms{}", missing.size() > 1 ? "s" : "",
        fmt::join(ranks_->in_job(missing), ", "), std::llround(1e3 * longest),
        longest > 0 ? ""
                    : fmt::format("; Rank {} timed out in monitoredBarrier", ranks_->in_job(0)));
  translating([&] { adapted_->set(prefix + "/verdict", verdict); });
  // This rank may serve the store, and end next, so it waits until the others have read it. What
  // all have read leaves the store.
  const Deadline courtesy = Deadline::in_seconds(deadlines::kStoreCourtesy);
  bool all_read = missing.empty();
  for (const int rank : came) try {
      const std::string key = fmt::format("{}/{}", prefix, rank);
      adapted_->get(key + "/read", courtesy);
      adapted_->remove(key + "/read");
      adapted_->remove(key);
    } catch (const Error& late) {
      all_read = false;
      log::debug("rank {} has not read the verdict of monitoredBarrier: {}", rank, late.what());
    }
  if (all_read) try {
      adapted_->remove(prefix + "/verdict");
    } catch (const Error& gone) {
      log::debug("the verdict of monitoredBarrier stays in the store: {}", gone.what());
    }
  if (!missing.empty()) refuse(verdict);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupShoal::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options) {
  if (std::ranges::find(ranks, rank_) == ranks.end()) return nullptr;
  std::vector<int> members;
  for (const int rank : ranks) members.push_back(ranks_->in_job(rank));
  return part(store, ranks, options, std::move(members));
}

c10::intrusive_ptr<ProcessGroupShoal> ProcessGroupShoal::part(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const c10::intrusive_ptr<Options>& options, std::vector<int> members) {
  const auto place = std::ranges::find(ranks, rank_);
  return c10::make_intrusive<ProcessGroupShoal>(
      store, static_cast<int>(place - ranks.begin()), static_cast<int>(ranks.size()),
      c10::make_intrusive<Options>(options ? *options : *options_), std::move(members), job_);
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupShoal::shrink(
    const std::vector<std::int64_t>& excluded, int flags,
    const c10::intrusive_ptr<Options>& options) {
  std::vector<int> left;
  for (int rank = 0; rank < size_; ++rank)
    if (std::ranges::find(excluded, rank) == excluded.end()) left.push_back(rank);
  translating([&] {
    SHOAL_CHECK(std::ranges::find(left, rank_) != left.end(),
                "shrink: rank {} is one of those to exclude: {}", rank_, fmt::join(excluded, ", "));
  });
  constexpr int kAborts = 1;  // PyTorch's SHRINK_ABORT
  if ((flags & kAborts) != 0) abort();
  // Ranks that disagree about the remaining ranks use different keys, so they do not connect.
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      fmt::format("shrunk/{}/{}/", shrunk_++, fmt::join(left, ",")), store_);
  // If this group was the job, PyTorch numbers the job anew.
  if (ranks_->members().empty()) return part(store, left, options, {});
  return split(store, left, options);
}

at::Tensor ProcessGroupShoal::allocateTensor(long elements, at::TensorOptions options) {
  return translating([&] {
    SHOAL_CHECK(elements >= 0, "a tensor of {} elements", elements);
    const auto bytes = static_cast<std::size_t>(elements) * options.dtype().itemsize();
    if (bytes == 0) return at::empty({elements}, options);
    const std::shared_ptr<Lane> lane = lane_of("symmetric memory", options.device());
    const std::shared_ptr<collectives::Communicator> owner = lane->memory_owner();
    SHOAL_CHECK(owner, "the process group was destroyed");
    void* memory = owner->memory_resource().allocate(bytes, MemoryTag::communication, {});
    // On a device, memory is freed on the calls' stream, so the current stream first waits for that
    // stream.
    const std::shared_ptr<DeviceStreams> streams = lane->device();
    if (streams) streams->current_follows_calls();
    const auto free = [block = SymmetricBlock{owner, bytes, ::getpid()}, streams](void* pointer) {
      if (streams) streams->follow_current(streams->calls());
      free_symmetric(block, pointer);
    };
    return at::from_blob(memory, {elements}, free, options, options.device());
  });
}

c10d::ErrorType ProcessGroupShoal::getError() {
  for (const auto& lane : lanes())
    if (lane->error() != c10d::ErrorType::SUCCESS) return lane->error();
  return c10d::ErrorType::SUCCESS;
}

void ProcessGroupShoal::abort() {
  for (const auto& lane : lanes()) lane->abort("the process group was aborted");
}

void ProcessGroupShoal::shutdown() {
  for (const auto& lane : lanes()) lane->close(true);
}

}  // namespace shoal::pytorch
