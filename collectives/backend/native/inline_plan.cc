// Small operations: the data lies beside the descriptor, so once all descriptors are there each
// rank computes its own result. One synchronisation, no steps.
#include <algorithm>
#include <cstring>

#include "shoal/collectives/backend/native/counts.h"
#include "shoal/collectives/backend/native/plan.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

class InlinePlan final : public Plan {
 public:
  explicit InlinePlan(PlanContext context) : c_(std::move(context)) {}
  std::uint32_t steps() const override { return 1; }
  Requirement needs(std::uint32_t) const override { return {}; }
  Route route() const override { return Route::inlined; }

  void run(std::uint32_t) override {
    const Call& call = c_.call;
    if (call.count == 0) return;
    const auto bytes = static_cast<std::size_t>(call.count * c_.element());
    std::vector<const void*> sources;
    switch (call.operation) {
      case Operation::all_reduce:
      case Operation::reduce_scatter: {
        const std::size_t part = call.operation == Operation::all_reduce
                                     ? 0
                                     : static_cast<std::size_t>(c_.rank()) * bytes;
        for (int peer = 0; peer < c_.size(); ++peer) sources.push_back(payload(peer) + part);
        c_.reduce(sources, call.recv, call.count);
        return;
      }
      case Operation::all_gather:
        for (int peer = 0; peer < c_.size(); ++peer)
          std::memcpy(static_cast<std::byte*>(call.recv) + static_cast<std::size_t>(peer) * bytes,
                      payload(peer), bytes);
        return;
      case Operation::broadcast:
        if (call.root != c_.rank()) std::memcpy(call.recv, payload(call.root), bytes);
        return;
      case Operation::barrier:
      default:
        return;
    }
  }

 private:
  const std::byte* payload(int peer) const {
    return c_.group.page(peer).slots[c_.sequence % 2].payload;
  }
  PlanContext c_;
};

}  // namespace

bool travels_inline(const Call& call, int size, Algorithm forced) {
  const std::int64_t bytes = largest_send_bytes(call, size);
  const auto capacity =
      static_cast<std::int64_t>(kInlineBytes - counts_bytes(call.operation, size));
  if (call.operation == Operation::barrier || call.count == 0) return true;
  if (call.operation == Operation::broadcast) return bytes <= capacity;
  if (call.operation == Operation::all_reduce)
    return choose_all_reduce({bytes, size, false, forced}, capacity) == Algorithm::inlined;
  return bytes <= std::min(capacity, std::int64_t{16384} / size);
}

void write_inline_payload(const Call& call, int rank, int size, ControlSlot& slot) {
  if (call.count == 0 || call.operation == Operation::barrier) return;
  if (call.operation == Operation::broadcast && call.root != rank) return;
  const std::int64_t bytes = call.send_bytes(rank, size);
  if (bytes > 0)
    std::memcpy(slot.payload + counts_bytes(call.operation, size), call.send,
                static_cast<std::size_t>(bytes));
}

std::unique_ptr<Plan> make_inline_plan(PlanContext context) {
  return std::make_unique<InlinePlan>(std::move(context));
}

}  // namespace shoal::collectives
