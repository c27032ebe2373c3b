// Code shared by all backends: every operation becomes a Call, is checked, and is submitted at once
// or with the rest of its group. Each backend implements submit().
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

  // Later calls are steps of that call of another Communicator; nullopt: calls are its own again.
  void on_behalf_of(std::optional<OuterCall> outer) { outer_ = outer; }

 protected:
  // Submits a checked call outside a group.
  virtual WorkPtr submit(Call&& call) = 0;
  // Submits an unchecked call if it equals an earlier one, which makes it valid. Null if the
  // backend cannot tell.
  virtual WorkPtr repeat(const PlainCall& /*call*/) { return nullptr; }
  // Submits the calls of a group in order; never empty. The default submits one after the other.
  virtual WorkPtr submit_group(std::vector<Call> calls);
  virtual double deadline_seconds() const = 0;
  virtual DeviceType device_type() const { return DeviceType::cpu; }

  // Gathers every rank's color and key, in rank order. Blocking and collective.
  struct Place {
    std::int64_t color = 0, key = 0;
  };
  virtual std::vector<Place> exchange_places(Place own);
  // The ranks of this rank's color in their new order. `ordinal` counts the splits of this
  // Communicator; `color` is that of the new group. With empty `ranks` the rank still takes part if
  // the backend needs every rank, and gets null.
  struct SplitPlan {
    std::int64_t ordinal = 0;
    int color = 0;
    std::vector<int> ranks;  // of this Communicator
    int rank = -1;           // this rank in the new group
  };
  virtual std::unique_ptr<Communicator> make_split(const SplitPlan& plan) = 0;

 private:
  // repeat(), unless the call is in a group or a step of another call.
  WorkPtr again(Operation operation, const void* send, void* recv, std::int64_t count, DType dtype,
                ReduceOp op, int root, const Stream& stream) {
    if (depth_ > 0 || outer_) return nullptr;
    return repeat({{operation, dtype, op, stream.device.type, root}, send, recv, count});
  }
  WorkPtr take(Call&& call);

  std::optional<OuterCall> outer_;
  int depth_ = 0;  // of nested begin_group() calls
  std::vector<Call> group_;
  std::int64_t splits_ = 0;
};

// A Work that is done when all are; `works` may be empty.
WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds);

}  // namespace shoal::collectives
