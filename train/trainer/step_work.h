// Input and result of one step of an Engine.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "shoal/nn/layers/functional.h"
#include "shoal/nn/optim/optimizer.h"
#include "shoal/train/data/batch.h"

namespace shoal {

// The samples that a rank reads. Ranks of one index read the same samples and form one model.
struct DataShare {
  int count = 1;  // number of indices
  int index = 0;
  // Number of device batches per index (tensor-parallel ranks may each read their own).
  int devices = 1;
  bool counts = true;  // true on one rank per index, which counts the samples in sums over ranks
  // The word for a device in logs: "rank", "replica" (a model on several ranks), "data-parallel
  // rank".
  std::string_view device = "rank";
  std::string text() const {  // "2 replicas"
    return fmt::format("{} {}{}", count * devices, device, count * devices == 1 ? "" : "s");
  }
  std::int64_t samples(std::int64_t per_device) const { return per_device * devices * count; }
};

struct StepWork {
  std::span<const Batch> batches;  // batches of this data index: 1 to gradient_accumulation_steps
  std::int64_t number = 1;         // of the step
  std::int64_t first_ordinal = 0;  // ordinal of the step's first sample in the epoch's list
  double targets = 1;              // targets of the step over all ranks
  nn::LossOptions loss = {};       // loss_scale: 1 / targets; an engine may multiply its own scale
  // `update`: zero-based index of the update that `learning_rate` belongs to. If results of earlier
  // steps are not known yet, `update` assumes that none was skipped. If one was, the device uses
  // the rate that an earlier step gave for the update that it actually reached.
  double learning_rate = 0;
  std::int64_t update = 0;
  // False: the host does not wait for a step on a device; collect() returns its results later. With
  // several ranks, the host still waits for the sums of the step StepResults::kAhead earlier.
  bool wait = true;
};

struct StepDone {
  bool known = true;    // false: the results come with collect()
  double loss_sum = 0;  // over the step's targets on all ranks, not scaled
  // If updates run during the next forward, the norm is NaN; settle() returns it.
  nn::StepOutcome outcome = {};
};

struct LossSums {
  double loss = 0, targets = 0;
};

}  // namespace shoal
