// Which dtypes a processor or GPU has no instructions for: `bf16: auto` goes by it.
#pragma once

#include <string>

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

// What tables of kernels implement besides whose device may lack a dtype's instructions.
class Emulates {
 public:
  virtual ~Emulates() = default;
  // Why a model computes no faster in `dtype` than in f32; empty: there are instructions for it.
  virtual std::string emulates(DType dtype) const = 0;
};

inline std::string emulation(const Kernels& kernels, DType dtype) {
  const auto* const some = dynamic_cast<const Emulates*>(&kernels);
  return some == nullptr ? std::string() : some->emulates(dtype);
}

}  // namespace shoal::kernels
