#include "shoal/parallel/pipeline/generate.h"

#include <algorithm>
#include <array>

#include "shoal/parallel/pipeline/generators.h"
#include "shoal/parallel/pipeline/validate.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::parallel {
namespace {

// In the order of ScheduleKind.
constexpr std::array<std::string_view, 6> kKinds = {
    "simple", "interleaved", "1f1b", "virtual_interleaved", "zero_bubble", "zero_bubble_v"};

void check(const ScheduleOptions& o) {
  SHOAL_CHECK(o.ranks > 0 && o.microbatches > 0 && o.chunks > 0,
              "a pipeline of {} ranks with {} stages each and {} microbatches", o.ranks, o.chunks,
              o.microbatches);
  const bool is_virtual = o.kind == ScheduleKind::virtual_interleaved;
  if (o.kind == ScheduleKind::zero_bubble_v && o.chunks != 2)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("zero_bubble_v has 2 stages a rank, not {}", o.chunks),
                "set virtual_pipeline_parallel_degree to 2, or use zero_bubble");
  if (!is_virtual && o.kind != ScheduleKind::zero_bubble_v && o.chunks != 1)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} has one stage a rank, not {}", name(o.kind), o.chunks),
                "use virtual_interleaved for several");
  if (is_virtual && o.group != 0 && o.group < o.ranks)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("groups of {} microbatches are shorter than the pipeline of {} ranks",
                            o.group, o.ranks),
                fmt::format("use groups of at least {}", o.ranks));
  SHOAL_CHECK(o.active_microbatches >= 0, "{} active microbatches", o.active_microbatches);
}

ComputeLists generate(const ScheduleOptions& o) {
  switch (o.kind) {
    case ScheduleKind::simple:
      return simple_lists(o);
    case ScheduleKind::interleaved:
      return interleaved_lists(o);
    case ScheduleKind::one_f_one_b:
    case ScheduleKind::virtual_interleaved:
      return one_f_one_b_lists(o);
    case ScheduleKind::zero_bubble:
      return zero_bubble_lists(o);
    case ScheduleKind::zero_bubble_v:
      return zero_bubble_v_lists(o);
  }
  throw_error(ErrorCode::internal, "schedule kind {}", static_cast<int>(o.kind));
}

}  // namespace

std::string_view name(ScheduleKind kind) { return kKinds[static_cast<std::size_t>(kind)]; }

ScheduleKind parse_schedule_kind(std::string_view text) {
  const auto found = std::find(kKinds.begin(), kKinds.end(), text);
  if (found != kKinds.end()) return static_cast<ScheduleKind>(found - kKinds.begin());
  const std::vector<std::string> names(kKinds.begin(), kKinds.end());
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no schedule \"{}\"", shortened(text)),
              names_there_are(text, names));
}

Schedule make_schedule(const ScheduleOptions& options) {
  check(options);
  Schedule schedule;
  schedule.name = name(options.kind);
  schedule.microbatches = options.microbatches;
  schedule.rank_of_stage = options.kind == ScheduleKind::zero_bubble_v
                               ? v_placement(options.ranks)
                               : loop_placement(options.ranks, options.chunks);
  schedule.actions = generate(options);
  schedule = with_communication(schedule, options.receive_ahead);
  validate(schedule, {.forward_only = options.forward_only});
  return schedule;
}

}  // namespace shoal::parallel
