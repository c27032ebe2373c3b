#include "shoal/nn/autograd/function.h"

#include "shoal/nn/autograd/tape.h"
#include "shoal/runtime/base/error.h"

namespace shoal::nn {

SavedTensor::SavedTensor(Tape& tape, Tensor tensor) : defined_(tensor.defined()) {
  if (!defined_) return;
  if (const auto& pack = tape.saved_tensor_hooks().pack) unpack_ = pack(tensor);
  if (unpack_) return;
  version_ = tensor.storage()->version();
  tensor_ = std::move(tensor);
}

Tensor SavedTensor::get(std::string_view function) const {
  if (!defined_)
    throw_error(ErrorCode::internal, "{}: a tensor that was not saved, or was dropped, is read",
                function);
  if (unpack_) return unpack_();
  if (const std::uint64_t now = tensor_.storage()->version(); now != version_)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: a tensor {} saved for backward was written to afterwards (version "
                            "{}, saved at {})",
                            function, to_string(tensor_.shape()), now, version_),
                "do not write in place to what a recorded operation read");
  return tensor_;
}

void SavedTensor::reset() { *this = SavedTensor(); }

}  // namespace shoal::nn
