// Matrix products through oneDNN: one call a product, primitives cached by everything that shapes
// them (creating one costs 0.3 to 7 ms), scratchpads reused.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "shoal/kernels/cpu/families.h"

namespace shoal::kernels {

// c[g] = activation(op(a[g])·op(b[g]) + bias), row-major. f32 or bf16 inputs of one dtype, sums in
// f32, c of the inputs' dtype or f32. Leading dimensions are the distances between stored rows, in
// elements; 0: dense. Groups are dense.
struct GemmProblem {
  std::int64_t groups = 1, m = 0, n = 0, k = 0;
  DType input = DType::f32, output = DType::f32, bias = DType::f32;
  bool transpose_a = false, transpose_b = false, accumulate = false, has_bias = false;
  Activation activation = Activation::none;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

// Not thread-safe; the calling thread's OpenMP team does the work.
class OneDnnGemm {
 public:
  OneDnnGemm(const CpuRoom& room, std::size_t primitives = 512);
  ~OneDnnGemm();

  // m, n, k, groups >= 1. `bias` is read when has_bias.
  void run(const GemmProblem& problem, const void* a, const void* b, const void* bias, void* c);

  // Whether oneDNN multiplies bf16 on this machine by instructions for it. Elsewhere the caller
  // computes through f32 copies: 2.6.3 refuses without AVX-512, and with AVX-512 that lacks bf16
  // its products take 2.4 times as long as f32's.
  bool multiplies_bf16();
  // What this machine runs products of a dtype with, as oneDNN names it: "brg:avx512_core_bf16",
  // or "through f32".
  std::string implementation(DType dtype);
  std::size_t cached() const { return order_.size(); }

 private:
  struct Engine;
  struct Primitive;
  struct Hash {
    std::size_t operator()(const GemmProblem& p) const;
  };
  using Order = std::list<std::pair<GemmProblem, std::unique_ptr<Primitive>>>;  // newest first

  Primitive& primitive(const GemmProblem& problem);

  CpuRoom room_;
  std::size_t capacity_;
  std::unique_ptr<Engine> engine_;
  Order order_;
  std::unordered_map<GemmProblem, Order::iterator, Hash> index_;
  Buffer scratchpad_;
  std::optional<bool> multiplies_bf16_;
};

// Kernels::emulates(bf16) of the instructions that oneDNN may use, which ONEDNN_MAX_CPU_ISA limits.
std::string bf16_emulation();

}  // namespace shoal::kernels
