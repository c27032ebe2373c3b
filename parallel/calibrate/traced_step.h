// The time of one training step of a small model, by kind of operation.
#pragma once

#include <nlohmann/json.hpp>

#include "shoal/kernels/kernels.h"
#include "shoal/parallel/calibrate/rank_bench.h"
#include "shoal/parallel/predict/model_shape.h"

namespace shoal::parallel {

struct StepTrace {  // seconds
  double products = 0, attention = 0, passes = 0;
  double head = 0;  // the last product with the loss, forward and backward
  double optimizer = 0;
  double between = 0;  // on the host, between operations
};

struct TracedModel {
  nlohmann::json config;  // as of Hugging Face
  ModelShape shape;
  std::int64_t rows = 0, length = 0;
  StepTrace trace;
};

// A GPT-2 with its usual dropout, in `dtype`. Collective: every rank trains one of its own.
TracedModel trace_step(RankBench& bench, kernels::Kernels& kernels, MemoryResource& memory,
                       DType dtype);

}  // namespace shoal::parallel
