#include "shoal/collectives/backend/net/net_group.h"

#include <algorithm>

namespace shoal::collectives::net {
namespace {

constexpr std::uint32_t kMessageBits = 16;

// Both sides use the sender's signature, so that they compare equal. `receiver`: the receiver's
// rank in the job.
Signature message_signature(const Call& call, int receiver) {
  Signature signature = signature_of(call);
  if (call.operation == Operation::recv) signature.operation = Operation::send;
  if (!call.outer) signature.root = receiver;
  return signature;
}

// Bytes that a program has in flight, whatever the sizes of the call's buffers.
std::int64_t message_bytes(const algorithm::Program& program, DType dtype) {
  std::int64_t sent = 0, received = 0;
  for (const algorithm::Instruction& instruction : program.instructions) {
    if (instruction.verb == algorithm::Verb::send) sent += instruction.sources.front().count;
    if (instruction.verb == algorithm::Verb::receive) received += instruction.target.count;
  }
  return std::max(sent, received) * static_cast<std::int64_t>(size_of(dtype));
}

}  // namespace

NetGroup::NetGroup(std::shared_ptr<NetEngine> engine, std::uint32_t id, std::vector<int> members,
                   int rank, const CommunicatorOptions& options, std::string name,
                   std::uint32_t first)
    : engine_(std::move(engine)),
      id_(id),
      members_(std::make_shared<const std::vector<int>>(std::move(members))),
      rank_(rank),
      name_(std::move(name)),
      flight_(
          name_.empty() || options.flight_directory.empty()
              ? nullptr
              : std::make_shared<FlightRecorder>(name_, rank, *members_, options.flight_directory)),
      next_(first),
      channel_(std::make_shared<Channel>(kCollectiveReach)),
      programs_(rank, static_cast<int>(members_->size()), options) {
  SHOAL_CHECK(members_->size() < (std::size_t{1} << (32 - kMessageBits)),
              "a group of {} ranks; at most {}", members_->size(), (1 << (32 - kMessageBits)) - 1);
  if (flight_) engine_->record(flight_);
}

std::string NetGroup::split_name(std::int64_t ordinal, int color) const {
  return name_.empty() ? name_ : fmt::format("{}/split/{}/{}", name_, ordinal, color);
}

std::shared_ptr<NetOperation> NetGroup::submit(Call call) {
  return submit_with(&NetEngine::submit, std::move(call));
}

std::shared_ptr<NetOperation> NetGroup::submit_locked(Call call) {
  return submit_with(&NetEngine::submit_locked, std::move(call));
}

std::shared_ptr<NetOperation> NetGroup::submit_with(Put put, Call call) {
  if (is_message(call.operation)) {
    Lane& lane = lanes_[{call.root, call.operation == Operation::send}];
    if (!lane.channel) lane.channel = std::make_shared<Channel>(kMessageReach);
    auto operation = message(std::move(call), lane);
    ((*engine_).*put)(lane.channel, operation);
    return operation;
  }
  keep_together(put);
  auto operation = collective(std::move(call));
  ((*engine_).*put)(channel_, operation);
  return operation;
}

std::shared_ptr<NetOperation> NetGroup::submit_program_locked(
    Call call, std::shared_ptr<const CompiledProgram> program, const Signature& signature) {
  return submit_program_with(&NetEngine::submit_locked, std::move(call), std::move(program),
                             signature);
}

std::shared_ptr<NetOperation> NetGroup::submit_program(
    Call call, std::shared_ptr<const CompiledProgram> program, const Signature& signature) {
  return submit_program_with(&NetEngine::submit, std::move(call), std::move(program), signature);
}

std::shared_ptr<NetOperation> NetGroup::submit_program_with(
    Put put, Call call, std::shared_ptr<const CompiledProgram> program,
    const Signature& signature) {
  keep_together(put);
  auto operation = std::make_shared<NetOperation>();
  operation->program = std::move(program);
  operation->members = members_;
  operation->bytes = message_bytes(operation->program->program(), call.dtype);
  operation->call = std::move(call);
  operation->signature = signature;
  number(*operation);
  ((*engine_).*put)(channel_, operation);
  return operation;
}

void NetGroup::submit(const std::shared_ptr<Task>& task, const Call& call) {
  keep_together(&NetEngine::submit);
  task->signature = signature_of(call);
  number(*task);
  engine_->submit(task);
}

void NetGroup::keep_together(Put put) {
  if (next_ % kCollectiveReach != 0) return;
  auto together = collective(Call{});
  together->internal = true;
  ((*engine_).*put)(channel_, std::move(together));
}

void NetGroup::number(InFlight& operation) {
  operation.flight = flight_;
  operation.number = next_;
  operation.key = {id_, next_};
  ++next_;
}

std::shared_ptr<NetOperation> NetGroup::prepared(Call call, bool acknowledged) {
  auto operation = std::make_shared<NetOperation>();
  operation->program = programs_.get(call, acknowledged);
  operation->members = members_;
  operation->bytes = std::max(call.send_bytes(rank_, size()), call.recv_bytes(rank_, size()));
  operation->call = std::move(call);
  return operation;
}

std::shared_ptr<NetOperation> NetGroup::collective(Call call) {
  auto operation = prepared(std::move(call), false);
  operation->signature = signature_of(operation->call);
  last_ = operation->program;
  operation->signature.algorithm = static_cast<std::uint8_t>(last_->selection().algorithm);
  number(*operation);
  return operation;
}

// The k-th message from a to b is operation (b, k mod 2^16) of a's group id. At most kMessageReach
// of them are in flight, because the receiver acknowledges one of every kMessageReach messages.
std::shared_ptr<NetOperation> NetGroup::message(Call call, Lane& lane) {
  const bool sends = call.operation == Operation::send;
  const int sender = sends ? rank_ : call.root, receiver = sends ? call.root : rank_;
  auto operation = prepared(std::move(call), lane.next % kMessageReach == kMessageReach - 1);
  operation->signature =
      message_signature(operation->call, (*members_)[static_cast<std::size_t>(receiver)]);
  operation->flight = flight_;
  operation->number = lane.next;
  operation->key = {id_ + 1 + static_cast<std::uint32_t>(sender),
                    static_cast<std::uint32_t>(receiver) << kMessageBits |
                        (lane.next & ((1u << kMessageBits) - 1))};
  ++lane.next;
  return operation;
}

CommunicatorStatistics NetGroup::statistics() const {
  CommunicatorStatistics sum;
  sum.transport = engine_->endpoint_name();
  if (last_ && last_->selection().algorithm != Algorithm::automatic) {
    sum.algorithm = to_string(last_->selection().algorithm);
    sum.why = last_->selection().why;
  }
  const auto add = [&](const Channel& channel) {
    sum.operations += channel.completed.load();
    sum.by_progress_thread += channel.by_progress_thread.load();
  };
  add(*channel_);
  for (const auto& [peer, lane] : lanes_) add(*lane.channel);
  return sum;
}

}  // namespace shoal::collectives::net
