#include "shoal/kernels/cuda/attention_cudnn.h"

#include <chrono>
#include <limits>
#include <utility>
#include <vector>

#include "shoal/kernels/cuda/attention_cudnn_graph.h"
#include "shoal/kernels/cuda/resources.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal::kernels {

using cudnn::accept;
using cudnn::Descriptor;
using cudnn::Refusal;

// Older versions compute backward wrongly for lengths that are not multiples of 128.
constexpr std::size_t kOldest = 91501;

// Limits the memory that plans take, since each holds its kernels' code.
constexpr std::size_t kMostPlans = 1024;

struct CudnnAttention::Plan {
  CudnnAttentionKey key;
  Descriptor plan;
  std::int64_t workspace = 0;
  std::string refusal;
  std::uint64_t used = 0;         // number of the call that last used it
  mutable bool captured = false;  // a captured graph may run its kernels, so the plan must stay
};

struct CudnnAttention::Impl {
  cudnnHandle_t handle = nullptr;
  Descriptor device;  // described device, if there is no handle
  std::map<CudnnAttentionKey, std::unique_ptr<Plan>> plans;
  std::uint64_t calls = 0;

  ~Impl() {
    plans.clear();
    if (handle) (void)cudnnDestroy(handle);
  }
  void make(Plan& plan);
  bool take(Plan& plan, Descriptor& config);
  void make_room();
};

// Throws the refusal of an operation that the caller needs.
[[noreturn]] static void fail(const Refusal& refusal, ErrorCode otherwise, const char* what) {
  if (refusal.memory)
    throw Error(ErrorCode::out_of_memory, fmt::format("{}: {}", what, refusal.why),
                "use a smaller batch or model, or more ranks");
  throw_error(otherwise, "{}: {}", what, refusal.why);
}

static std::string to_string(const CudnnAttentionKey& key) {
  return fmt::format("attention{} of {} ({} rows, {} heads, {} queries, {} keys, head_dim {}{}{})",
                     key.backward ? "'s gradient" : "", to_string(key.dtype), key.batch, key.heads,
                     key.queries, key.keys, key.head_dim, key.causal ? ", causal" : "",
                     key.packed    ? ", packed"
                     : key.lengths ? ", lengths"
                                   : "");
}

// The index of a configuration's engine, and its numerical notes.
struct EngineNotes {
  std::int64_t engine = -1;
  bool deterministic = true;
};
static EngineNotes notes_of(Descriptor& config) {
  EngineNotes found;
  Descriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  cudnnBackendDescriptor_t raw = engine.get();
  std::int64_t count = 0;
  accept(
      cudnnBackendGetAttribute(config.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, static_cast<void*>(&raw)),
      "an engine");
  accept(cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count,
                                  &found.engine),
         "an engine's number");
  std::array<cudnnBackendNumericalNote_t, CUDNN_NUMERICAL_NOTE_TYPE_COUNT> notes{};
  accept(cudnnBackendGetAttribute(raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                  CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, notes.data()),
         "an engine's notes");
  for (std::int64_t i = 0; i < count && i < CUDNN_NUMERICAL_NOTE_TYPE_COUNT; ++i)
    if (notes[static_cast<std::size_t>(i)] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
      found.deterministic = false;
  return found;
}

// Makes a plan from the configuration. Returns false if cuDNN refuses it; plan.refusal then holds
// the reason.
bool CudnnAttention::Impl::take(Plan& plan, Descriptor& config) {
  try {
    const EngineNotes notes = notes_of(config);
    if (!notes.deterministic) {
      plan.refusal = fmt::format("engine {} is not deterministic", notes.engine);
      return false;
    }
    Descriptor made(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle) made.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    if (device) made.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device);
    made.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    made.finalize("a plan");
    std::int64_t count = 0;
    accept(cudnnBackendGetAttribute(made.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                    CUDNN_TYPE_INT64, 1, &count, &plan.workspace),
           "a plan's workspace");
    plan.plan = std::move(made);
    plan.refusal.clear();
    return true;
  } catch (const Refusal& refusal) {
    if (refusal.memory)
      throw;  // memory may be free later, and another engine would be a different choice
    plan.refusal = refusal.why;
    return false;
  }
}

void CudnnAttention::Impl::make(Plan& plan) {
  Descriptor graph = cudnn::attention_graph(plan.key, handle);
  Descriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (device) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device);
  heuristics.finalize("the heuristics");
  std::int64_t count = 0;
  accept(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
         "counting engines");
  std::vector<Descriptor> configs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    configs.emplace_back(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    raw.push_back(configs.back().get());
  }
  accept(cudnnBackendGetAttribute(heuristics.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count,
                                  static_cast<void*>(raw.data())),
         "listing engines");
  plan.refusal = "cuDNN has no engine for it";
  for (std::int64_t i = 0; i < count; ++i)
    if (take(plan, configs[static_cast<std::size_t>(i)])) return;
}

CudnnAttention::CudnnAttention(const std::string& device_json) : impl_(std::make_unique<Impl>()) {
  try {
    if (device_json.empty()) {
      accept(cudnnCreate(&impl_->handle), "starting cuDNN");
      return;
    }
    impl_->device = Descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    impl_->device.set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                      static_cast<std::int64_t>(device_json.size()), device_json.data());
    impl_->device.finalize("a device");
  } catch (const Refusal& refusal) {
    fail(refusal, ErrorCode::unavailable, "cuDNN");
  }
}

CudnnAttention::~CudnnAttention() = default;

// Makes room for one more plan by removing the least recently used one that no captured graph runs.
void CudnnAttention::Impl::make_room() {
  if (plans.size() < kMostPlans) return;
  auto oldest = plans.end();
  for (auto at = plans.begin(); at != plans.end(); ++at)
    if (!at->second->captured && (oldest == plans.end() || at->second->used < oldest->second->used))
      oldest = at;
  if (oldest == plans.end()) return;
  log::once(log::Level::warn, "cuDNN's plans",
            fmt::format("attention has met {} shapes: cuDNN's plans of those used the longest ago "
                        "are made again when they return, about a second each",
                        plans.size() + 1));
  // Removing the plan frees its kernels' code, which queued work may not have run yet.
  if (handle) check_cuda(cudaDeviceSynchronize(), "waiting for attention");
  plans.erase(oldest);
}

const CudnnAttention::Plan& CudnnAttention::plan(const CudnnAttentionKey& key) {
  const std::uint64_t now = ++impl_->calls;
  if (const auto found = impl_->plans.find(key); found != impl_->plans.end()) {
    found->second->used = now;
    return *found->second;
  }
  auto made = std::make_unique<Plan>();
  made->key = key;
  made->used = now;
  const auto begin = std::chrono::steady_clock::now();
  try {
    if (const std::size_t version = cudnnGetVersion(); version < kOldest)
      throw Refusal{fmt::format("cuDNN {} is older than {}", version, kOldest)};
    impl_->make(*made);
  } catch (const Refusal& refusal) {
    if (refusal.memory) fail(refusal, ErrorCode::internal, "planning attention by cuDNN");
    made->refusal = refusal.why;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  log::debug("cuDNN's plan of {}: {:.0f} ms{}{}", to_string(key), took.count(),
             made->refusal.empty() ? "" : ", refused: ", made->refusal);
  impl_->make_room();
  return *impl_->plans.emplace(key, std::move(made)).first->second;
}

const std::string& CudnnAttention::refusal(const Plan& plan) { return plan.refusal; }
std::size_t CudnnAttention::workspace_bytes(const Plan& plan) {
  return static_cast<std::size_t>(plan.workspace);
}

void CudnnAttention::run(const Plan& plan, const CudnnAttentionPointers& p, float scale,
                         void* workspace, cudaStream_t stream) {
  using enum cudnn::Uid;
  std::vector<std::int64_t> uids;
  std::vector<void*> pointers;
  const auto pass = [&](cudnn::Uid uid, const void* pointer) {
    uids.push_back(uid);
    pointers.push_back(const_cast<void*>(pointer));
  };
  // These values are read from host memory while the call is queued.
  float one = 1, minus_infinity = -std::numeric_limits<float>::infinity();
  auto queries = static_cast<std::int32_t>(plan.key.queries),
       keys = static_cast<std::int32_t>(plan.key.keys);
  pass(kQ, p.q), pass(kK, p.k), pass(kV, p.v), pass(kOut, p.out), pass(kScale, &scale);
  pass(kLogSumExp, p.log_sum_exp);
  if (plan.key.causal || plan.key.lengths) pass(kMinusInfinity, &minus_infinity);
  if (plan.key.lengths) pass(kQueryLengths, p.query_lengths), pass(kKeyLengths, p.key_lengths);
  for (const cudnn::Uid uid : {kQ, kK, kV, kOut, kLogSumExp, kDOut, kDQ, kDK, kDV})
    if (const std::int64_t i = cudnn::offset_index(uid);
        plan.key.packed && (i < 4 || i == 8 || plan.key.backward))
      pass(static_cast<cudnn::Uid>(kOffsets + i), p.offsets[static_cast<std::size_t>(i)]);
  if (plan.key.causal && queries != keys) pass(kQueries, &queries), pass(kKeys, &keys);
  if (plan.key.backward) {
    pass(kDOut, p.dout), pass(kDQ, p.dq), pass(kDK, p.dk), pass(kDV, p.dv);
    pass(kDelta, p.delta), pass(kOne, &one);
  }
  try {
    Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    const auto count = static_cast<std::int64_t>(uids.size());
    pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
    pack.set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    pack.finalize("the pointers of a call");
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check_cuda(cudaStreamIsCapturing(stream, &capture), "asking for a capture");
    if (capture != cudaStreamCaptureStatusNone) plan.captured = true;
    accept(cudnnSetStream(impl_->handle, stream), "choosing a stream");
    accept(cudnnBackendExecute(impl_->handle, plan.plan.get(), pack.get()), "running a plan");
  } catch (const Refusal& refusal) {
    fail(refusal, ErrorCode::internal, "attention by cuDNN");
  }
}

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace shoal::kernels
