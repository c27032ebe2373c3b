// Measures the host that it runs on as a machine (parallel/predict/machine.h).
//
//   const auto file = calibrate({.ranks = *communicator, .kernels = *kernels, .memory = memory,
//                                .dtypes = {DType::f32}, .name = "my-host"});
//   read_machine(file, "my-host");
//
// Collective: all ranks compute at once, because they share caches and memory. A file therefore
// describes the host with that many ranks.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/communicator.h"
#include "shoal/kernels/kernels.h"

namespace shoal::parallel {

struct CalibrateRequest {
  collectives::Communicator& ranks;  // of one node
  kernels::Kernels& kernels;
  MemoryResource& memory;
  std::vector<DType> dtypes = {DType::f32};  // in which products are measured; the first is traced
  std::vector<std::int64_t> rows = {64, 256, 1024}, widths = {64, 256, 1024, 4096};  // of products
  double memory_bytes = 0;  // that a rank may use
  std::string name = {}, description = {};
  std::function<void(std::string_view what)> progress = {};  // may be null
};

// Takes a minute or a few: products by shape, memory bandwidth, one training step by kind of
// operation, all_reduce by bytes and ranks, messages. Every rank gets the same answer.
nlohmann::ordered_json calibrate(const CalibrateRequest& request);

}  // namespace shoal::parallel
