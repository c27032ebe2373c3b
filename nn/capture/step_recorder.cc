#include "shoal/nn/capture/step_recorder.h"

#include "shoal/nn/capture/fusion_catalogue.h"

namespace shoal::nn {

StepRecorder::Operations StepRecorder::end() {
  Operations operations;
  if (!record_) return operations;
  operations.count = static_cast<int>(record_->operations().size());
  operations.left_apart = describe(*record_, find_chains(*record_));
  record_.reset();
  return operations;
}

}  // namespace shoal::nn
