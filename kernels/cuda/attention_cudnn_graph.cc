// The graphs match flash attention in cuDNN's support matrix. cuDNN recognises the chain product,
// scale, mask, softmax, product (and its gradient) by its form, so the order of operations below is
// fixed. Forward takes k transposed; backward takes k and v transposed.
#include "shoal/kernels/cuda/attention_cudnn_graph.h"

#include <optional>
#include <vector>

namespace shoal::kernels::cudnn {
namespace {

using Sizes = std::array<std::int64_t, 4>;  // [batch, heads, rows, columns]

Sizes packed(const Sizes& s) { return {s[1] * s[2] * s[3], s[2] * s[3], s[3], 1}; }

// A tensor of the graph under construction, as an index into its descriptors.
struct Node {
  std::size_t index = 0;
  Sizes sizes{};
};

// Valid rows, columns and inner elements of a product, one number per batch row; null: all.
struct Limits {
  const Node *rows = nullptr, *columns = nullptr, *inner = nullptr;
};

// Collects operations. Every tensor and operation lives until the graph is final.
class Graph {
 public:
  // ragged: offsets of the batch rows, or null.
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
  // Common forms; the result is a new f32 temporary.
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

// Common parts of forward and backward.
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
  // Tensor [batch, heads, length, head_dim] with the caller's strides; columns() exchanges rows and
  // columns.
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
  // A tensor with one number per query.
  Node sums(Uid uid) {
    if (!key_.packed)
      return graph_.tensor(uid, CUDNN_DATA_FLOAT, per_query(), cudnn::packed(per_query()));
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
  // Transposes scores, in the tensors' dtype, for the products that give the keys' gradients.
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
  std::optional<Node> sum_offsets_, key_offsets_;    // for packed sequences
};

// Position of each element along the axis.
Node AttentionGraph::index(Node x, std::int64_t axis, cudnnDataType_t math) {
  const Node y = graph_.temporary(x.sizes, CUDNN_DATA_INT32);
  graph_.pointwise(CUDNN_POINTWISE_GEN_INDEX, x, nullptr, nullptr, y, math, axis);
  return y;
}

// x where `seen` is true, -inf elsewhere.
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
  // delta = sum over head_dim of dout·out. In cuDNN's form, dropout's scale is a factor here;
  // without dropout it is 1.
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

  // Computing dq as a separate product, instead of atomic sums, makes backward deterministic.
  const Node k =
      graph_.temporary({key_.batch, key_.heads, key_.keys, d_}, {key_.k.batch, d_, key_.k.row, 1},
                       type_, key_.packed ? &*key_offsets_ : nullptr);
  graph_.reshape(kt, k);
  graph_.matmul(ds, k, dq, {.rows = queries(), .inner = keys()});
  return graph_.finish(handle);
}

}  // namespace

Descriptor attention_graph(const CudnnAttentionKey& key, cudnnHandle_t handle) {
  AttentionGraph attention(key);
  return key.backward ? attention.backward(handle) : attention.forward(handle);
}

}  // namespace shoal::kernels::cudnn
