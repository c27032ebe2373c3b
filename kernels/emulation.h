// Reports the dtypes that a processor or GPU has no instructions for; `bf16: auto` uses it.
#pragma once

#include <string>

#include "shoal/kernels/kernels.h"

namespace shoal::kernels {

// Additional interface of kernel tables whose device may lack instructions for a dtype.
class Emulates {
 public:
  virtual ~Emulates() = default;
  // Reason why a model computes no faster in `dtype` than in f32; empty: the device has
  // instructions for it.
  virtual std::string emulates(DType dtype) const = 0;
};

inline std::string emulation(const Kernels& kernels, DType dtype) {
  const auto* const some = dynamic_cast<const Emulates*>(&kernels);
  return some == nullptr ? std::string() : some->emulates(dtype);
}

}  // namespace shoal::kernels
