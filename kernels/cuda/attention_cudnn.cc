// The graphs are those that cuDNN's support matrix knows as flash attention: it recognises the
// chain product, scale, mask, softmax, product (and its gradient) by its form, so the order of the
// operations below is not free. Forward takes k transposed; backward takes k and v transposed.
#include "shoal/kernels/cuda/attention_cudnn.h"

#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <cudnn.h>
#include <cudnn_graph.h>

#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

// cuDNN says no; caught where a plan is made.
struct Refusal {
  std::string why;
};

void accept(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  throw Refusal{fmt::format("{}: {} ({})", what, cudnnGetErrorString(status), text.data())};
}

// One backend descriptor, owned.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(cudnnBackendDescriptorType_t type) {
    accept(cudnnBackendCreateDescriptor(type, &handle_), "creating a descriptor");
  }
  ~Descriptor() {
    if (handle_) (void)cudnnBackendDestroyDescriptor(handle_);
  }
  Descriptor(Descriptor&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }

  cudnnBackendDescriptor_t get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

  template <typename T>
  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
           const T* values) {
    accept(cudnnBackendSetAttribute(handle_, name, type, count, static_cast<const void*>(values)),
           "setting an attribute");
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.handle_);
  }
  void set(cudnnBackendAttributeName_t name, std::int64_t value) {
    set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, bool value) {
    set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  void finalize(const char* what) { accept(cudnnBackendFinalize(handle_), what); }

 private:
  cudnnBackendDescriptor_t handle_ = nullptr;
};

// Before it, backward is wrong for lengths that are not multiples of 128.
constexpr std::size_t kOldest = 91501;

using Sizes = std::array<std::int64_t, 4>;  // [batch, heads, rows, columns]

Sizes packed(const Sizes& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

// Names of what a call passes; those of virtual tensors come after.
enum Uid : std::int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLogSumExp,
  kDOut,
  kDQ,
  kDK,
  kDV,
  kDelta,
  kScale,
  kOne,
  kMinusInfinity,
  kQueries,
  kKeys,
  kQueryLengths,
  kKeyLengths,
  kOffsets,  // the first of nine, of tensors kQ to kDV but log_sum_exp, which is last
  kFirstVirtual = kOffsets + 9
};

// Of CudnnAttentionPointers::offsets.
std::int64_t offset_index(Uid uid) {
  if (uid == kLogSumExp || uid == kDelta) return 8;
  return uid < kLogSumExp ? uid - kQ : uid - kDOut + 4;
}

// A tensor of the graph being built: an index into its descriptors.
struct Node {
  std::size_t index = 0;
  Sizes sizes{};
};

// How many rows, columns and inner elements of a product count, a number a batch row; null: all.
struct Limits {
  const Node *rows = nullptr, *columns = nullptr, *inner = nullptr;
};

// Collects operations; every tensor and operation lives until the graph is final.
class Graph {
 public:
  // ragged: where its batch rows begin, or null.
  Node tensor(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
              const Node* ragged = nullptr) {
    return add(uid, type, sizes, strides, false, false, ragged);
  }
  Node value(std::int64_t uid, cudnnDataType_t type) {
    return add(uid, type, {1, 1, 1, 1}, {1, 1, 1, 1}, false, true);
  }
  Node temporary(const Sizes& sizes, const Sizes& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT,
                 const Node* ragged = nullptr) {
    return add(next_++, type, sizes, strides, true, false, ragged);
  }
  Node temporary(const Sizes& sizes, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return temporary(sizes, packed(sizes), type);
  }

  void matmul(Node a, Node b, Node c, Limits limits = {});
  void reduce(cudnnReduceTensorOp_t operation, Node x, Node y);
  void reshape(Node x, Node y);
  void pointwise(cudnnPointwiseMode_t mode, Node x, const Node* b, const Node* t, Node y,
                 cudnnDataType_t math = CUDNN_DATA_FLOAT, std::int64_t axis = -1);
  // The common forms, into a new f32 temporary.
  Node pointwise(cudnnPointwiseMode_t mode, Node x) {
    const Node y = temporary(x.sizes);
    pointwise(mode, x, nullptr, nullptr, y);
    return y;
  }
  Node pointwise(cudnnPointwiseMode_t mode, Node x, Node b) {
    const Node y = temporary(x.sizes);
    pointwise(mode, x, &b, nullptr, y);
    return y;
  }

  Descriptor finish(cudnnHandle_t handle);

 private:
  Node add(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
           bool is_virtual, bool by_value, const Node* ragged = nullptr);
  Descriptor& of(Node node) { return tensors_[node.index]; }

  std::int64_t next_ = kFirstVirtual;
  std::vector<Descriptor> tensors_, settings_, operations_;
};

Node Graph::add(std::int64_t uid, cudnnDataType_t type, const Sizes& sizes, const Sizes& strides,
                bool is_virtual, bool by_value, const Node* ragged) {
  Descriptor d(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
  d.set(CUDNN_ATTR_TENSOR_DATA_TYPE, type);
  d.set(CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, sizes.data());
  d.set(CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides.data());
  d.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, std::int64_t{16});
  d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, is_virtual);
  d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, by_value);
  if (ragged) d.set(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC, of(*ragged));
  d.finalize("a tensor");
  tensors_.push_back(std::move(d));
  return {tensors_.size() - 1, sizes};
}

void Graph::matmul(Node a, Node b, Node c, Limits limits) {
  Descriptor how(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("a product's settings");
  Descriptor op(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, of(a));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, of(b));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, of(c));
  op.set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  const auto limit = [&](cudnnBackendAttributeName_t name, const Node* by) {
    if (by) op.set(name, of(*by));
  };
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC, limits.rows);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC, limits.columns);
  limit(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC, limits.inner);
  op.finalize("a product");
  settings_.push_back(std::move(how));
  operations_.push_back(std::move(op));
}

void Graph::reduce(cudnnReduceTensorOp_t operation, Node x, Node y) {
  Descriptor how(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operation);
  how.set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  how.finalize("a reduction's settings");
  Descriptor op(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, of(x));
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, of(y));
  op.set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  op.finalize("a reduction");
  settings_.push_back(std::move(how));
  operations_.push_back(std::move(op));
}

void Graph::reshape(Node x, Node y) {
  Descriptor op(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, of(x));
  op.set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, of(y));
  op.finalize("a reshape");
  operations_.push_back(std::move(op));
}

void Graph::pointwise(cudnnPointwiseMode_t mode, Node x, const Node* b, const Node* t, Node y,
                      cudnnDataType_t math, std::int64_t axis) {
  Descriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, math);
  if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
  how.finalize("a pointwise operation's settings");
  Descriptor op(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, of(x));
  if (b) op.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, of(*b));
  if (t) op.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, of(*t));
  op.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, of(y));
  op.finalize("a pointwise operation");
  settings_.push_back(std::move(how));
  operations_.push_back(std::move(op));
}

Descriptor Graph::finish(cudnnHandle_t handle) {
  std::vector<cudnnBackendDescriptor_t> operations;
  for (const Descriptor& op : operations_) operations.push_back(op.get());
  Descriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (handle) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            static_cast<std::int64_t>(operations.size()), operations.data());
  graph.finalize("the graph");
  return graph;
}

cudnnDataType_t cudnn_type(DType dtype) {
  return dtype == DType::bf16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
}

// What forward and backward have in common.
class AttentionGraph {
 public:
  explicit AttentionGraph(const CudnnAttentionKey& key)
      : key_(key), type_(cudnn_type(key.dtype)), d_(key.head_dim) {
    if (!key.lengths) return;
    const auto lengths = [&](Uid uid) {
      return graph_.tensor(uid, CUDNN_DATA_INT32, {key.batch, 1, 1, 1}, {1, 1, 1, 1});
    };
    query_lengths_ = lengths(kQueryLengths);
    key_lengths_ = lengths(kKeyLengths);
  }

  Descriptor forward(cudnnHandle_t handle);
  Descriptor backward(cudnnHandle_t handle);

 private:
  // [batch, heads, length, head_dim] over somebody's strides, or the same with rows and columns
  // exchanged.
  Node rows(Uid uid, std::int64_t length, CudnnStrides s) {
    const std::optional<Node> offsets = offsets_of(uid);
    return graph_.tensor(uid, type_, {key_.batch, key_.heads, length, d_}, {s.batch, d_, s.row, 1},
                         offsets ? &*offsets : nullptr);
  }
  Node columns(Uid uid, std::int64_t length, CudnnStrides s) {
    const std::optional<Node> offsets = offsets_of(uid);
    if (uid == kK) key_offsets_ = offsets;
    return graph_.tensor(uid, type_, {key_.batch, key_.heads, d_, length}, {s.batch, d_, 1, s.row},
                         offsets ? &*offsets : nullptr);
  }
  // One number a query.
  Node sums(Uid uid) {
    if (!key_.packed)
      return graph_.tensor(uid, CUDNN_DATA_FLOAT, per_query(), kernels::packed(per_query()));
    if (!sum_offsets_) sum_offsets_ = offsets_of(kLogSumExp);
    return graph_.tensor(uid, CUDNN_DATA_FLOAT, per_query(),
                         {key_.queries * key_.heads, 1, key_.heads, 1}, &*sum_offsets_);
  }
  std::optional<Node> offsets_of(Uid uid) {
    if (!key_.packed) return {};
    return graph_.tensor(kOffsets + offset_index(uid), CUDNN_DATA_INT32, {key_.batch + 1, 1, 1, 1},
                         {1, 1, 1, 1});
  }
  Sizes scores() const { return {key_.batch, key_.heads, key_.queries, key_.keys}; }
  Sizes per_query() const { return {key_.batch, key_.heads, key_.queries, 1}; }
  Node causal(Node x);
  Node within_lengths(Node x);
  Node index(Node x, std::int64_t axis, cudnnDataType_t math);
  Node only_where(Node seen, Node x);
  const Node* queries() const { return query_lengths_ ? &*query_lengths_ : nullptr; }
  const Node* keys() const { return key_lengths_ ? &*key_lengths_ : nullptr; }
  // xᵀ of scores in the type of the tensors, as the product for gradients of keys takes it.
  Node transposed(Node x) {
    const std::int64_t q = key_.queries, k = key_.keys;
    const Node y =
        graph_.temporary({key_.batch, key_.heads, k, q}, {key_.heads * q * k, q * k, 1, k}, type_);
    graph_.reshape(x, y);
    return y;
  }

  const CudnnAttentionKey& key_;
  cudnnDataType_t type_;
  std::int64_t d_;
  Graph graph_;
  std::optional<Node> query_lengths_, key_lengths_;  // i32 [batch, 1, 1, 1]
  std::optional<Node> sum_offsets_, key_offsets_;    // of packed sequences
};

// Of each element, its place along the axis.
Node AttentionGraph::index(Node x, std::int64_t axis, cudnnDataType_t math) {
  const Node y = graph_.temporary(x.sizes, CUDNN_DATA_INT32);
  graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, nullptr, y, math, axis);
  return y;
}

// x where it is seen, -inf elsewhere.
Node AttentionGraph::only_where(Node seen, Node x) {
  const Node hidden = graph_.value(kMinusInfinity, CUDNN_DATA_FLOAT), y = graph_.temporary(x.sizes);
  graph_.pointwise(CUDNN_POINTWISE_BINARY_SELECT, x, &hidden, &seen, y);
  return y;
}

// x where query and key are within their lengths, -inf elsewhere.
Node AttentionGraph::within_lengths(Node x) {
  const Node row = index(x, 2, CUDNN_DATA_INT32), column = index(x, 3, CUDNN_DATA_INT32);
  const auto boolean = [&](cudnnPointwiseMode_t mode, Node a, Node b) {
    const Node y = graph_.temporary(x.sizes, CUDNN_DATA_BOOLEAN);
    graph_.pointwise(mode, a, &b, nullptr, y, CUDNN_DATA_BOOLEAN);
    return y;
  };
  const Node in_row = boolean(CUDNN_POINTWISE_CMP_LT, row, *query_lengths_),
             in_column = boolean(CUDNN_POINTWISE_CMP_LT, column, *key_lengths_);
  return only_where(boolean(CUDNN_POINTWISE_LOGICAL_AND, in_row, in_column), x);
}

// x where key <= query + keys - queries, -inf elsewhere.
Node AttentionGraph::causal(Node x) {
  Node row = index(x, 2, CUDNN_DATA_FLOAT);
  const Node column = index(x, 3, CUDNN_DATA_FLOAT);
  if (key_.queries != key_.keys) {
    const auto shifted = [&](cudnnPointwiseMode_t mode, Uid uid) {
      const Node by = graph_.value(uid, CUDNN_DATA_INT32),
                 y = graph_.temporary(x.sizes, CUDNN_DATA_INT32);
      graph_.pointwise(mode, row, &by, nullptr, y, CUDNN_DATA_INT32);
      row = y;
    };
    shifted(CUDNN_POINTWISE_ADD, kKeys);
    shifted(CUDNN_POINTWISE_SUB, kQueries);
  }
  const Node seen = graph_.temporary(x.sizes, CUDNN_DATA_BOOLEAN);
  graph_.pointwise(CUDNN_POINTWISE_CMP_GE, row, &column, nullptr, seen, CUDNN_DATA_BOOLEAN);
  return only_where(seen, x);
}

Descriptor AttentionGraph::forward(cudnnHandle_t handle) {
  const Node q = rows(kQ, key_.queries, key_.q), kt = columns(kK, key_.keys, key_.k),
             v = rows(kV, key_.keys, key_.v), out = rows(kOut, key_.queries, key_.out);
  Node s = graph_.temporary(scores());
  graph_.matmul(q, kt, s, {.rows = queries(), .columns = keys()});
  s = graph_.pointwise(CUDNN_POINTWISE_MUL, s, graph_.value(kScale, CUDNN_DATA_FLOAT));
  if (key_.lengths) s = within_lengths(s);
  if (key_.causal) s = causal(s);
  const Node largest = graph_.temporary(per_query()), sum = graph_.temporary(per_query());
  graph_.reduce(CUDNN_REDUCE_TENSOR_MAX, s, largest);
  const Node e =
      graph_.pointwise(CUDNN_POINTWISE_EXP, graph_.pointwise(CUDNN_POINTWISE_SUB, s, largest));
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, e, sum);
  const Node log = graph_.pointwise(CUDNN_POINTWISE_LOG, sum), stats = sums(kLogSumExp);
  graph_.pointwise(CUDNN_POINTWISE_ADD, largest, &log, nullptr, stats);
  const Node p = graph_.temporary(scores(), type_);
  graph_.pointwise(CUDNN_POINTWISE_DIV, e, &sum, nullptr, p);
  graph_.matmul(p, v, out, {.rows = queries(), .inner = keys()});
  return graph_.finish(handle);
}

Descriptor AttentionGraph::backward(cudnnHandle_t handle) {
  const Node q = rows(kQ, key_.queries, key_.q), kt = columns(kK, key_.keys, key_.k),
             vt = columns(kV, key_.keys, key_.v), out = rows(kOut, key_.queries, key_.out),
             dout = rows(kDOut, key_.queries, key_.dout), dq = rows(kDQ, key_.queries, key_.dq),
             dk = rows(kDK, key_.keys, key_.dk), dv = rows(kDV, key_.keys, key_.dv),
             scale = graph_.value(kScale, CUDNN_DATA_FLOAT), log_sum_exp = sums(kLogSumExp);
  // delta = sum over head_dim of dout·out; the product with 1 is where dropout's scale would be.
  const Node dot = graph_.temporary(per_query()), delta = sums(kDelta),
             one = graph_.value(kOne, CUDNN_DATA_FLOAT);
  graph_.reduce(CUDNN_REDUCE_TENSOR_ADD, graph_.pointwise(CUDNN_POINTWISE_MUL, dout, out), dot);
  graph_.pointwise(CUDNN_POINTWISE_MUL, dot, &one, nullptr, delta);

  Node s = graph_.temporary(scores());
  graph_.matmul(q, kt, s, {.rows = queries(), .columns = keys()});
  s = graph_.pointwise(CUDNN_POINTWISE_MUL, s, scale);
  if (key_.lengths) s = within_lengths(s);
  s = graph_.pointwise(CUDNN_POINTWISE_SUB, s, log_sum_exp);
  if (key_.causal) s = causal(s);
  const Node p = graph_.pointwise(CUDNN_POINTWISE_EXP, s);
  graph_.matmul(transposed(p), dout, dv, {.rows = keys(), .inner = queries()});

  const Node dp = graph_.temporary(scores());
  graph_.matmul(dout, vt, dp, {.rows = queries(), .columns = keys()});
  const Node ds = graph_.pointwise(
      CUDNN_POINTWISE_MUL,
      graph_.pointwise(CUDNN_POINTWISE_MUL, graph_.pointwise(CUDNN_POINTWISE_SUB, dp, delta), p),
      scale);
  graph_.matmul(transposed(ds), q, dk, {.rows = keys(), .inner = queries()});

  // dq as a product of its own, instead of sums with atomics, is what makes it deterministic.
  const Node k =
      graph_.temporary({key_.batch, key_.heads, key_.keys, d_}, {key_.k.batch, d_, key_.k.row, 1},
                       type_, key_.packed ? &*key_offsets_ : nullptr);
  graph_.reshape(kt, k);
  graph_.matmul(ds, k, dq, {.rows = queries(), .inner = keys()});
  return graph_.finish(handle);
}

}  // namespace

struct CudnnAttention::Plan {
  CudnnAttentionKey key;
  Descriptor plan;
  std::int64_t workspace = 0;
  std::string refusal;
};

struct CudnnAttention::Impl {
  cudnnHandle_t handle = nullptr;
  Descriptor device;  // where there is no handle
  std::map<CudnnAttentionKey, std::unique_ptr<Plan>> plans;

  ~Impl() {
    plans.clear();
    if (handle) (void)cudnnDestroy(handle);
  }
  void make(Plan& plan);
  bool take(Plan& plan, Descriptor& config);
};

// Numerical notes of a configuration's engine, and its number.
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

// Whether the configuration becomes a plan; otherwise plan.refusal says why not.
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
    plan.refusal = refusal.why;
    return false;
  }
}

void CudnnAttention::Impl::make(Plan& plan) {
  AttentionGraph attention(plan.key);
  Descriptor graph = plan.key.backward ? attention.backward(handle) : attention.forward(handle);
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
    throw_error(ErrorCode::unavailable, "cuDNN: {}", refusal.why);
  }
}

CudnnAttention::~CudnnAttention() = default;

const CudnnAttention::Plan& CudnnAttention::plan(const CudnnAttentionKey& key) {
  std::unique_ptr<Plan>& found = impl_->plans[key];
  if (found) return *found;
  found = std::make_unique<Plan>();
  found->key = key;
  try {
    if (const std::size_t version = cudnnGetVersion(); version < kOldest)
      throw Refusal{fmt::format("cuDNN {} is older than {}", version, kOldest)};
    impl_->make(*found);
  } catch (const Refusal& refusal) {
    found->refusal = refusal.why;
  }
  return *found;
}

const std::string& CudnnAttention::refusal(const Plan& plan) { return plan.refusal; }
std::size_t CudnnAttention::workspace_bytes(const Plan& plan) {
  return static_cast<std::size_t>(plan.workspace);
}

void CudnnAttention::run(const Plan& plan, const CudnnAttentionPointers& p, float scale,
                         void* workspace, cudaStream_t stream) {
  std::vector<std::int64_t> uids;
  std::vector<void*> pointers;
  const auto pass = [&](Uid uid, const void* pointer) {
    uids.push_back(uid);
    pointers.push_back(const_cast<void*>(pointer));
  };
  // Values are read from the host while the call is queued.
  float one = 1, minus_infinity = -std::numeric_limits<float>::infinity();
  auto queries = static_cast<std::int32_t>(plan.key.queries),
       keys = static_cast<std::int32_t>(plan.key.keys);
  pass(kQ, p.q), pass(kK, p.k), pass(kV, p.v), pass(kOut, p.out), pass(kScale, &scale);
  pass(kLogSumExp, p.log_sum_exp);
  if (plan.key.causal || plan.key.lengths) pass(kMinusInfinity, &minus_infinity);
  if (plan.key.lengths) pass(kQueryLengths, p.query_lengths), pass(kKeyLengths, p.key_lengths);
  for (const Uid uid : {kQ, kK, kV, kOut, kLogSumExp, kDOut, kDQ, kDK, kDV})
    if (const std::int64_t i = offset_index(uid);
        plan.key.packed && (i < 4 || i == 8 || plan.key.backward))
      pass(static_cast<Uid>(kOffsets + i), p.offsets[static_cast<std::size_t>(i)]);
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
    accept(cudnnSetStream(impl_->handle, stream), "choosing a stream");
    accept(cudnnBackendExecute(impl_->handle, plan.plan.get(), pack.get()), "running a plan");
  } catch (const Refusal& refusal) {
    throw_error(ErrorCode::internal, "attention by cuDNN: {}", refusal.why);
  }
}

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("cuDNN {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace shoal::kernels
