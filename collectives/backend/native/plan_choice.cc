#include "shoal/collectives/backend/native/plan_choice.h"

#include "shoal/runtime/base/log.h"

namespace shoal::collectives::native {
namespace {

// An algorithm that the options force may exist between hosts only.
Algorithm forced_algorithm(const CommunicatorOptions& options) {
  const Algorithm forced = parse_algorithm(options.algorithm);
  if (options.fixed_order && forced == Algorithm::ring) {
    log::once(
        log::Level::warn, "shm-fixed-order-ring",
        "algorithm ring cannot keep a fixed order; inside a host direct and inline take over");
    return Algorithm::automatic;
  }
  if (forced == Algorithm::automatic) return forced;
  if (forced == Algorithm::direct || forced == Algorithm::ring || forced == Algorithm::inlined) {
    log::once(log::Level::info, "shm-algorithm-all-reduce",
              fmt::format("inside a host algorithm {} holds for all_reduce; the other operations "
                          "have one way for each size: inline where they are short, else direct",
                          to_string(forced)));
    return forced;
  }
  log::once(log::Level::warn, "shm-algorithm-" + options.algorithm,
            fmt::format("algorithm {} is for messages between hosts; inside a host shared memory "
                        "chooses by size (direct, ring and inline can be forced)",
                        options.algorithm));
  return Algorithm::automatic;
}

// Plans for calls that are not inline.
std::span<const Algorithm> all_plans(Operation operation) {
  const auto offered = shared_memory_candidates(operation);
  return offered.empty() ? offered : offered.subspan(1);
}
std::span<const Algorithm> ordered_plans(Operation operation) {
  const auto offered = all_plans(operation);
  return offered.empty() ? offered : offered.first(1);
}
std::span<const Algorithm> ordered_candidates(Operation operation) {
  const auto offered = shared_memory_candidates(operation);
  return offered.empty() ? offered : offered.first(2);
}

Operation asked(const Call& call) {
  return call.operation == Operation::split ? Operation::all_gather
                                            : base_operation(call.operation);
}

}  // namespace

PlanChoice::PlanChoice(const CommunicatorOptions& options, int ranks)
    : forced_(forced_algorithm(options)),
      fixed_order_(options.fixed_order),
      ranks_(ranks),
      unknown_(make_selector(options.collectives, ranks), ranks, 1, MemoryKind::unknown,
               fixed_order_ ? ordered_candidates : shared_memory_candidates),
      symmetric_(make_selector(options.collectives, ranks), ranks, 1, MemoryKind::symmetric,
                 fixed_order_ ? ordered_plans : all_plans),
      host_(make_selector(options.collectives, ranks), ranks, 1, MemoryKind::host,
            fixed_order_ ? ordered_plans : all_plans) {
  if (fixed_order_ && ranks > 3)
    log::once(
        log::Level::info, "shm-fixed-order",
        fmt::format("fixed_order: inside a host floating sums of {} ranks follow the canonical "
                    "tree tile by tile, which costs no bytes but some time of the core that "
                    "sums (and ring is not taken)",
                    ranks));
}

bool PlanChoice::inlines(const Call& call) const {
  if (call.operation == Operation::all_reduce && forced_ != Algorithm::automatic)
    return forced_ == Algorithm::inlined;
  const std::int64_t bytes = call.operation == Operation::all_to_all_v ? call.send_bytes(0, ranks_)
                                                                       : table_bytes(call, ranks_);
  return unknown_.at(asked(call), bytes).algorithm == Algorithm::inlined;
}

Algorithm PlanChoice::plan(const Call& call, bool symmetric) const {
  if (call.operation != Operation::all_reduce) return Algorithm::direct;
  if (forced_ == Algorithm::direct || forced_ == Algorithm::ring) return forced_;
  const Selection& selection =
      (symmetric ? symmetric_ : host_).at(Operation::all_reduce, table_bytes(call, ranks_));
  if (selection.algorithm == Algorithm::automatic)
    log::once(log::Level::warn, "shm-nothing-left",
              fmt::format("inside a host direct runs, although {}", selection.why));
  return selection.algorithm == Algorithm::ring ? Algorithm::ring : Algorithm::direct;
}

std::string PlanChoice::why(const Signature& signature, Algorithm algorithm, bool symmetric) const {
  Call call;
  call.operation = signature.operation;
  call.dtype = signature.dtype;
  call.count = signature.count;
  if (call.operation == Operation::all_reduce && forced_ == algorithm) return "forced";
  for (const Choices* choices : {algorithm == Algorithm::inlined ? &unknown_
                                 : symmetric                     ? &symmetric_
                                                                 : &host_,
                                 &symmetric_}) {
    const Selection& selection = choices->at(asked(call), table_bytes(call, ranks_));
    if (selection.algorithm == algorithm) return selection.why;
  }
  return "the one way for such a call";
}

Algorithm PlanChoice::signature_algorithm(const Call& call, bool inlined) const {
  if (call.operation == Operation::all_to_all_v) return Algorithm::automatic;
  return inlined ? Algorithm::inlined : plan(call, true);
}

}  // namespace shoal::collectives::native
