#include "shoal/kernels/cpu/onednn.h"

#include <functional>

#include <omp.h>
#include <oneapi/dnnl/dnnl.hpp>

#include "shoal/kernels/cpu/instruction_set.h"
#include "shoal/kernels/cpu/narrow_product.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

constexpr const char* kThroughF32 = "through f32";

// Sets the number of OpenMP threads. oneDNN reads it from the calling thread, both when it creates
// a primitive and when it runs it.
class Team {
 public:
  explicit Team(int threads) : before_(omp_get_max_threads()) {
#ifdef SHOAL_SERIAL_PARALLEL_FOR
    threads = 1;  // as in parallel_for: ThreadSanitizer cannot see libgomp
#endif
    if (threads != before_) omp_set_num_threads(threads);
    changed_ = threads != before_;
  }
  ~Team() {
    if (changed_) omp_set_num_threads(before_);
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

 private:
  int before_;
  bool changed_;
};

dnnl::memory::data_type data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return dnnl::memory::data_type::f32;
    case DType::bf16:
      return dnnl::memory::data_type::bf16;
    default:
      throw_error(ErrorCode::internal, "oneDNN products of {}", to_string(dtype));
  }
}

dnnl::memory::desc matrix(const GemmProblem& p, std::int64_t rows, std::int64_t columns,
                          DType dtype, bool transposed, std::int64_t leading) {
  if (leading == 0) leading = transposed ? rows : columns;
  const std::int64_t row = transposed ? 1 : leading, column = transposed ? leading : 1;
  if (p.groups == 1) return {{rows, columns}, data_type(dtype), {row, column}};
  return {{p.groups, rows, columns}, data_type(dtype), {rows * columns, row, column}};
}

}  // namespace

struct OneDnnGemm::Engine {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
};

struct OneDnnGemm::Primitive {
  dnnl::matmul::primitive_desc description;
  dnnl::matmul run;
  dnnl::memory a, b, bias, c, scratchpad;
  std::unordered_map<int, dnnl::memory> arguments;
};

std::size_t OneDnnGemm::Hash::operator()(const GemmProblem& p) const {
  std::size_t hash = 0;
  const auto mix = [&](std::int64_t value) {
    hash ^= std::hash<std::int64_t>{}(value) + 0x9e3779b97f4a7c15u + (hash << 6) + (hash >> 2);
  };
  for (std::int64_t value : {p.groups, p.m, p.n, p.k, p.lda, p.ldb, p.ldc}) mix(value);
  mix(static_cast<int>(p.input) | static_cast<int>(p.output) << 4 | static_cast<int>(p.bias) << 8 |
      static_cast<int>(p.activation) << 12 | (p.transpose_a ? 1 << 16 : 0) |
      (p.transpose_b ? 1 << 17 : 0) | (p.accumulate ? 1 << 18 : 0) | (p.has_bias ? 1 << 19 : 0));
  return hash;
}

OneDnnGemm::OneDnnGemm(const CpuResources& resources, std::size_t primitives)
    : resources_(resources), capacity_(primitives), engine_(std::make_unique<Engine>()) {}
OneDnnGemm::~OneDnnGemm() = default;

OneDnnGemm::Primitive& OneDnnGemm::primitive(const GemmProblem& p) {
  if (const auto found = index_.find(p); found != index_.end()) {
    order_.splice(order_.begin(), order_, found->second);
    return *found->second->second;
  }
  using dnnl::memory;
  const memory::desc a = matrix(p, p.m, p.k, p.input, p.transpose_a, p.lda),
                     b = matrix(p, p.k, p.n, p.input, p.transpose_b, p.ldb),
                     c = matrix(p, p.m, p.n, p.output, false, p.ldc);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (p.accumulate) after.append_sum(1.0f);
  if (p.activation == Activation::gelu_tanh)
    after.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_tanh, 0, 0);
  if (p.activation == Activation::gelu_erf)
    after.append_eltwise(1.0f, dnnl::algorithm::eltwise_gelu_erf, 0, 0);
  if (p.activation == Activation::tanh)
    after.append_eltwise(1.0f, dnnl::algorithm::eltwise_tanh, 0, 0);
  if (p.activation == Activation::relu)
    after.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0, 0);
  attributes.set_post_ops(after);
  const memory::desc bias = p.has_bias
                                ? memory::desc({1, p.n}, data_type(p.bias), memory::format_tag::ab)
                                : memory::desc();
  const auto problem = p.has_bias ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);

  auto made = std::make_unique<Primitive>();
  made->description = dnnl::matmul::primitive_desc(problem, attributes, engine_->engine);
  made->run = dnnl::matmul(made->description);
  const auto empty = [&](const memory::desc& d) { return memory(d, engine_->engine, nullptr); };
  made->a = empty(a);
  made->b = empty(b);
  made->c = empty(c);
  made->scratchpad = empty(made->description.scratchpad_desc());
  made->arguments = {{DNNL_ARG_SRC, made->a},
                     {DNNL_ARG_WEIGHTS, made->b},
                     {DNNL_ARG_DST, made->c},
                     {DNNL_ARG_SCRATCHPAD, made->scratchpad}};
  if (p.has_bias) {
    made->bias = empty(bias);
    made->arguments.emplace(DNNL_ARG_BIAS, made->bias);
  }
  if (order_.size() >= capacity_) {
    index_.erase(order_.back().first);
    order_.pop_back();
  }
  order_.emplace_front(p, std::move(made));
  index_.emplace(p, order_.begin());
  return *order_.front().second;
}

void OneDnnGemm::run(const GemmProblem& problem, const void* a, const void* b, const void* bias,
                     void* c) {
  if (prefers_narrow_product(problem)) {
    narrow_product(
        problem, resources_.threads, static_cast<const float*>(a), static_cast<const float*>(b),
        problem.has_bias ? static_cast<const float*>(bias) : nullptr, static_cast<float*>(c));
    return;
  }
  const Team team(resources_.threads);
  try {
    Primitive& p = primitive(problem);
    // oneDNN only reads these, but its handles are not const.
    p.a.set_data_handle(const_cast<void*>(a));
    p.b.set_data_handle(const_cast<void*>(b));
    if (problem.has_bias) p.bias.set_data_handle(const_cast<void*>(bias));
    p.c.set_data_handle(c);
    if (const std::size_t bytes = p.description.scratchpad_desc().get_size(); bytes > 0) {
      if (scratchpad_.size() < bytes) {
        scratchpad_.reset();
        scratchpad_ = Buffer(*resources_.memory, bytes, MemoryTag::workspace);
      }
      p.scratchpad.set_data_handle(scratchpad_.data());
    }
    p.run.execute(engine_->stream, p.arguments);
    engine_->stream.wait();
  } catch (const dnnl::error& error) {
    throw_error(ErrorCode::internal, "oneDNN refuses a product m {} n {} k {} of {}: {}", problem.m,
                problem.n, problem.k, to_string(problem.input), error.what());
  }
}

bool OneDnnGemm::multiplies_bf16() {
  if (!multiplies_bf16_) multiplies_bf16_ = bf16_emulation().empty();
  return *multiplies_bf16_;
}

std::string bf16_emulation() {
  if (allows_avx512_bf16()) return {};  // every processor with AMX has AVX512_BF16 too
  return "this processor has no AVX512_BF16 or AMX, so that products of bf16 run in f32 on copies";
}

std::string OneDnnGemm::implementation(DType dtype) {
  if (dtype == DType::bf16 && !multiplies_bf16()) return kThroughF32;
  const Team team(resources_.threads);
  GemmProblem problem;
  problem.m = problem.n = problem.k = 256;
  problem.input = problem.output = dtype;
  try {
    return primitive(problem).description.impl_info_str();
  } catch (const dnnl::error& error) {
    throw_error(ErrorCode::internal, "oneDNN refuses products of {}: {}", to_string(dtype),
                error.what());
  }
}

}  // namespace shoal::kernels
