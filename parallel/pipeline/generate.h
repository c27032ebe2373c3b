// Generators of schedules, as pure functions. Each gives compute actions; make_schedule() adds
// messages (schedule.h) and validates the result (validate.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/parallel/pipeline/schedule.h"
#include "shoal/parallel/pipeline/simulate.h"

namespace shoal::parallel {

enum class ScheduleKind : std::uint8_t {
  // All forwards, then all backwards (GPipe, Huang et al. 2019). SMP's "simple".
  simple,
  // SMP's "interleaved": a ready backward goes before a ready forward, with at most
  // active_microbatches in flight. Generated from agreed costs, so that it is the same on every
  // rank.
  interleaved,
  // Alternates forwards and backwards after a warmup of p-r-1 forwards (PipeDream-flush, Narayanan
  // 2021).
  one_f_one_b,
  // The same with several stages per rank (Megatron-LM's interleaved schedule, Narayanan et al.
  // 2021): the bubble is divided by `chunks`.
  virtual_interleaved,
  // ZB-H1 of "Zero Bubble Pipeline Parallelism" (Qi et al., 2024): weight gradients fill the
  // bubble, with the memory of 1F1B.
  zero_bubble,
  // ZB-V of the same paper: two stages per rank, down and back up. No bubble if F, I and W cost the
  // same, with the memory of 1F1B.
  zero_bubble_v,
};
std::string_view name(ScheduleKind kind);                 // "1f1b"
ScheduleKind parse_schedule_kind(std::string_view name);  // throws with the nearest name

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::interleaved;
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;               // stages per rank; virtual_interleaved: any; zero_bubble_v: 2
  int group = 0;                // virtual_interleaved: consecutive microbatches per chunk; 0: ranks
  int active_microbatches = 0;  // interleaved: limit in flight; 0: ranks + 2; simple ignores it
  PipelineCosts costs = {};     // `interleaved` is generated from them
  bool forward_only = false;
  int receive_ahead = 1;  // number of compute actions by which receives are posted early
  int stages() const { return ranks * chunks; }
};

// Options that make no valid schedule are refused with the numbers and a remedy.
Schedule make_schedule(const ScheduleOptions& options);

}  // namespace shoal::parallel
