#include "shoal/collectives/backend/device/device_communicator.h"

#include <array>

#include <unistd.h>

#include "shoal/collectives/backend/engine_base.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives::device {
namespace {

using DeviceWork = EngineWork<DeviceEngine, DeviceOperation>;

// The Work of copies that a single rank has queued on the call's stream.
class QueuedWork final : public Work {
 public:
  QueuedWork(Stream stream, double deadline_seconds)
      : done_(stream.device), deadline_seconds_(deadline_seconds) {
    done_.record(stream);
  }
  bool test() override { return done_.query(); }
  void wait(Deadline deadline) override {
    for (Backoff backoff; !test(); backoff.take())
      if (deadline.passed())
        throw Error(ErrorCode::timeout, "the device did not finish what it was given in time",
                    "see what else runs on it, or raise SHOAL_DEADLINE_S");
  }
  double default_deadline_seconds() const override { return deadline_seconds_; }
  void block_stream(Stream stream) override {
    if (stream.device.is_cpu())
      Work::wait();
    else
      done_.block_stream(stream);
  }

 private:
  Event done_;
  double deadline_seconds_;
};

DeviceEngine::Setup setup_of(const DeviceCommunicator::Options& options) {
  return {.stream = options.stream,
          .host = options.host,
          .fixed_order = options.fixed_order,
          .deadline_seconds = options.deadline_seconds,
          .counted_by = options.counted_by,
          .pinned = options.pinned,
          .slice_bytes = options.slice_bytes,
          .copy_bytes = options.copy_bytes,
          .levels_from = options.levels_from,
          .gates = options.gates,
          .family = options.family};
}

}  // namespace

DeviceCommunicator::DeviceCommunicator(std::unique_ptr<Communicator> host, Options options)
    : options_(std::move(options)),
      host_(std::move(host)),
      engine_(std::make_shared<DeviceEngine>(host_->split(0, host_->rank()), setup_of(options_))),
      reductions_(options_.stream.device, options_.fixed_order) {
  options_.family->join(host_);
}

CommunicatorStatistics DeviceCommunicator::statistics() const {
  CommunicatorStatistics statistics = engine_->statistics();
  if (statistics.transport.empty()) statistics.transport = host_->statistics().transport;
  statistics.operations += alone_operations_;
  return statistics;
}

void DeviceCommunicator::abort(std::string_view reason) {
  engine_->abort(reason);
  host_->abort(reason);
}

WorkPtr DeviceCommunicator::submit(Call&& call) {
  if (size() == 1) return alone(call);
  return work_of(engine_->submit(std::move(call)));
}

WorkPtr DeviceCommunicator::work_of(std::shared_ptr<DeviceOperation> operation) {
  last_ = std::move(operation);
  return std::make_unique<DeviceWork>(engine_, last_);
}

WorkPtr DeviceCommunicator::watch(Stream) {
  return last_ ? std::make_unique<DeviceWork>(engine_, last_) : nullptr;
}

WorkPtr DeviceCommunicator::submit_group(std::vector<Call> calls) {
  if (size() == 1 || calls.size() == 1 || !engine_->may_join(calls))
    return BackendCommunicator::submit_group(std::move(calls));
  return work_of(engine_->submit(std::move(calls)));
}

WorkPtr DeviceCommunicator::alone(const Call& call) {
  host_->barrier()->wait();  // throws the Error of an abort
  if (call.operation == Operation::all_to_all_v && call.counts != call.recv_counts)
    throw Error(ErrorCode::mismatch,
                fmt::format("rank {} sends {} elements to itself, and expects {}", rank(),
                            call.counts.front(), call.recv_counts.front()));
  const auto bytes = static_cast<std::size_t>(call.send_bytes(0, 1));
  if (bytes > 0 && call.recv != call.send)
    device_backend(device_type()).copy(call.recv, call.send, bytes, call.stream);
  if (bytes > 0 && call.op == ReduceOp::premultiplied_sum)
    reductions_.get().scale(call.dtype, call.recv, call.factor, call.count, call.stream);
  ++alone_operations_;
  return std::make_unique<QueuedWork>(call.stream, deadline_seconds());
}

std::vector<BackendCommunicator::Place> DeviceCommunicator::exchange_places(Place own) {
  std::vector<Place> places(static_cast<std::size_t>(size()));
  const std::array<std::int64_t, 2> mine{own.color, own.key};
  std::vector<std::int64_t> all(2 * places.size());
  host_->all_gather(mine.data(), all.data(), 2, DType::i64)->wait();
  for (std::size_t peer = 0; peer < places.size(); ++peer)
    places[peer] = {all[2 * peer], all[2 * peer + 1]};
  return places;
}

std::unique_ptr<Communicator> DeviceCommunicator::make_split(const SplitPlan& plan) {
  auto part = host_->split(plan.ranks.empty() ? -1 : plan.color, plan.rank);
  if (!part) return nullptr;
  return std::make_unique<DeviceCommunicator>(std::move(part), options_);
}

std::unique_ptr<Communicator> make_device_communicator(std::unique_ptr<Communicator> host,
                                                       const World& world,
                                                       const CommunicatorOptions& options) {
  std::string name = world.host;
  if (name.empty()) {
    std::array<char, 256> buffer{};
    gethostname(buffer.data(), buffer.size() - 1);
    name = buffer.data();
  }
  return std::make_unique<DeviceCommunicator>(
      std::move(host), DeviceCommunicator::Options{.stream = options.stream,
                                                   .host = std::move(name),
                                                   .fixed_order = options.fixed_order,
                                                   .deadline_seconds = options.deadline_seconds,
                                                   .counted_by = options.counted_by,
                                                   .pinned = options.pinned,
                                                   .gates = env::get_boolean(env::kStreamGates)});
}

}  // namespace shoal::collectives::device
