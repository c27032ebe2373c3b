// Searches the layouts of a model on a cluster for those that take the least time. Pure.
//
//   const auto best = search({.model = shape, .machine = machine, .ranks = 64, .batch = 512,
//                             .length = 2048, .dtype = DType::bf16});
//   best.front().plan;   // the fastest one that fits
#pragma once

#include <cstdint>
#include <vector>

#include "shoal/parallel/predict/predict.h"

namespace shoal::parallel {

struct SearchRequest {
  const ModelShape& model;
  const Machine& machine;
  int ranks = 1;
  std::int64_t batch = 1;   // samples of a step, of all ranks
  std::int64_t length = 0;  // positions of a sample
  DType dtype = DType::f32;
  double memory = 0;  // bytes of a device that a layout may use; 0: 94 % of the machine's
  int keep = 10;      // layouts to return
};

struct Candidate {
  ParallelPlan plan;
  RunShape run;
  Prediction prediction;
};

struct SearchResult {
  std::vector<Candidate> fastest;  // in ascending order of time; all fit
  std::int64_t layouts = 0;        // considered
  std::int64_t predicted = 0;      // the others have a lower bound above the slowest kept one
  std::int64_t too_large = 0;      // those found not to fit
  double least_memory = 0;         // bytes of the smallest layout found
};

// The same layouts as predict() for every legal one would give, by branch and bound. The axes:
// tensor parallelism within a node, pipelines with each schedule and chunks, microbatches of powers
// of two, checkpointed blocks, and sharding levels. If nothing fits, `fastest` is empty and
// `least_memory` says what the smallest layout needs.
SearchResult search(const SearchRequest& request);

// Every legal layout of the request, without predictions; for tests.
std::vector<Candidate> legal_layouts(const SearchRequest& request);

}  // namespace shoal::parallel
