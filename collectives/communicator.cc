#include "shoal/collectives/communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/collectives/backend_communicator.h"
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

PlainCall plain(Operation operation, const void* send, void* recv, std::int64_t count, DType dtype,
                const Stream& stream, ReduceOp op = ReduceOp::sum, int root = kNoRoot) {
  return {{operation, dtype, op, stream.device.type, root}, send, recv, count};
}

Call record(const PlainCall& plain, const Stream& stream, double factor = 1) {
  Call call;
  call.operation = plain.kind.operation();
  call.send = plain.send;
  call.recv = plain.recv;
  call.count = plain.count;
  call.dtype = plain.kind.dtype();
  call.op = plain.kind.op();
  call.root = plain.kind.root();
  if (call.op == ReduceOp::premultiplied_sum) call.factor = factor;
  call.stream = stream;
  return call;
}

// Negative counts add 0 here; check_call() refuses them.
std::int64_t total(Counts counts) {
  std::int64_t sum = 0;
  for (const std::int64_t count : counts)
    sum += std::clamp(count, std::int64_t{0}, INT64_MAX - sum);
  return sum;
}

Call with_counts(Call call, Counts counts) {
  call.counts.assign(counts.begin(), counts.end());
  call.count = total(counts);
  return call;
}

}  // namespace

void Work::wait() { wait(Deadline::in_seconds(default_deadline_seconds())); }

void Work::block_stream(Stream) { wait(); }

WorkPtr make_group_work(std::vector<WorkPtr> works, double deadline_seconds) {
  return std::make_unique<GroupWork>(std::move(works), deadline_seconds);
}

WorkPtr Communicator::watch(Stream) { return nullptr; }

std::unique_ptr<Registration> Communicator::register_buffer(void*, std::int64_t) {
  return std::make_unique<Registration>();
}

// Inlined into each caller: a function call would take as long as some steps of a small operation.
[[gnu::always_inline]] inline WorkPtr BackendCommunicator::make(const PlainCall& plain,
                                                                const Stream& stream,
                                                                double factor) {
  if (WorkPtr work = again(plain)) return work;
  return take(record(plain, stream, factor));
}

WorkPtr Communicator::all_reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                                 Reduction op, Stream stream) {
  return backend_of(*this).make(
      plain(Operation::all_reduce, send, recv, count, dtype, stream, op.op), stream, op.factor);
}

WorkPtr Communicator::reduce_scatter(const void* send, void* recv, std::int64_t recv_count,
                                     DType dtype, Reduction op, Stream stream) {
  return backend_of(*this).make(
      plain(Operation::reduce_scatter, send, recv, recv_count, dtype, stream, op.op), stream,
      op.factor);
}

WorkPtr Communicator::all_gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                                 Stream stream) {
  return backend_of(*this).make(plain(Operation::all_gather, send, recv, send_count, dtype, stream),
                                stream);
}

WorkPtr Communicator::reduce_scatter_v(const void* send, void* recv, Counts counts, DType dtype,
                                       Reduction op, Stream stream) {
  return backend_of(*this).take(
      with_counts(record(plain(Operation::reduce_scatter_v, send, recv, 0, dtype, stream, op.op),
                         stream, op.factor),
                  counts));
}

WorkPtr Communicator::all_gather_v(const void* send, void* recv, Counts counts, DType dtype,
                                   Stream stream) {
  return backend_of(*this).take(with_counts(
      record(plain(Operation::all_gather_v, send, recv, 0, dtype, stream), stream), counts));
}

WorkPtr Communicator::broadcast(void* data, std::int64_t count, DType dtype, int root,
                                Stream stream) {
  return backend_of(*this).make(
      plain(Operation::broadcast, data, data, count, dtype, stream, ReduceOp::sum, root), stream);
}

WorkPtr Communicator::reduce(const void* send, void* recv, std::int64_t count, DType dtype,
                             Reduction op, int root, Stream stream) {
  return backend_of(*this).take(record(
      plain(Operation::reduce, send, recv, count, dtype, stream, op.op, root), stream, op.factor));
}

WorkPtr Communicator::gather(const void* send, void* recv, std::int64_t send_count, DType dtype,
                             int root, Stream stream) {
  return backend_of(*this).take(
      record(plain(Operation::gather, send, recv, send_count, dtype, stream, ReduceOp::sum, root),
             stream));
}

WorkPtr Communicator::scatter(const void* send, void* recv, std::int64_t recv_count, DType dtype,
                              int root, Stream stream) {
  return backend_of(*this).take(
      record(plain(Operation::scatter, send, recv, recv_count, dtype, stream, ReduceOp::sum, root),
             stream));
}

WorkPtr Communicator::all_to_all(const void* send, void* recv, std::int64_t count, DType dtype,
                                 Stream stream) {
  return backend_of(*this).take(
      record(plain(Operation::all_to_all, send, recv, count, dtype, stream), stream));
}

WorkPtr Communicator::all_to_all_v(const void* send, Counts send_counts, void* recv,
                                   Counts recv_counts, DType dtype, Stream stream) {
  Call call = with_counts(
      record(plain(Operation::all_to_all_v, send, recv, 0, dtype, stream), stream), send_counts);
  call.recv_counts.assign(recv_counts.begin(), recv_counts.end());
  return backend_of(*this).take(std::move(call));
}

WorkPtr Communicator::barrier(Stream stream) {
  return backend_of(*this).make(plain(Operation::barrier, nullptr, nullptr, 0, DType::u8, stream),
                                stream);
}

WorkPtr Communicator::send(const void* data, std::int64_t count, DType dtype, int peer,
                           Stream stream) {
  return backend_of(*this).take(record(
      plain(Operation::send, data, nullptr, count, dtype, stream, ReduceOp::sum, peer), stream));
}

WorkPtr Communicator::recv(void* data, std::int64_t count, DType dtype, int peer, Stream stream) {
  return backend_of(*this).take(record(
      plain(Operation::recv, nullptr, data, count, dtype, stream, ReduceOp::sum, peer), stream));
}

void Communicator::begin_group() { ++backend_of(*this).depth_; }

WorkPtr BackendCommunicator::call(Call call) {
  if (call.op != ReduceOp::premultiplied_sum) call.factor = 1;
  if (!call.counts.empty()) call.count = total(call.counts);
  // A broadcast uses one buffer: the record's send at the root, its recv elsewhere.
  if (call.operation == Operation::broadcast && rank() == call.root)
    call.recv = const_cast<void*>(call.send);
  else if (call.operation == Operation::broadcast)
    call.send = call.recv;
  if (call.counts.empty())
    if (WorkPtr work = again(call.plain())) return work;
  return take(std::move(call));
}

WorkPtr BackendCommunicator::take(Call&& call) {
  const OperationTraits& is = traits(call.operation);
  if (is.only_root_sends && rank() != call.root) call.send = nullptr;
  if (is.only_root_receives && rank() != call.root) call.recv = nullptr;
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

WorkPtr Communicator::end_group() {
  BackendCommunicator& of = backend_of(*this);
  SHOAL_CHECK(of.depth_ > 0, "end_group without begin_group");
  if (--of.depth_ > 0) return nullptr;
  return of.submit_together(std::exchange(of.group_, {}));
}

std::vector<Call> BackendCommunicator::recorded(const std::function<void()>& body) {
  SHOAL_ASSERT(depth_ == 0);
  begin_group();
  try {
    body();
  } catch (...) {
    depth_ = 0;
    group_.clear();
    throw;
  }
  depth_ = 0;
  return std::exchange(group_, {});
}

WorkPtr BackendCommunicator::submit_together(std::vector<Call> calls) {
  if (calls.empty()) return make_group_work({}, deadline_seconds());
  return submit_group(std::move(calls));
}

WorkPtr BackendCommunicator::submit_group(std::vector<Call> calls) {
  std::vector<WorkPtr> works;
  for (Call& call : calls) works.push_back(submit(std::move(call)));
  return make_group_work(std::move(works), deadline_seconds());
}

std::vector<BackendCommunicator::Place> BackendCommunicator::exchange_places(Place own) {
  std::vector<Place> places(static_cast<std::size_t>(size()));
  submit(record(plain(Operation::split, &own, places.data(), 2, DType::i64, Stream{}), Stream{}))
      ->wait(Deadline::in_seconds(deadline_seconds()));
  return places;
}

std::unique_ptr<Communicator> BackendCommunicator::make_split(const SplitPlan&) {
  SHOAL_ASSERT(false);
}

std::unique_ptr<Communicator> BackendCommunicator::split(int color, int key) {
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
