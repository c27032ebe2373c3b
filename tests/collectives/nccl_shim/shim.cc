#include "shim.h"

#include <algorithm>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "device.h"
#include "nccl.h"
#include <fmt/format.h>

#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/tensor/dtype.h"

// One rank of a communicator.
struct ncclComm {
  std::string group;  // the id that all its ranks share
  int rank, size;
  int world_rank;  // rank in the first communicator
  int splits = 0;
  std::string splitting;          // the split in progress
  std::map<int, double> factors;  // of premultiplied sums; keys lie above NCCL's own
  bool broken = false;
};

namespace shoal::test::nccl_shim {
namespace {

enum class Kind { all_reduce, reduce_scatter, reduce, all_gather, broadcast, send, recv };
constexpr const char* kNames[] = {"allReduce", "reduceScatter", "reduce", "allGather",
                                  "broadcast", "send",          "recv"};

struct Step {
  Kind kind;
  const void* send;
  void* recv;
  std::int64_t count;
  DType dtype;
  int op = 0;         // ncclRedOp_t
  double factor = 1;  // scales this rank's elements
  int peer = -1;      // of a message; else the root
  cudaStream_t stream = nullptr;
  bool done = false;
  friend bool is_message(const Step& step) {
    return step.kind == Kind::send || step.kind == Kind::recv;
  }
};

// One group call's work on a rank's stream.
struct Launch {
  ncclComm* comm;
  std::vector<Step> steps;
  bool captured = false;  // part of a graph
  bool finished = false;
};

using Queue = std::deque<std::shared_ptr<Launch>>;

struct Rank {
  std::vector<std::string> calls;
  std::int64_t launched = 0, finished = 0;
};

struct State {
  std::mutex mutex;
  std::vector<std::string> memory_calls;
  std::map<std::string, std::map<int, Queue>> queues;  // keyed by group and rank
  std::map<std::string, std::list<std::unique_ptr<ncclComm>>> comms;
  std::map<int, Rank> ranks;
  std::map<std::string, int> arrived;  // number of ranks that have reached a split
  int version = NCCL_VERSION(2, 28, 9);
  int next_id = 0, next_op = 100, remote_error = -1;
};
State& state() {
  static State one;
  return one;
}

// The open group of a thread.
struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<ncclComm*, Step>> steps;
};
OpenGroup& open_group() {
  thread_local OpenGroup group;
  return group;
}

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DType::i8;
    case ncclUint8:
      return DType::u8;
    case ncclInt32:
      return DType::i32;
    case ncclInt64:
      return DType::i64;
    case ncclFloat16:
      return DType::f16;
    case ncclFloat32:
      return DType::f32;
    case ncclFloat64:
      return DType::f64;
    case ncclBfloat16:
      return DType::bf16;
  }
  return DType::u8;
}

std::size_t bytes(const Step& step) {
  return static_cast<std::size_t>(step.count) * size_of(step.dtype);
}
std::byte* shifted(const void* pointer, std::size_t by) {
  return static_cast<std::byte*>(const_cast<void*>(pointer)) + by;
}

// Reduces `count` elements, starting at element `begin` of every rank's send buffer.
void reduce(const std::vector<Step*>& steps, std::int64_t begin, std::int64_t count, void* to) {
  const Step& first = *steps.front();
  const auto offset = static_cast<std::size_t>(begin) * size_of(first.dtype);
  std::vector<const void*> sources;
  std::vector<double> factors;
  for (const Step* step : steps) {
    sources.push_back(shifted(step->send, offset));
    factors.push_back(step->factor);
  }
  using kernels::Reduce;
  const Reduce op = first.op == ncclProd  ? Reduce::prod
                    : first.op == ncclMax ? Reduce::max
                    : first.op == ncclMin ? Reduce::min
                                          : Reduce::sum;
  const auto kernels = kernels::make_cpu_reduction();
  if (!is_floating(first.dtype)) factors.clear();
  collectives::reduce_in_tree(*kernels, op, first.dtype, sources, factors,
                              first.op == ncclAvg ? 1.0 / static_cast<double>(steps.size()) : 1.0,
                              to, count);
}

// Executes a collective once the steps of all ranks, in rank order, are ready.
void carry_out(const std::vector<Step*>& steps) {
  const int size = static_cast<int>(steps.size());
  const Step& first = *steps.front();
  // Compute all results before storing any, because ranks may work in place.
  std::vector<std::vector<std::byte>> results;
  for (int rank = 0; rank < size; ++rank) {
    const Step& own = *steps[static_cast<std::size_t>(rank)];
    std::vector<std::byte> result;
    const bool scattered = own.kind == Kind::reduce_scatter;
    if (own.kind == Kind::all_reduce || scattered ||
        (own.kind == Kind::reduce && rank == first.peer)) {
      result.resize(bytes(own));
      reduce(steps, scattered ? rank * own.count : 0, own.count, result.data());
    } else if (own.kind == Kind::broadcast) {
      const std::byte* data = shifted(steps[static_cast<std::size_t>(first.peer)]->send, 0);
      result.assign(data, data + bytes(own));
    } else if (own.kind == Kind::all_gather) {
      for (const Step* step : steps)
        result.insert(result.end(), shifted(step->send, 0), shifted(step->send, bytes(*step)));
    }
    results.push_back(std::move(result));
  }
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    if (!results[rank].empty())
      std::memcpy(steps[rank]->recv, results[rank].data(), results[rank].size());
}

Step* first_undone(Launch& launch, bool (*wanted)(const Step&, int), int peer) {
  for (Step& step : launch.steps)
    if (!step.done && wanted(step, peer)) return &step;
  return nullptr;
}

bool advance_collectives(std::map<int, Queue>& queues, int size) {
  std::vector<Step*> steps;
  bool any = false, all = true;
  for (int rank = 0; rank < size; ++rank) {
    auto& queue = queues[rank];
    Step* step =
        queue.empty()
            ? nullptr
            : first_undone(*queue.front(), [](const Step& s, int) { return !is_message(s); }, 0);
    if (!step) return false;
    steps.push_back(step);
    any = any || queue.front()->captured;
    all = all && queue.front()->captured;
  }
  // NCCL's guide, "Using NCCL with CUDA Graphs", requires that all ranks capture a collective or
  // none does.
  if (any != all)
    throw_error(ErrorCode::internal, "some ranks launched {} from a graph, and others did not",
                kNames[static_cast<int>(steps.front()->kind)]);
  for (const Step* step : steps)
    if (step->kind != steps.front()->kind || step->count != steps.front()->count)
      throw_error(ErrorCode::internal, "ranks launched {} and {}, which would hang",
                  kNames[static_cast<int>(steps.front()->kind)],
                  kNames[static_cast<int>(step->kind)]);
  // A rank that has aborted may have freed its memory, so nothing is read or written then.
  const bool whole = std::ranges::none_of(
      queues, [](const auto& of) { return !of.second.empty() && of.second.front()->comm->broken; });
  if (whole) carry_out(steps);
  for (Step* step : steps) step->done = true;
  return true;
}

bool advance_messages(std::map<int, Queue>& queues, int size) {
  bool moved = false;
  for (int from = 0; from < size; ++from) {
    if (queues[from].empty()) continue;
    for (Step& step : queues[from].front()->steps) {
      if (step.done || step.kind != Kind::send || queues[step.peer].empty()) continue;
      Step* other = first_undone(
          *queues[step.peer].front(),
          [](const Step& s, int peer) { return s.kind == Kind::recv && s.peer == peer; }, from);
      if (!other) continue;
      if (other->count != step.count)
        throw_error(ErrorCode::internal, "rank {} sends {} elements, rank {} expects {}", from,
                    step.count, step.peer, other->count);
      if (!queues[from].front()->comm->broken && !queues[step.peer].front()->comm->broken)
        std::memcpy(other->recv, step.send, bytes(step));
      step.done = other->done = true;
      moved = true;
    }
  }
  return moved;
}

// Needs the mutex.
void match_launches(const std::string& group, int size) {
  auto& queues = state().queues[group];
  for (bool moved = true; moved;) {
    moved = advance_collectives(queues, size);
    moved = advance_messages(queues, size) || moved;
    for (auto& [rank, queue] : queues)
      while (!queue.empty() &&
             std::ranges::all_of(queue.front()->steps, [](const Step& s) { return s.done; })) {
        ++state().ranks[queue.front()->comm->world_rank].finished;
        queue.front()->finished = true;
        queue.pop_front();
        moved = true;
      }
  }
}

void record(const ncclComm* comm, std::string text) {
  state().ranks[comm->world_rank].calls.push_back(std::move(text));
}

// The stream has reached the launch. It begins once every rank's stream has.
void enter(const std::shared_ptr<Launch>& launch) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.queues[launch->comm->group][launch->comm->rank].push_back(launch);
  match_launches(launch->comm->group, launch->comm->size);
}

// True if the launch has finished, or its communicator was aborted.
bool has_ended(const Launch& launch) {
  const std::lock_guard lock(state().mutex);
  return launch.finished || launch.comm->broken;
}

ncclResult_t launch(const std::vector<std::pair<ncclComm*, Step>>& steps) {
  std::map<ncclComm*, Launch> launches;
  for (const auto& [comm, step] : steps) {
    launches[comm].comm = comm;
    launches[comm].steps.push_back(step);
  }
  for (auto& [comm, made] : launches) {
    {
      const std::lock_guard lock(state().mutex);
      if (comm->broken) return ncclInvalidUsage;
      record(comm, fmt::format("launch {}", made.steps.size()));
      ++state().ranks[comm->world_rank].launched;
    }
    made.captured = is_captured(made.steps.front().stream);
    // A graph may run it several times.
    const bool queued = queue_launch(made.steps.front().stream, [made] {
      const auto own = std::make_shared<Launch>(made);
      enter(own);
      return [own] { return has_ended(*own); };
    });
    if (!queued) return ncclUnhandledCudaError;
  }
  return ncclSuccess;
}

ncclResult_t call(ncclComm* comm, cudaStream_t stream, Step step) {
  step.stream = stream;
  constexpr const char* kOps[] = {" sum", " prod", " max", " min", " avg"};
  {
    const std::lock_guard lock(state().mutex);
    // NCCL 2.28 on an H200 does the same: with one rank it leaves the result of a scaled sum
    // unchanged.
    const bool scaled = step.kind <= Kind::reduce && step.op >= ncclAvg;
    if (comm->size == 1 && scaled) return ncclSuccess;
    std::string text = fmt::format("{} {} {}", kNames[static_cast<int>(step.kind)], step.count,
                                   to_string(step.dtype));
    if (step.kind <= Kind::reduce) {
      const auto made = comm->factors.find(step.op);
      if (made != comm->factors.end()) {
        step.factor = made->second;
        step.op = ncclSum;
        text += fmt::format(" sum of {} times", step.factor);
      } else {
        if (step.op < 0 || step.op > ncclAvg) return ncclInvalidArgument;
        text += kOps[step.op];
      }
    }
    if (step.kind == Kind::send) text += fmt::format(" to {}", step.peer);
    if (step.kind == Kind::recv) text += fmt::format(" from {}", step.peer);
    if (step.kind == Kind::reduce || step.kind == Kind::broadcast)
      text += fmt::format(" root {}", step.peer);
    record(comm, text);
  }
  if (open_group().depth == 0) return launch({{comm, step}});
  open_group().steps.emplace_back(comm, step);
  return ncclInProgress;
}

}  // namespace

std::vector<std::string> calls(int rank) {
  const std::lock_guard lock(state().mutex);
  return state().ranks[rank].calls;
}

void clear() {
  const std::lock_guard lock(state().mutex);
  state().ranks.clear();
  state().queues.clear();
  state().memory_calls.clear();
  state().version = NCCL_VERSION(2, 28, 9);
  state().remote_error = -1;
}

std::vector<std::string> memory_calls() {
  const std::lock_guard lock(state().mutex);
  return state().memory_calls;
}

void record_memory_call(std::string text) {
  const std::lock_guard lock(state().mutex);
  state().memory_calls.push_back(std::move(text));
}

std::pair<std::int64_t, std::int64_t> launched_and_finished(int rank) {
  const std::lock_guard lock(state().mutex);
  return {state().ranks[rank].launched, state().ranks[rank].finished};
}

void pretend_version(int version) { state().version = version; }

void pretend_remote_error(int rank) {
  const std::lock_guard lock(state().mutex);
  state().remote_error = rank;
}

}  // namespace shoal::test::nccl_shim

using namespace shoal::test::nccl_shim;

ncclResult_t ncclGetVersion(int* version) {
  *version = state().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(state().mutex);
  std::memset(id->internal, 0, sizeof id->internal);
  fmt::format_to(id->internal, "shim {}", state().next_id++);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclRemoteError ? "remote process exited" : "shim error";
}
const char* ncclGetLastError(ncclComm_t) { return "reported by the shim"; }

namespace {
ncclComm* make_comm(const std::string& group, int size, int rank, int world_rank) {
  auto& comms = state().comms[group];
  comms.push_back(std::make_unique<ncclComm>());
  ncclComm& comm = *comms.back();
  comm.group = group;
  comm.rank = rank;
  comm.size = size;
  comm.world_rank = world_rank;
  return &comm;
}
}  // namespace

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  const std::lock_guard lock(state().mutex);
  *comm = make_comm(id.internal, size, rank, rank);
  record(*comm, fmt::format("commInitRank {} of {}", rank, size));
  return ncclInProgress;
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidUsage;
  const std::lock_guard lock(state().mutex);
  record(comm, fmt::format("commSplit color {} key {}", color, key));
  comm->splitting = fmt::format("{}/{}", comm->group, comm->splits++);
  ++state().arrived[comm->splitting];
  const std::string group = fmt::format("{}/{}", comm->splitting, color);
  *made = nullptr;
  if (color == NCCL_SPLIT_NOCOLOR) return ncclInProgress;
  // The backend's keys are the ranks in the new group. Its size is known once all ranks have
  // arrived.
  *made = make_comm(group, 0, key, comm->world_rank);
  const int size = static_cast<int>(state().comms[group].size());
  for (const auto& member : state().comms[group]) member->size = size;
  return ncclInProgress;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  record(comm, "commFinalize");
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  record(comm, "commDestroy");
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  record(comm, "commAbort");
  comm->broken = true;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::lock_guard lock(state().mutex);
  const bool splitting = !comm->splitting.empty() && state().arrived[comm->splitting] < comm->size;
  *error = comm->world_rank == state().remote_error ? ncclRemoteError
           : splitting                              ? ncclInProgress
                                                    : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes) {
  record_memory_call(fmt::format("memAlloc {}", bytes));
  *pointer = take_memory(bytes);
  return *pointer ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* pointer) {
  record_memory_call("memFree");
  give_memory(pointer);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(ncclComm_t, void* data, std::size_t, void** handle) {
  *handle = data;
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(ncclComm_t, void*) { return ncclSuccess; }

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* factor, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  if (residence != ncclScalarHostImmediate) return ncclInvalidArgument;
  const std::lock_guard lock(state().mutex);
  double value = 0;
  switch (type) {
    case ncclFloat64:
      std::memcpy(&value, factor, sizeof value);
      break;
    case ncclFloat32:
      value = static_cast<double>(*static_cast<float*>(factor));
      break;
    case ncclFloat16:
      value = static_cast<double>(static_cast<float>(*static_cast<shoal::float16*>(factor)));
      break;
    case ncclBfloat16:
      value = static_cast<double>(static_cast<float>(*static_cast<shoal::bfloat16*>(factor)));
      break;
    default:
      return ncclInvalidArgument;
  }
  const int number = state().next_op++;
  comm->factors[number] = value;
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  const std::lock_guard lock(state().mutex);
  return comm->factors.erase(op) == 1 ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclGroupStart() {
  ++open_group().depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  OpenGroup& group = open_group();
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0 || group.steps.empty()) return ncclSuccess;
  return launch(std::exchange(group.steps, {}));
}

ncclResult_t ncclAllReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream,
              {Kind::all_reduce, send, recv, static_cast<std::int64_t>(count), dtype_of(type), op});
}
ncclResult_t ncclReduceScatter(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return call(
      comm, stream,
      {Kind::reduce_scatter, send, recv, static_cast<std::int64_t>(count), dtype_of(type), op});
}
ncclResult_t ncclReduce(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return call(
      comm, stream,
      {Kind::reduce, send, recv, static_cast<std::int64_t>(count), dtype_of(type), op, 1, root});
}
ncclResult_t ncclAllGather(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return call(comm, stream,
              {Kind::all_gather, send, recv, static_cast<std::int64_t>(count), dtype_of(type)});
}
ncclResult_t ncclBroadcast(const void* send, void* recv, std::size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
  return call(
      comm, stream,
      {Kind::broadcast, send, recv, static_cast<std::int64_t>(count), dtype_of(type), 0, 1, root});
}
ncclResult_t ncclSend(const void* send, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return call(
      comm, stream,
      {Kind::send, send, nullptr, static_cast<std::int64_t>(count), dtype_of(type), 0, 1, peer});
}
ncclResult_t ncclRecv(void* recv, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return call(
      comm, stream,
      {Kind::recv, nullptr, recv, static_cast<std::int64_t>(count), dtype_of(type), 0, 1, peer});
}
