// The pipeline schedules that generate.h makes.
//
//   plan.pipeline = {.schedule = ScheduleKind::one_f_one_b, .microbatches = 8};
//   plan.pipeline.schedule = parse_schedule_kind("1f1b");  // the same
#pragma once

#include <cstdint>
#include <string_view>

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
std::string_view name(ScheduleKind kind);  // "1f1b"
// Throws invalid_argument with the nearest name.
ScheduleKind parse_schedule_kind(std::string_view name);

}  // namespace shoal::parallel
