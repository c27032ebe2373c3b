// What all backends share: every operation becomes a Call, is checked, and is submitted at once or
// with the rest of its group. A backend says what submitting means.
#pragma once

#include <vector>

#include "shoal/collectives/backend/arguments.h"

namespace shoal::collectives {

class CallCommunicator : public Communicator {
 public:
  WorkPtr all_reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                     Stream stream) final;
  WorkPtr reduce_scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                         Reduction op, Stream stream) final;
  WorkPtr all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                     Stream stream) final;
  WorkPtr reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype, Reduction op,
                           Stream stream) final;
  WorkPtr all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                       Stream stream) final;
  WorkPtr broadcast(void* data, std::int64_t count, DType dtype, int root, Stream stream) final;
  WorkPtr reduce(const void* send, void* recv, std::int64_t count, DType dtype, Reduction op,
                 int root, Stream stream) final;
  WorkPtr gather(const void* send, void* recv, std::int64_t send_count, DType dtype, int root,
                 Stream stream) final;
  WorkPtr scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype, int root,
                  Stream stream) final;
  WorkPtr all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                     Stream stream) final;
  WorkPtr all_to_all_v(const void* send, Counts send_counts, void* recv, Counts recv_counts,
                       DType dtype, Stream stream) final;
  WorkPtr barrier(Stream stream) final;
  WorkPtr send(const void* data, std::int64_t count, DType dtype, int peer, Stream stream) final;
  WorkPtr recv(void* data, std::int64_t count, DType dtype, int peer, Stream stream) final;
  void begin_group() final;
  WorkPtr end_group() final;
  std::unique_ptr<Communicator> split(int color, int key) final;

  // What is called from now on are steps of that call of another Communicator; none: its own again.
  void on_behalf_of(std::optional<OuterCall> outer) { outer_ = outer; }

 protected:
  // A checked call, outside a group.
  virtual WorkPtr submit(Call&& call) = 0;
  // The same of a call that has not been checked, where it is like one submitted before and so
  // right; null where the backend does not know that.
  virtual WorkPtr repeat(const PlainCall& /*call*/) { return nullptr; }
  // The calls of a group, in order, never none. As it is here: one after the other.
  virtual WorkPtr submit_group(std::vector<Call> calls);
  virtual double deadline_seconds() const = 0;
  virtual DeviceType device_type() const { return DeviceType::cpu; }

  // Blocking and collective: every rank's color and key, in rank order.
  struct Place {
    std::int64_t color = 0, key = 0;
  };
  virtual std::vector<Place> exchange_places(Place own);
  // The ranks of this one's color in their new order. `ordinal` counts the splits of this
  // Communicator and `color` is theirs; an empty `ranks` still takes part where the backend needs
  // every rank, and returns null.
  struct SplitPlan {
    std::int64_t ordinal = 0;
    int color = 0;
    std::vector<int> ranks;  // of this Communicator
    int rank = -1;           // this one's, in the new group
  };
  virtual std::unique_ptr<Communicator> make_split(const SplitPlan& plan) = 0;

 private:
  // repeat(), unless more than that is known of the call.
  WorkPtr again(Operation operation, const void* send, void* recv, std::int64_t count, DType dtype,
                ReduceOp op, int root, const Stream& stream) {
    if (depth_ > 0 || outer_) return nullptr;
    return repeat({{operation, dtype, op, stream.device.type, root}, send, recv, count});
  }
  WorkPtr take(Call&& call);

  std::optional<OuterCall> outer_;
  int depth_ = 0;  // of begin_group
  std::vector<Call> group_;
  std::int64_t splits_ = 0;
};

// Done when all are; `works` may be empty.
WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds);

}  // namespace shoal::collectives
