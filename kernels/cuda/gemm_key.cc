#include "shoal/kernels/cuda/gemm_key.h"

#include <fmt/format.h>

namespace shoal::kernels {
namespace {

// Alignment of all groups' first elements.
std::uint8_t alignment(const GemmMatrix& matrix, std::int64_t groups, DType dtype) {
  auto bits = reinterpret_cast<std::uintptr_t>(matrix.data) | 16u;
  if (groups > 1) bits |= static_cast<std::uintptr_t>(matrix.stride) * size_of(dtype);
  return static_cast<std::uint8_t>(bits & (~bits + 1));
}

const char* name(GemmFusion fusion) {
  constexpr const char* kNames[] = {"plain",     "bias",     "sums_b",        "sums_a", "gelu",
                                    "gelu_bias", "gelu_aux", "gelu_aux_bias", "dgelu"};
  return kNames[static_cast<std::size_t>(fusion)];
}

bool fusable_bias(const GemmArgs& args) {
  return args.bias && args.bias_dtype == args.output && aligned_for_epilogue(args.bias);
}

}  // namespace

GemmKey gemm_key(const GemmArgs& args, GemmFusion fusion) {
  GemmKey key;
  key.m = args.m;
  key.n = args.n;
  key.k = args.k;
  key.groups = args.groups;
  key.lda = args.a.leading;
  key.ldb = args.b.leading;
  key.ldc = args.c.leading;
  if (args.groups > 1) {
    key.stride_a = args.a.stride;
    key.stride_b = args.b.stride;
    key.stride_c = args.c.stride;
  }
  key.align_a = alignment(args.a, args.groups, args.input);
  key.align_b = alignment(args.b, args.groups, args.input);
  key.align_c = alignment(args.c, args.groups, args.output);
  if (fuses_aux(fusion)) key.ldaux = args.aux.leading;
  key.input = args.input;
  key.output = args.output;
  key.fusion = fusion;
  key.transpose_a = args.transpose_a;
  key.transpose_b = args.transpose_b;
  key.reads_c = args.beta != 0;
  return key;
}

std::string to_string(const GemmKey& key) {
  return fmt::format("{}>{} {}x{}x{}x{} {}{} {} ld {} {} {} {} step {} {} {} align {} {} {}{}",
                     to_string(key.input), to_string(key.output), key.groups, key.m, key.n, key.k,
                     key.transpose_a ? 't' : 'n', key.transpose_b ? 't' : 'n', name(key.fusion),
                     key.lda, key.ldb, key.ldc, key.ldaux, key.stride_a, key.stride_b, key.stride_c,
                     key.align_a, key.align_b, key.align_c, key.reads_c ? " adds" : "");
}

std::size_t GemmKeyHash::operator()(const GemmKey& key) const {
  std::uint64_t hash = 0;
  const auto mix = [&](auto value) {
    hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  };
  for (std::int64_t value : {key.m, key.n, key.k, key.groups, key.lda, key.ldb, key.ldc, key.ldaux,
                             key.stride_a, key.stride_b, key.stride_c})
    mix(value);
  mix(key.align_a | key.align_b << 8 | key.align_c << 16);
  mix(static_cast<int>(key.input) | static_cast<int>(key.output) << 4 |
      static_cast<int>(key.fusion) << 8 | key.transpose_a << 12 | key.transpose_b << 13 |
      key.reads_c << 14);
  return static_cast<std::size_t>(hash);
}

GemmFusion widest_fusion(const GemmArgs& args) {
  const bool keeps = args.aux.data && !args.aux_is_input;
  const bool gelu = args.activation == Activation::gelu_tanh && args.output != DType::f32;
  const bool bias_fits = !args.bias || fusable_bias(args);
  const bool aux_fits = args.aux.leading % 8 == 0 && aligned_for_epilogue(args.aux.data);
  if (args.aux_is_input)
    return gelu && !args.bias && aux_fits ? GemmFusion::dgelu : without_activation(args);
  if (!gelu || !bias_fits || (keeps && !aux_fits)) return without_activation(args);
  if (keeps) return args.bias ? GemmFusion::gelu_aux_bias : GemmFusion::gelu_aux;
  return args.bias ? GemmFusion::gelu_bias : GemmFusion::gelu;
}

GemmFusion without_activation(const GemmArgs& args) {
  return fusable_bias(args) ? GemmFusion::bias : GemmFusion::none;
}

GemmFusion sums_fusion(const GemmArgs& args) {
  const bool something = args.m > 0 && args.n > 0 && args.k > 0;
  if (!args.bias_gradient || !something || args.output != DType::f32) return GemmFusion::none;
  return args.bias_gradient_of_a ? GemmFusion::sums_a : GemmFusion::sums_b;
}

GemmLayouts gemm_layouts(const GemmKey& key) {
  const auto layout = [](std::int64_t rows, std::int64_t columns, std::int64_t leading,
                         std::int64_t stride) {
    return GemmLayout{static_cast<std::uint64_t>(columns), static_cast<std::uint64_t>(rows),
                      leading, stride};
  };
  GemmLayouts out;
  out.a = key.transpose_b ? layout(key.n, key.k, key.ldb, key.stride_b)
                          : layout(key.k, key.n, key.ldb, key.stride_b);
  out.b = key.transpose_a ? layout(key.k, key.m, key.lda, key.stride_a)
                          : layout(key.m, key.k, key.lda, key.stride_a);
  out.c = layout(key.m, key.n, key.ldc, key.stride_c);
  return out;
}

}  // namespace shoal::kernels
