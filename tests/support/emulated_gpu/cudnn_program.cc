#include "cudnn_program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "stream.h"
#include <fmt/format.h>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::emulated_gpu {
namespace {

using Sizes = std::array<std::int64_t, 4>;
constexpr float kNobodyKnows = std::numeric_limits<float>::quiet_NaN();

std::int64_t count_of(const Sizes& s) { return s[0] * s[1] * s[2] * s[3]; }

bool broadcasts(const Sizes& from, const Sizes& to) {
  for (std::size_t i = 0; i < 4; ++i)
    if (from[i] != to[i] && from[i] != 1) return false;
  return true;
}

std::size_t bytes_of(cudnnDataType_t type) {
  switch (type) {
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
      return 2;
    case CUDNN_DATA_INT64:
      return 8;
    case CUDNN_DATA_BOOLEAN:
      return 1;
    default:
      return 4;
  }
}

float rounded(cudnnDataType_t type, float x) {
  if (type == CUDNN_DATA_BFLOAT16) return static_cast<float>(bfloat16(x));
  if (type == CUDNN_DATA_HALF) return static_cast<float>(float16(x));
  return x;
}

float element(cudnnDataType_t type, const void* from, std::int64_t i) {
  switch (type) {
    case CUDNN_DATA_BFLOAT16:
      return static_cast<float>(static_cast<const bfloat16*>(from)[i]);
    case CUDNN_DATA_HALF:
      return static_cast<float>(static_cast<const float16*>(from)[i]);
    case CUDNN_DATA_INT32:
      return static_cast<float>(static_cast<const std::int32_t*>(from)[i]);
    default:
      return static_cast<const float*>(from)[i];
  }
}

void put_element(cudnnDataType_t type, void* to, std::int64_t i, float value) {
  if (type == CUDNN_DATA_BFLOAT16)
    static_cast<bfloat16*>(to)[i] = bfloat16(value);
  else if (type == CUDNN_DATA_HALF)
    static_cast<float16*>(to)[i] = float16(value);
  else
    static_cast<float*>(to)[i] = value;
}

// All elements of a tensor in the order of its sizes. `written` marks those that an operation has
// written.
struct Dense {
  Sizes sizes{};
  std::vector<float> values;
  std::vector<char> written;

  explicit Dense(const Sizes& of)
      : sizes(of),
        values(static_cast<std::size_t>(count_of(of)), kNobodyKnows),
        written(values.size(), 0) {}
  std::size_t at(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) const {
    const auto in = [&](std::size_t axis, std::int64_t k) { return sizes[axis] == 1 ? 0 : k; };
    return static_cast<std::size_t>(
        ((in(0, b) * sizes[1] + in(1, h)) * sizes[2] + in(2, i)) * sizes[3] + in(3, j));
  }
  void put(std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, float value) {
    values[at(b, h, i, j)] = value;
    written[at(b, h, i, j)] = 1;
  }
};

template <class Each>
void each(const Sizes& s, const Each& call) {
  for (std::int64_t b = 0; b < s[0]; ++b)
    for (std::int64_t h = 0; h < s[1]; ++h)
      for (std::int64_t i = 0; i < s[2]; ++i)
        for (std::int64_t j = 0; j < s[3]; ++j) call(b, h, i, j);
}

// One execution of a program.
class Run {
 public:
  explicit Run(const CudnnPointers& call) : call_(call) {}

  void operator()(const CudnnOperation& op) {
    switch (op.kind) {
      case CudnnOperation::Kind::matmul:
        return matmul(op);
      case CudnnOperation::Kind::pointwise:
        return pointwise(op);
      case CudnnOperation::Kind::reduction:
        return reduce(op);
      case CudnnOperation::Kind::reshape:
        same_memory_[op.y.uid] =
            same_memory_.contains(op.x.uid) ? same_memory_[op.x.uid] : op.x.uid;
    }
  }

 private:
  // An element's index in its tensor's memory; negative: the position belongs to another batch row.
  std::int64_t place(const CudnnTensor& t, std::int64_t b, std::int64_t h, std::int64_t i,
                     std::int64_t j) const {
    const std::int64_t within = h * t.strides[1] + i * t.strides[2] + j * t.strides[3];
    if (!t.ragged) return b * t.strides[0] + within;
    const void* offsets = call_.memory.at(t.ragged->uid);
    const auto offset = [&](std::int64_t k) {
      return t.ragged->type == CUDNN_DATA_INT64
                 ? static_cast<const std::int64_t*>(offsets)[k]
                 : std::int64_t{static_cast<const std::int32_t*>(offsets)[k]};
    };
    return offset(b) + within < offset(b + 1) ? offset(b) + within : -1;
  }

  Dense load(const CudnnTensor& t) {
    Dense dense(t.sizes);
    if (t.by_value) {
      dense.values[0] = call_.values.at(t.uid);
      return dense;
    }
    const auto alias = same_memory_.find(t.uid);
    const std::int64_t uid = alias == same_memory_.end() ? t.uid : alias->second;
    const auto real = call_.memory.find(uid);
    const std::vector<float>* kept = real == call_.memory.end() ? &virtual_.at(uid) : nullptr;
    each(t.sizes, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::int64_t from = place(t, b, h, i, j);
      if (from < 0) return;
      dense.values[dense.at(b, h, i, j)] =
          kept ? rounded(t.type, kept->at(static_cast<std::size_t>(from)))
               : element(t.type, real->second, from);
    });
    return dense;
  }

  void store(const CudnnTensor& t, const Dense& dense) {
    const auto real = call_.memory.find(t.uid);
    std::vector<float>* kept = nullptr;
    if (real == call_.memory.end()) {
      std::int64_t last = 0;
      for (std::size_t i = 0; i < 4; ++i) last += (t.sizes[i] - 1) * t.strides[i];
      kept = &virtual_[t.uid];
      kept->assign(static_cast<std::size_t>(last + 1), kNobodyKnows);
    }
    each(t.sizes, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const std::int64_t to = place(t, b, h, i, j);
      if (to < 0 || !dense.written[dense.at(b, h, i, j)]) return;
      const float value = dense.values[dense.at(b, h, i, j)];
      if (kept)
        kept->at(static_cast<std::size_t>(to)) = rounded(t.type, value);
      else
        put_element(t.type, real->second, to, value);
    });
  }

  // The limit of a batch row.
  std::int64_t limit(const std::optional<CudnnTensor>& by, std::int64_t b,
                     std::int64_t most) const {
    if (!by) return most;
    const std::int64_t said = static_cast<const std::int32_t*>(call_.memory.at(by->uid))[b];
    if (said < 0 || said > most)
      fail(fmt::format("cuDNN: length {} of batch row {}, where there are {}", said, b, most));
    return said;
  }

  void matmul(const CudnnOperation& op) {
    Dense a = load(op.x);
    const Dense c = load(*op.b);
    for (float& value : a.values) value = rounded(op.b->type, value);  // as tensor cores take it
    Dense y(op.y.sizes);
    for (std::int64_t b = 0; b < y.sizes[0]; ++b) {
      const std::int64_t rows = limit(op.rows, b, y.sizes[2]),
                         columns = limit(op.columns, b, y.sizes[3]),
                         inner = limit(op.inner, b, a.sizes[3]);
      for (std::int64_t h = 0; h < y.sizes[1]; ++h)
        for (std::int64_t i = 0; i < rows; ++i)
          for (std::int64_t j = 0; j < columns; ++j) {
            float sum = 0;
            for (std::int64_t k = 0; k < inner; ++k)
              sum += a.values[a.at(b, h, i, k)] * c.values[c.at(b, h, k, j)];
            y.put(b, h, i, j, sum);
          }
    }
    store(op.y, y);
  }

  void pointwise(const CudnnOperation& op) {
    if (op.mode == CUDNN_POINTWISE_GEN_INDEX) {
      Dense y(op.y.sizes);
      each(y.sizes, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
        const std::int64_t along[] = {b, h, i, j};
        y.put(b, h, i, j, static_cast<float>(along[op.axis]));
      });
      return store(op.y, y);
    }
    const Dense x = load(op.x);
    const Dense other = op.b ? load(*op.b) : Dense({1, 1, 1, 1});
    const Dense chosen = op.t ? load(*op.t) : Dense({1, 1, 1, 1});
    Dense y(op.y.sizes);
    each(y.sizes, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      y.put(b, h, i, j,
            value(op.mode, x.values[x.at(b, h, i, j)], other.values[other.at(b, h, i, j)],
                  chosen.values[chosen.at(b, h, i, j)]));
    });
    store(op.y, y);
  }

  static float value(cudnnPointwiseMode_t mode, float x, float b, float t) {
    switch (mode) {
      case CUDNN_POINTWISE_ADD:
        return x + b;
      case CUDNN_POINTWISE_SUB:
        return x - b;
      case CUDNN_POINTWISE_MUL:
        return x * b;
      case CUDNN_POINTWISE_DIV:
        return x / b;
      case CUDNN_POINTWISE_EXP:
        return std::exp(x);
      case CUDNN_POINTWISE_LOG:
        return std::log(x);
      case CUDNN_POINTWISE_CMP_GE:
        return x >= b ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_CMP_LT:
        return x < b ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_LOGICAL_AND:
        return x != 0 && b != 0 ? 1.0f : 0.0f;
      case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
      case CUDNN_POINTWISE_GEN_INDEX:
        break;
    }
    return kNobodyKnows;
  }

  void reduce(const CudnnOperation& op) {
    const Dense x = load(op.x);
    Dense y(op.y.sizes);
    const bool adds = op.reduction == CUDNN_REDUCE_TENSOR_ADD;
    each(x.sizes, [&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j) {
      const float next = x.values[x.at(b, h, i, j)];
      const bool first = !y.written[y.at(b, h, i, j)];
      const float before = y.values[y.at(b, h, i, j)];
      const float larger = before > next || std::isnan(before) ? before : next;
      y.put(b, h, i, j, first ? next : adds ? before + next : larger);
    });
    store(op.y, y);
  }

  const CudnnPointers& call_;
  std::map<std::int64_t, std::vector<float>> virtual_;
  std::map<std::int64_t, std::int64_t> same_memory_;  // tensors that a reshape aliases
};

}  // namespace

bool CudnnTensor::same_as(const CudnnTensor& other) const {
  return uid == other.uid && type == other.type && sizes == other.sizes &&
         strides == other.strides && is_virtual == other.is_virtual && by_value == other.by_value &&
         (ragged ? ragged->uid : 0) == (other.ragged ? other.ragged->uid : 0);
}

std::string CudnnOperation::complaint() const {
  switch (kind) {
    case Kind::matmul: {
      const bool fits = x.sizes[0] == y.sizes[0] && b->sizes[0] == y.sizes[0] &&
                        x.sizes[1] == y.sizes[1] && b->sizes[1] == y.sizes[1] &&
                        x.sizes[2] == y.sizes[2] && b->sizes[3] == y.sizes[3] &&
                        x.sizes[3] == b->sizes[2];
      if (!fits) return "a product's sizes do not fit";
      const bool scores = x.is_virtual && x.type == CUDNN_DATA_FLOAT;
      if ((x.type != b->type && !scores) || bytes_of(b->type) != 2)
        return "a product's operands are of 16 bits, or scores on the left";
      for (const auto* by : {&rows, &columns, &inner})
        if (*by && ((*by)->type != CUDNN_DATA_INT32 || (*by)->by_value ||
                    (*by)->sizes != Sizes{y.sizes[0], 1, 1, 1}))
          return "a product's limits are i32 [batch, 1, 1, 1] in memory";
      return {};
    }
    case Kind::pointwise: {
      const bool selects = mode == CUDNN_POINTWISE_BINARY_SELECT, index = axis >= 0,
                 alone = mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG ||
                         mode == CUDNN_POINTWISE_GEN_INDEX;
      if (b.has_value() == alone || t.has_value() != selects)
        return "a pointwise operation has other operands";
      if (index != (mode == CUDNN_POINTWISE_GEN_INDEX) || axis > 3)
        return "only an index has an axis";
      if (x.sizes != y.sizes || (b && !broadcasts(b->sizes, y.sizes)) || (t && t->sizes != y.sizes))
        return "a pointwise operation's sizes do not fit";
      const bool asks = (mode >= CUDNN_POINTWISE_CMP_GE && mode <= CUDNN_POINTWISE_LOGICAL_AND);
      if (asks != (y.type == CUDNN_DATA_BOOLEAN) || (t && t->type != CUDNN_DATA_BOOLEAN))
        return "what is asked is answered by a boolean";
      return {};
    }
    case Kind::reduction:
      return broadcasts(y.sizes, x.sizes) ? "" : "a reduction's sizes do not fit";
    case Kind::reshape:
      return count_of(x.sizes) == count_of(y.sizes) && y.is_virtual
                 ? ""
                 : "a reshape's sizes do not fit";
  }
  return {};
}

std::string CudnnProgram::note(const CudnnTensor& tensor) {
  if (tensor.ragged)
    if (std::string why = note(*tensor.ragged); !why.empty()) return why;
  const auto [found, fresh] = tensors_.try_emplace(tensor.uid, tensor);
  if (!fresh && !found->second.same_as(tensor))
    return fmt::format("tensor {} is described in two ways", tensor.uid);
  return {};
}

std::string CudnnProgram::add(const CudnnOperation& op) {
  for (const auto* input : {&op.b, &op.t, &op.rows, &op.columns, &op.inner})
    if (*input)
      if (std::string why = note(**input); !why.empty()) return why;
  if (op.x.is_virtual && !tensors_.contains(op.x.uid))
    return fmt::format("tensor {} is read before it is written", op.x.uid);
  if (std::string why = note(op.x); !why.empty()) return why;
  const bool known = tensors_.contains(op.y.uid);
  if (known && op.y.is_virtual) return fmt::format("tensor {} is written twice", op.y.uid);
  operations_.push_back(op);
  return note(op.y);
}

std::string CudnnProgram::bind(std::int64_t uid, void* pointer, CudnnPointers& call) const {
  const auto found = tensors_.find(uid);
  if (found == tensors_.end() || found->second.is_virtual)
    return fmt::format("the graph asks for no tensor {}", uid);
  const CudnnTensor& tensor = found->second;
  if (!pointer) return fmt::format("tensor {} is null", uid);
  if (tensor.by_value) {
    call.values[uid] = element(tensor.type, pointer, 0);
    return {};
  }
  if (reinterpret_cast<std::uintptr_t>(pointer) % static_cast<std::uintptr_t>(tensor.alignment))
    return fmt::format("tensor {} is not aligned to {} bytes", uid, tensor.alignment);
  call.memory[uid] = pointer;
  return {};
}

std::string CudnnProgram::missing(const CudnnPointers& call) const {
  for (const auto& [uid, tensor] : tensors_)
    if (!tensor.is_virtual && !call.memory.contains(uid) && !call.values.contains(uid))
      return fmt::format("the call passes no tensor {}", uid);
  return {};
}

bool CudnnProgram::is_gradient() const {
  return std::ranges::count(operations_, CudnnOperation::Kind::matmul, &CudnnOperation::kind) > 2;
}

std::int64_t CudnnProgram::workspace() const { return is_gradient() ? 4096 : 256; }

void CudnnProgram::run(const CudnnPointers& call) const {
  Run run(call);
  for (const CudnnOperation& operation : operations_) run(operation);
}

}  // namespace shoal::emulated_gpu
