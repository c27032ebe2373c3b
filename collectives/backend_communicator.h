// The part of a Communicator that backends implement. Communicator turns each operation into a
// checked Call and holds the calls of a group until end_group(). A backend submits them.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shoal/collectives/call.h"
#include "shoal/collectives/communicator.h"

namespace shoal::collectives {

class BackendCommunicator : public Communicator {
 public:
  // The deadline of every wait.
  virtual double deadline_seconds() const = 0;
  // The kind of memory that buffers are in.
  virtual DeviceType device_type() const { return DeviceType::cpu; }

  std::unique_ptr<Communicator> split(int color, int key) override;

  // Runs the operation that `call` describes.
  WorkPtr call(Call call);
  // Submits the call unchecked if it equals an earlier, checked call. Returns null if it does not,
  // if the backend cannot tell, inside a group, or while on_behalf_of() names an outer call.
  [[gnu::always_inline]] WorkPtr again(const PlainCall& call) {
    return depth_ > 0 || outer_ ? nullptr : repeat(call);
  }
  // Runs `body`, whose calls are checked but not submitted, and returns them. `body` must end every
  // group that it begins. If it throws, its calls are discarded.
  std::vector<Call> recorded(const std::function<void()>& body);
  // Submits recorded calls as a group.
  WorkPtr submit_together(std::vector<Call> calls);
  // Marks later calls as steps of a call of another Communicator. nullopt ends this.
  void on_behalf_of(std::optional<OuterCall> outer) { outer_ = outer; }

 protected:
  // Submits a checked call outside a group.
  virtual WorkPtr submit(Call&& call) = 0;
  // Implements again(). Null if the call equals no earlier one or the backend cannot tell.
  virtual WorkPtr repeat(const PlainCall& /*call*/) { return nullptr; }
  // Submits a group's calls, in order; `calls` is never empty. The default calls submit() for each
  // and returns one Work for all; a backend may override it to submit them together.
  virtual WorkPtr submit_group(std::vector<Call> calls);

  // Gathers every rank's color and key, in rank order. Blocking and collective.
  struct Place {
    std::int64_t color = 0, key = 0;
  };
  virtual std::vector<Place> exchange_places(Place own);
  // This rank's new group: the ranks of its color in their new order. `ordinal` counts the splits
  // of this Communicator. If `ranks` is empty, this rank gets null, but takes part if the backend
  // needs every rank.
  struct SplitPlan {
    std::int64_t ordinal = 0;
    int color = 0;
    std::vector<int> ranks;  // of this Communicator
    int rank = -1;           // this rank in the new group
  };
  virtual std::unique_ptr<Communicator> make_split(const SplitPlan& plan);

 private:
  friend class Communicator;
  WorkPtr make(const PlainCall& plain, const Stream& stream, double factor = 1);
  WorkPtr take(Call&& call);

  std::optional<OuterCall> outer_;
  int depth_ = 0;  // number of open begin_group() calls
  std::vector<Call> group_;
  std::int64_t splits_ = 0;
};

// Every Communicator is a BackendCommunicator.
inline BackendCommunicator& backend_of(Communicator& communicator) {
  return static_cast<BackendCommunicator&>(communicator);
}

// A Work that is done once all of `works` are; `works` may be empty.
WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds);

}  // namespace shoal::collectives
