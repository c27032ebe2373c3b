#include "shoal/collectives/backend/call_communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

constexpr int kNoRoot = -1;

class GroupWork final : public Work {
 public:
  GroupWork(std::vector<WorkPtr> works, double deadline_seconds)
      : works_(std::move(works)), deadline_seconds_(deadline_seconds) {}
  bool test() override {
    return std::ranges::all_of(works_, [](const WorkPtr& work) { return work->test(); });
  }
  void wait(Deadline deadline) override {
    for (const WorkPtr& work : works_) work->wait(deadline);
  }
  double default_deadline_seconds() const override { return deadline_seconds_; }
  void block_stream(Stream stream) override {
    for (const WorkPtr& work : works_) work->block_stream(stream);
  }

 private:
  std::vector<WorkPtr> works_;
  double deadline_seconds_;
};

Call make_call(Operation operation, const void* send, void* recv, std::int64_t count, DType dtype,
               Stream stream) {
  Call call;
  call.operation = operation;
  call.send = send;
  call.recv = recv;
  call.count = count;
  call.dtype = dtype;
  call.stream = stream;
  return call;
}

Call&& reducing(Call&& call, Reduction op) {
  call.op = op.op;
  call.factor = op.op == ReduceOp::premultiplied_sum ? op.factor : 1;
  return std::move(call);
}

Call&& rooted(Call&& call, int root) {
  call.root = root;
  return std::move(call);
}

// The count of a _v call; check_call refuses negative counts.
std::int64_t total(Counts counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts)
    sum += std::clamp(count, std::int64_t{0}, INT64_MAX - sum);
  return sum;
}

Call&& with_counts(Call&& call, Counts counts) {
  call.counts.assign(counts.begin(), counts.end());
  call.count = total(counts);
  return std::move(call);
}

}  // namespace

WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds) {
  return std::make_unique<GroupWork>(std::move(works), deadline_seconds);
}

WorkPtr CallCommunicator::all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                     Reduction op, Stream stream) {
  if (WorkPtr work = again(Operation::all_reduce, send, recv, count, dtype, op.op, kNoRoot, stream))
    return work;
  return take(reducing(make_call(Operation::all_reduce, send, recv, count, dtype, stream), op));
}

WorkPtr CallCommunicator::reduce_scatter(const void* send, void* recv, std::int64_t recv_count,
                                         DType dtype, Reduction op, Stream stream) {
  if (WorkPtr work =
          again(Operation::reduce_scatter, send, recv, recv_count, dtype, op.op, kNoRoot, stream))
    return work;
  return take(
      reducing(make_call(Operation::reduce_scatter, send, recv, recv_count, dtype, stream), op));
}

WorkPtr CallCommunicator::all_gather(const void* send, void* recv, std::int64_t send_count,
                                     DType dtype, Stream stream) {
  if (WorkPtr work = again(Operation::all_gather, send, recv, send_count, dtype, ReduceOp::sum,
                           kNoRoot, stream))
    return work;
  return take(make_call(Operation::all_gather, send, recv, send_count, dtype, stream));
}

WorkPtr CallCommunicator::reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype,
                                           Reduction op, Stream stream) {
  return take(reducing(
      with_counts(make_call(Operation::reduce_scatter_v, send, recv, 0, dtype, stream), counts),
      op));
}

WorkPtr CallCommunicator::all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                                       Stream stream) {
  return take(
      with_counts(make_call(Operation::all_gather_v, send, recv, 0, dtype, stream), counts));
}

WorkPtr CallCommunicator::broadcast(void* data, std::int64_t count, DType dtype, int root,
                                    Stream stream) {
  if (WorkPtr work =
          again(Operation::broadcast, data, data, count, dtype, ReduceOp::sum, root, stream))
    return work;
  return take(rooted(make_call(Operation::broadcast, data, data, count, dtype, stream), root));
}

WorkPtr CallCommunicator::reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                 Reduction op, int root, Stream stream) {
  if (rank() != root) recv = nullptr;
  return take(
      rooted(reducing(make_call(Operation::reduce, send, recv, count, dtype, stream), op), root));
}

WorkPtr CallCommunicator::gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                                 int root, Stream stream) {
  if (rank() != root) recv = nullptr;
  return take(rooted(make_call(Operation::gather, send, recv, send_count, dtype, stream), root));
}

WorkPtr CallCommunicator::scatter(const void* send, void* recv, std::int64_t recv_count,
                                  DType dtype, int root, Stream stream) {
  if (rank() != root) send = nullptr;
  return take(rooted(make_call(Operation::scatter, send, recv, recv_count, dtype, stream), root));
}

WorkPtr CallCommunicator::all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                                     Stream stream) {
  return take(make_call(Operation::all_to_all, send, recv, count, dtype, stream));
}

WorkPtr CallCommunicator::all_to_all_v(const void* send, Counts send_counts, void* recv,
                                       Counts recv_counts, DType dtype, Stream stream) {
  Call call =
      with_counts(make_call(Operation::all_to_all_v, send, recv, 0, dtype, stream), send_counts);
  call.recv_counts.assign(recv_counts.begin(), recv_counts.end());
  return take(std::move(call));
}

WorkPtr CallCommunicator::barrier(Stream stream) {
  if (WorkPtr work =
          again(Operation::barrier, nullptr, nullptr, 0, DType::u8, ReduceOp::sum, kNoRoot, stream))
    return work;
  return take(make_call(Operation::barrier, nullptr, nullptr, 0, DType::u8, stream));
}

WorkPtr CallCommunicator::send(const void* data, std::int64_t count, DType dtype, int peer,
                               Stream stream) {
  return take(rooted(make_call(Operation::send, data, nullptr, count, dtype, stream), peer));
}

WorkPtr CallCommunicator::recv(void* data, std::int64_t count, DType dtype, int peer,
                               Stream stream) {
  return take(rooted(make_call(Operation::recv, nullptr, data, count, dtype, stream), peer));
}

WorkPtr CallCommunicator::take(Call&& call) {
  if (call.stream.device.is_cpu()) call.stream = stream();
  try {
    check_call(call, rank(), size(), device_type());
  } catch (const Error&) {
    depth_ = 0;  // discards the group: later calls would otherwise wait for its end forever
    group_.clear();
    throw;
  }
  call.outer = outer_;
  if (depth_ == 0) return submit(std::move(call));
  group_.push_back(std::move(call));
  return nullptr;
}

void CallCommunicator::begin_group() { ++depth_; }

WorkPtr CallCommunicator::end_group() {
  SHOAL_CHECK(depth_ > 0, "end_group without begin_group");
  if (--depth_ > 0) return nullptr;
  std::vector<Call> calls = std::exchange(group_, {});
  if (calls.empty()) return make_group_work({}, deadline_seconds());
  return submit_group(std::move(calls));
}

WorkPtr CallCommunicator::submit_group(std::vector<Call> calls) {
  std::vector<WorkPtr> works;
  for (Call& call : calls) works.push_back(submit(std::move(call)));
  return make_group_work(std::move(works), deadline_seconds());
}

std::vector<CallCommunicator::Place> CallCommunicator::exchange_places(Place own) {
  std::vector<Place> places(static_cast<std::size_t>(size()));
  Call call = make_call(Operation::split, &own, places.data(), 2, DType::i64, Stream{});
  submit(std::move(call))->wait(Deadline::in_seconds(deadline_seconds()));
  return places;
}

std::unique_ptr<Communicator> CallCommunicator::split(int color, int key) {
  SHOAL_CHECK(depth_ == 0, "split inside begin_group and end_group");
  const std::vector<Place> places = exchange_places({color, key});
  SplitPlan plan;
  plan.ordinal = splits_++;
  plan.color = color;
  for (int peer = 0; color >= 0 && peer < size(); ++peer)
    if (places[static_cast<std::size_t>(peer)].color == color) plan.ranks.push_back(peer);
  std::ranges::stable_sort(plan.ranks, {},
                           [&](int peer) { return places[static_cast<std::size_t>(peer)].key; });
  const auto own = std::ranges::find(plan.ranks, rank());
  if (own != plan.ranks.end()) plan.rank = static_cast<int>(own - plan.ranks.begin());
  return make_split(plan);
}

}  // namespace shoal::collectives
