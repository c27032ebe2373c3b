// Matrix products through oneDNN. Creating a primitive costs 0.3 to 7 ms, so primitives are cached;
// the key is the whole GemmProblem. Scratchpads are reused.
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

// c[g] = activation(op(a[g])·op(b[g]) + bias), row-major. Inputs are both f32 or both bf16, sums
// are f32, and c has the inputs' dtype or f32. Leading dimensions are distances between stored rows
// in elements; 0: dense. Groups are dense.
struct GemmProblem {
  std::int64_t groups = 1, m = 0, n = 0, k = 0;
  DType input = DType::f32, output = DType::f32, bias = DType::f32;
  bool transpose_a = false, transpose_b = false, accumulate = false, has_bias = false;
  Activation activation = Activation::none;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  friend bool operator==(const GemmProblem&, const GemmProblem&) = default;
};

// Not thread-safe. The work runs on the calling thread's OpenMP team.
class OneDnnGemm {
 public:
  OneDnnGemm(const CpuResources& resources, std::size_t primitives = 512);
  ~OneDnnGemm();

  // m, n, k, groups >= 1. `bias` is read when has_bias.
  void run(const GemmProblem& problem, const void* a, const void* b, const void* bias, void* c);

  // True if oneDNN multiplies bf16 with native instructions on this machine. Otherwise the caller
  // computes with f32 copies: oneDNN 2.6.3 rejects bf16 without AVX-512, and with an AVX-512 that
  // lacks bf16 its products take 2.4 times as long as in f32.
  bool multiplies_bf16();
  // oneDNN's name of the implementation that multiplies `dtype` on this machine:
  // "brg:avx512_core_bf16", or "through f32".
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

  CpuResources resources_;
  std::size_t capacity_;
  std::unique_ptr<Engine> engine_;
  Order order_;
  std::unordered_map<GemmProblem, Order::iterator, Hash> index_;
  Buffer scratchpad_;
  std::optional<bool> multiplies_bf16_;
};

// Emulates::emulates(bf16) for the instructions that oneDNN may use (ONEDNN_MAX_CPU_ISA limits
// them).
std::string bf16_emulation();

}  // namespace shoal::kernels
