// cuDNN's backend interface: descriptors, graphs of operations, and plans that run a graph's
// operations one after another. It accepts any graph of these operations, while the library
// supports only some chains. Memory that an operation need not write stays unwritten, and memory
// that must not be read is NaN.
#include "cudnn.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cudnn_faults.h"
#include "cudnn_program.h"
#include "settings.h"
#include "stream.h"
#include <fmt/format.h>

using namespace shoal::emulated_gpu;

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

namespace {

thread_local std::string last_error;

struct Wrong {
  cudnnStatus_t status;
  std::string why;
};
[[noreturn]] void wrong(std::string why) { throw Wrong{CUDNN_STATUS_BAD_PARAM, std::move(why)}; }
void need(bool fine, const char* what) {
  if (!fine) wrong(what);
}

thread_local std::map<CudnnCall, cudnnStatus_t> failing;
std::atomic<std::int64_t> plans_alive{0}, plans_made{0};

void may_fail(CudnnCall call) {
  const auto told = failing.extract(call);
  if (!told) return;
  (void)failed(cudaErrorMemoryAllocation);
  throw Wrong{told.mapped(), "a test's fault"};
}

template <class Call>
cudnnStatus_t answered(const Call& call) {
  try {
    call();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Wrong& wrong) {
    last_error = wrong.why;
    return wrong.status;
  }
}

std::size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    default:
      return sizeof(int);  // enumerations
  }
}

// A graph and one engine that computes it.
struct Engine {
  std::shared_ptr<const CudnnProgram> program;
  std::int64_t number = -1;
  bool deterministic = true;
};

struct Attribute {
  cudnnBackendAttributeType_t type;
  std::int64_t count;
  std::vector<std::byte> bytes;
};

struct Descriptor {
  explicit Descriptor(cudnnBackendDescriptorType_t type_in) : type(type_in) {}
  ~Descriptor() {
    if (final && type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) --plans_alive;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  const Attribute& attribute(cudnnBackendAttributeName_t name,
                             cudnnBackendAttributeType_t wanted) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) wrong(fmt::format("attribute {} is not set", int{name}));
    if (found->second.type != wanted)
      wrong(fmt::format("attribute {} is of another type", int{name}));
    return found->second;
  }
  template <class T>
  std::vector<T> list(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t wanted) const {
    const Attribute& a = attribute(name, wanted);
    std::vector<T> values(static_cast<std::size_t>(a.count));
    if (!values.empty())
      std::memcpy(static_cast<void*>(values.data()), a.bytes.data(), a.bytes.size());
    return values;
  }
  template <class T>
  T one(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t wanted) const {
    const std::vector<T> values = list<T>(name, wanted);
    if (values.size() != 1)
      wrong(fmt::format("attribute {} has {} values", int{name}, values.size()));
    return values[0];
  }
  std::int64_t integer(cudnnBackendAttributeName_t name) const {
    return one<std::int64_t>(name, CUDNN_TYPE_INT64);
  }
  const Descriptor& descriptor(cudnnBackendAttributeName_t name,
                               cudnnBackendDescriptorType_t wanted) const {
    return checked(one<Descriptor*>(name, CUDNN_TYPE_BACKEND_DESCRIPTOR), wanted);
  }
  static const Descriptor& checked(const Descriptor* found, cudnnBackendDescriptorType_t wanted) {
    need(found && found->type == wanted, "a descriptor of another type");
    need(found->final, "a descriptor that is not finalized");
    return *found;
  }
  const CudnnTensor& tensor_of(cudnnBackendAttributeName_t name) const {
    return descriptor(name, CUDNN_BACKEND_TENSOR_DESCRIPTOR).tensor;
  }
  std::optional<CudnnTensor> optional_tensor(cudnnBackendAttributeName_t name) const {
    return has(name) ? std::optional(tensor_of(name)) : std::nullopt;
  }

  void finalize();
  void finalize_tensor();
  void finalize_operation();
  void finalize_graph();

  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, Attribute> attributes;
  CudnnTensor tensor;
  CudnnOperation operation;
  Engine engine;  // used by graphs, heuristics, configurations, engines and plans
};

void Descriptor::finalize_tensor() {
  tensor.uid = integer(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  tensor.type = one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE);
  const auto four = [&](cudnnBackendAttributeName_t name, std::array<std::int64_t, 4>& to) {
    const auto values = list<std::int64_t>(name, CUDNN_TYPE_INT64);
    need(values.size() == 4, "tensors have four dimensions here");
    std::copy(values.begin(), values.end(), to.begin());
    need(std::ranges::all_of(to, [](std::int64_t n) { return n > 0; }), "a size or stride below 1");
  };
  four(CUDNN_ATTR_TENSOR_DIMENSIONS, tensor.sizes);
  four(CUDNN_ATTR_TENSOR_STRIDES, tensor.strides);
  tensor.alignment = integer(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  const auto flag = [&](cudnnBackendAttributeName_t name) {
    return has(name) && one<std::uint8_t>(name, CUDNN_TYPE_BOOLEAN) != 0;
  };
  tensor.is_virtual = flag(CUDNN_ATTR_TENSOR_IS_VIRTUAL);
  tensor.by_value = flag(CUDNN_ATTR_TENSOR_IS_BY_VALUE);
  if (!has(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC)) return;
  const CudnnTensor& offsets = tensor_of(CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC);
  need(offsets.sizes == std::array<std::int64_t, 4>{tensor.sizes[0] + 1, 1, 1, 1},
       "ragged offsets are one more than batch rows");
  need(offsets.type == CUDNN_DATA_INT32 || offsets.type == CUDNN_DATA_INT64,
       "ragged offsets are integers");
  tensor.ragged = std::make_shared<const CudnnTensor>(offsets);
}

void Descriptor::finalize_operation() {
  CudnnOperation& op = operation;
  switch (type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      op.kind = CudnnOperation::Kind::matmul;
      op.x = tensor_of(CUDNN_ATTR_OPERATION_MATMUL_ADESC);
      op.b = tensor_of(CUDNN_ATTR_OPERATION_MATMUL_BDESC);
      op.y = tensor_of(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
      (void)descriptor(CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
      op.rows = optional_tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC);
      op.columns = optional_tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC);
      op.inner = optional_tensor(CUDNN_ATTR_OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC);
      break;
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      const Descriptor& how = descriptor(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
                                         CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
      op.kind = CudnnOperation::Kind::pointwise;
      op.mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
      op.axis = how.has(CUDNN_ATTR_POINTWISE_AXIS) ? how.integer(CUDNN_ATTR_POINTWISE_AXIS) : -1;
      op.x = tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
      op.b = optional_tensor(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
      op.t = optional_tensor(CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
      op.y = tensor_of(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      op.kind = CudnnOperation::Kind::reduction;
      op.reduction =
          descriptor(CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_BACKEND_REDUCTION_DESCRIPTOR)
              .one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR,
                                          CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
      op.x = tensor_of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
      op.y = tensor_of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
      break;
    default:
      op.kind = CudnnOperation::Kind::reshape;
      op.x = tensor_of(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
      op.y = tensor_of(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
  }
  if (const std::string why = op.complaint(); !why.empty()) wrong(why);
}

void Descriptor::finalize_graph() {
  need(has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE), "a graph without a handle");
  auto program = std::make_shared<CudnnProgram>();
  for (const Descriptor* op :
       list<Descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR)) {
    need(op && op->final && op->operation.y.uid != 0, "an operation that is not finalized");
    if (const std::string why = program->add(op->operation); !why.empty()) wrong(why);
  }
  engine.program = std::move(program);
}

void Descriptor::finalize() {
  need(!final, "it is finalized");
  switch (type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
      finalize_tensor();
      break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      finalize_operation();
      break;
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
      finalize_graph();
      break;
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
      engine =
          descriptor(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)
              .engine;
      break;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
      may_fail(CudnnCall::plan);
      need(has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE), "a plan without a handle");
      engine =
          descriptor(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
              .engine;
      ++plans_alive;
      ++plans_made;
      break;
    case CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR:
      wrong("devices that are only described are not emulated");
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
      wrong("heuristics make it");
    default:
      break;
  }
  final = true;
}

// The engines of a graph, the fastest first. A gradient's fastest engine adds in no fixed order.
std::vector<Engine> engines_of(const Engine& graph) {
  Engine quick{graph.program, 5, false}, ordered{graph.program, 6, true};
  return graph.program->is_gradient() ? std::vector{quick, ordered} : std::vector{ordered};
}

void get(const Descriptor& from, cudnnBackendAttributeName_t name, std::int64_t room,
         std::int64_t* count, void* values) {
  need(from.final && count, "it is not finalized");
  const auto give = [&](auto value) {
    need(room >= 1 && values, "no room");
    std::memcpy(values, &value, sizeof value);
    *count = 1;
  };
  const auto into = [&](std::int64_t index, cudnnBackendDescriptorType_t type,
                        const Engine& engine) {
    Descriptor* to = static_cast<Descriptor**>(values)[index];
    need(to && to->type == type, "a descriptor of another type");
    to->engine = engine;
    to->final = true;
  };
  switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS: {
      const std::vector<Engine> engines = engines_of(from.engine);
      *count = static_cast<std::int64_t>(engines.size());
      for (std::size_t i = 0; i < engines.size() && static_cast<std::int64_t>(i) < room; ++i)
        into(static_cast<std::int64_t>(i), CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, engines[i]);
      return;
    }
    case CUDNN_ATTR_ENGINECFG_ENGINE:
      need(room == 1, "no room");
      *count = 1;
      return into(0, CUDNN_BACKEND_ENGINE_DESCRIPTOR, from.engine);
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
      return give(from.engine.number);
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      auto* notes = static_cast<cudnnBackendNumericalNote_t*>(values);
      need(room >= 2 && notes, "no room");
      notes[0] = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      notes[1] = CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
      *count = from.engine.deterministic ? 1 : 2;
      return;
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
      return give(from.engine.program->workspace());
    default:
      wrong(fmt::format("attribute {} cannot be read", int{name}));
  }
}

void execute(const cudnnContext& handle, const Descriptor& plan, const Descriptor& pack) {
  const auto uids = pack.list<std::int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64);
  const auto pointers =
      pack.list<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR);
  auto* const workspace = pack.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR);
  need(uids.size() == pointers.size(), "as many pointers as tensors");
  const CudnnProgram& program = *plan.engine.program;
  CudnnPointers call;
  for (std::size_t i = 0; i < uids.size(); ++i)
    if (const std::string why = program.bind(uids[i], pointers[i], call); !why.empty()) wrong(why);
  if (const std::string why = program.missing(call); !why.empty()) wrong(why);
  if (program.workspace() > 0 &&
      (!workspace || reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0))
    wrong("the workspace is missing or not aligned to 16 bytes");
  std::vector<std::uintptr_t> words{reinterpret_cast<std::uintptr_t>(workspace)};
  for (const auto& [uid, pointer] : call.memory)
    words.push_back(reinterpret_cast<std::uintptr_t>(pointer));
  const auto work = [shared = plan.engine.program, call, workspace] {
    // The workspace belongs to the plan during the run, so its previous content is lost.
    std::memset(workspace, 0xff, static_cast<std::size_t>(shared->workspace()));
    shared->run(call);
  };
  if (enqueue(handle.stream, work, "cudnnBackendExecute", words) != cudaSuccess)
    throw Wrong{CUDNN_STATUS_EXECUTION_FAILED, "the launch failed"};
}

Descriptor& of(cudnnBackendDescriptor_t descriptor) {
  need(descriptor != nullptr, "no descriptor");
  return *static_cast<Descriptor*>(descriptor);
}

}  // namespace

namespace shoal::emulated_gpu {
void fail_next(CudnnCall call, cudnnStatus_t status) { failing[call] = status; }
CudnnPlans cudnn_plans() { return {plans_alive, plans_made}; }
}  // namespace shoal::emulated_gpu

std::size_t cudnnGetVersion() { return static_cast<std::size_t>(settings().cudnn); }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS:
      return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM:
      return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
  return "unknown status";
}

void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (bytes == 0) return;
  const std::size_t length = std::min(last_error.size(), bytes - 1);
  std::copy_n(last_error.data(), length, message);
  message[length] = 0;
  last_error.clear();
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  int devices = 0;
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  if (settings().cudnn == 0 || cudaGetDeviceCount(&devices) != cudaSuccess) {
    last_error = "no cuDNN";
    return CUDNN_STATUS_NOT_INITIALIZED;
  }
  return answered([&] {
    may_fail(CudnnCall::create);
    *handle = new cudnnContext;
  });
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  if (!handle) return CUDNN_STATUS_BAD_PARAM;
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* made) {
  if (!made) return CUDNN_STATUS_BAD_PARAM;
  *made = new Descriptor(type);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  delete static_cast<Descriptor*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  return answered([&] { of(descriptor).finalize(); });
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, std::int64_t count,
                                       const void* values) {
  return answered([&] {
    need(!of(descriptor).final, "it is finalized");
    need(count >= 0 && (count == 0 || values), "no values");
    const auto* bytes = static_cast<const std::byte*>(values);
    of(descriptor).attributes[name] = {
        type, count, {bytes, bytes + static_cast<std::size_t>(count) * size_of(type)}};
  });
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t, std::int64_t room,
                                       std::int64_t* count, void* values) {
  return answered([&] { get(of(descriptor), name, room, count, values); });
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t variant_pack) {
  return answered([&] {
    need(handle != nullptr, "no handle");
    may_fail(CudnnCall::execute);
    execute(*handle, Descriptor::checked(&of(plan), CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR),
            Descriptor::checked(&of(variant_pack), CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  });
}
