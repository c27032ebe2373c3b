// The schedules that Shoal knows, as pure functions. Each gives compute actions; make_schedule()
// adds the messages (schedule.h) and proves the result (validate.h).
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
  // SMP's "interleaved": a ready backward goes before a ready forward, at most
  // active_microbatches in flight. Played here with agreed costs, so that it is the same on every
  // rank.
  interleaved,
  // One forward, one backward after a warmup of p-r-1 forwards (PipeDream-flush, Narayanan 2021).
  one_f_one_b,
  // The same with several stages a rank (Megatron-LM's interleaved schedule, Narayanan et al.
  // 2021): bubble divided by `chunks`.
  virtual_interleaved,
  // ZB-H1 of "Zero Bubble Pipeline Parallelism" (Qi et al., 2024): weight gradients fill the
  // bubble, with the memory of 1F1B.
  zero_bubble,
  // ZB-V of the same: two stages a rank, there and back; no bubble where F, I and W cost the same,
  // in the memory of 1F1B.
  zero_bubble_v,
};
std::string_view name(ScheduleKind kind);                 // "1f1b"
ScheduleKind parse_schedule_kind(std::string_view name);  // throws with the nearest name

struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::interleaved;
  int ranks = 1;
  int microbatches = 1;
  int chunks = 1;               // stages a rank: virtual_interleaved, any; zero_bubble_v, 2
  int group = 0;                // virtual_interleaved: microbatches a chunk at a time; 0: ranks
  int active_microbatches = 0;  // simple has all; interleaved; 0: ranks + 2
  PipelineCosts costs = {};     // interleaved plays with them
  bool forward_only = false;
  int receive_ahead = 1;  // compute actions by which receives are early
  int stages() const { return ranks * chunks; }
};

// What the options cannot mean is refused with the numbers and a remedy.
Schedule make_schedule(const ScheduleOptions& options);

}  // namespace shoal::parallel
