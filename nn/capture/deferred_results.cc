#include "shoal/nn/capture/deferred_results.h"

#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

template <typename T>
void append(const std::byte* at, std::int64_t count, std::vector<double>& to) {
  const auto* const values = reinterpret_cast<const T*>(at);
  for (std::int64_t i = 0; i < count; ++i) to.push_back(static_cast<double>(values[i]));
}

}  // namespace

DeferredResults::~DeferredResults() {
  try {
    if (!records_.empty()) staging_.mark(stream_);
  } catch (...) {  // NOLINT(bugprone-empty-catch): the device is lost
  }
}

void DeferredResults::note(std::initializer_list<Tensor> tensors) {
  DeviceBackend& backend = device_backend(stream_.device.type);
  std::vector<Piece> record;
  for (const Tensor& tensor : tensors) {
    SHOAL_CHECK(tensor.dtype() == DType::f32 || tensor.dtype() == DType::f64,
                "numbers of {} are noted; f32 and f64 can be", to_string(tensor.dtype()));
    std::byte* const at = staging_.place(tensor.bytes());
    backend.copy(at, tensor.const_view().data, tensor.bytes(), stream_);
    record.push_back({at, tensor.count(), tensor.dtype()});
  }
  records_.push_back(std::move(record));
}

std::vector<std::vector<double>> DeferredResults::take() {
  std::vector<std::vector<double>> all;
  if (records_.empty()) return all;
  staging_.mark(stream_);
  device_backend(stream_.device.type).synchronize(stream_);
  for (const std::vector<Piece>& record : records_) {
    std::vector<double>& numbers = all.emplace_back();
    for (const Piece& piece : record)
      piece.dtype == DType::f32 ? append<float>(piece.at, piece.count, numbers)
                                : append<double>(piece.at, piece.count, numbers);
  }
  records_.clear();
  return all;
}

}  // namespace shoal::nn
