// Operations between hosts whose messages travel directly from and into device memory.
#include <algorithm>
#include <array>
#include <cstring>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::device {
namespace {

bool is_gather(Operation operation) {
  return operation == Operation::all_gather || operation == Operation::all_gather_v;
}

}  // namespace

// Sets rdma_ on all ranks or on none. Returns why not, naming a rank; empty: rdma_ is set.
// Collective.
std::string DeviceEngine::set_up_rdma() {
  struct Word {
    std::array<char, 240> problem{};  // empty: none
    std::int32_t reaches_neighbours = 1;
  };
  Word own;
  const auto say = [&](const std::string& why) {
    if (own.problem[0] == 0) why.copy(own.problem.data(), own.problem.size() - 1);
  };
  try {
    auto* const rdma = dynamic_cast<DeviceRdma*>(inner_.get());
    if (!fabric::gpudirect_is_wanted()) say("SHOAL_GPUDIRECT is off");
    if (!rdma) say(fmt::format("the {} backend carries host memory only", inner_->backend()));
    if (rdma) say(rdma->rdma_problem(device()));
    say(access_->cards_problem());
    if (own.problem[0] == 0) {
      rdma_ = std::make_unique<RdmaMemory>(*rdma, memory_, *access_);
      rdma_->try_it();
    }
  } catch (const Error& error) {
    say(error.message());
  }
  if (placement_->nodes() < size_) {
    const std::string why = reach_neighbours();
    own.reaches_neighbours = why.empty();
    if (!why.empty()) log::debug("rank {} reaches no neighbour: {}", rank_, why);
  }
  std::vector<Word> all(at(size_));
  inner_->all_gather(&own, all.data(), sizeof(Word), DType::u8)
      ->wait(Deadline::in_seconds(setup_.deadline_seconds));
  neighbours_ = std::ranges::all_of(all, [](const Word& w) { return w.reaches_neighbours != 0; });
  for (int rank = 0; rank < size_; ++rank) {
    if (all[at(rank)].problem[0] == 0) continue;
    rdma_.reset();
    return fmt::format("no GPUDirect, since on rank {} {}", rank, all[at(rank)].problem.data());
  }
  log::once(log::Level::info, "device-rdma",
            fmt::format("{} ranks with {} on {} hosts: messages between them leave from and arrive "
                        "in device memory (GPUDirect); sums{} pass through pinned host memory",
                        size_, to_string(device()), placement_->nodes(),
                        neighbours_ ? "" : ", and all_gather,"));
  return {};
}

// Depends only on the call, so all ranks agree.
bool DeviceEngine::uses_rdma(const Call& call) const {
  if (!rdma_ || !is_of_messages(call.operation)) return false;
  if (is_gather(call.operation) && !neighbours_) return false;
  const std::int64_t longest = longest_message(call, size_);
  return longest < 0 || longest > rdma_->rdma().eager_bytes();
}

// Returns memory for the messages of [wanted, wanted + bytes): that range itself if network cards
// reach it, otherwise a new `block`. Null: neither is possible.
std::byte* DeviceEngine::rdma_place(const void* wanted, std::int64_t bytes, Buffer& block) {
  if (rdma_->reach(wanted, bytes)) return static_cast<std::byte*>(const_cast<void*>(wanted));
  if (bytes > setup_.copy_bytes) return nullptr;
  try {
    block = Buffer(memory_, static_cast<std::size_t>(bytes), MemoryTag::communication, in_.view());
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::out_of_memory) throw;
    return nullptr;
  }
  if (rdma_->reach(block.data(), bytes)) return static_cast<std::byte*>(block.data());
  block.reset();
  return nullptr;
}

bool DeviceEngine::carry_out_by_rdma(DeviceOperation& operation, const Call& call) {
  if (!uses_rdma(call)) return false;
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  const bool broadcasts = call.operation == Operation::broadcast;
  // A broadcast has only a recv buffer. On the root it is read.
  const std::int64_t sent = broadcasts ? 0 : call.send_bytes(rank_, size_);
  const std::int64_t received = call.recv_bytes(rank_, size_);
  Buffer send_block, recv_block;
  std::byte* const send = rdma_place(call.send, sent, send_block);
  std::byte* const recv = rdma_place(call.recv, received, recv_block);
  const bool usable = (sent == 0 || send) && (received == 0 || recv);

  // Waits here rather than on in_, which has copies of other operations queued.
  until(call, [&] { return operation.ready.query(); });
  const auto copy = [&](Stream stream, void* to, const void* from, std::int64_t bytes) {
    if (bytes > 0 && to != from) backend_.copy(to, from, static_cast<std::size_t>(bytes), stream);
  };
  if (usable) {
    if (send_block) copy(in_.view(), send, call.send, sent);
    if (recv_block && broadcasts && rank_ == call.root) copy(in_.view(), recv, call.recv, received);
    const OwnPart own = own_part(call, rank_, size_);
    if (own.count > 0)
      copy(in_.view(), recv + own.to * element, send + own.from * element, own.count * element);
  }
  Event copied(device());
  copied.record(in_.view());
  until(call, [&] { return copied.query(); });

  const bool shares = is_gather(call.operation) && placement_->nodes() < size_;
  const std::vector<RdmaPlaces> places = exchange_rdma_places(
      call, {shares && usable ? place_of(send, sent) : SharedPlace{},
             shares && usable ? place_of(recv, received) : SharedPlace{}, usable ? 1u : 0u});
  if (places.empty()) return false;
  Call messages = call;
  messages.send = send;
  messages.recv = recv;
  messages.stream = {};
  messages.outer = step_of_;
  until_done(*rdma_->exchange(std::move(messages), rank_, *placement_));
  access_->flush_cards_writes();
  if (shares) take_from_neighbours(call, places, recv);
  if (recv_block && !(broadcasts && rank_ == call.root)) {
    copy(out_.view(), call.recv, recv, received);
    copied.record(out_.view());
    until(call, [&] { return copied.query(); });
  }
  const std::lock_guard lock(mutex_);
  if (send_block || recv_block) {
    ++statistics_.bounced;
    statistics_.bounced_bytes += static_cast<std::int64_t>(send_block.size());
  } else {
    ++statistics_.zero_copy;
  }
  return true;
}

// Blocking. Returns every rank's places, or nothing if a rank's buffers cannot be reached.
std::vector<DeviceEngine::RdmaPlaces> DeviceEngine::exchange_rdma_places(const Call& call,
                                                                         const RdmaPlaces& own) {
  std::vector<RdmaPlaces> all(at(size_));
  until_done(*inner_->all_gather(&own, all.data(), sizeof(RdmaPlaces), DType::u8));
  for (int rank = 0; rank < size_; ++rank) {
    if (all[at(rank)].usable != 0) continue;
    log::once(log::Level::info, "device-call-without-rdma",
              fmt::format("{} passes through pinned host memory: a buffer of rank {} is not from "
                          "memory_resource(), and too large to be copied there",
                          describe(call), rank));
    return {};
  }
  return all;
}

// Copies the parts that other ranks of this host have: their own and those they received for all.
void DeviceEngine::take_from_neighbours(const Call& call, const std::vector<RdmaPlaces>& places,
                                        std::byte* recv) {
  until_done(*inner_->barrier());  // all data has arrived
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  std::int64_t begin = 0;  // bytes
  for (int owner = 0; owner < size_; ++owner) {
    const std::int64_t bytes =
        (call.counts.empty() ? call.count : call.counts[at(owner)]) * element;
    const int carrier = carrier_of(owner, rank_, *placement_);
    if (bytes > 0 && carrier != rank_) {
      const bool is_own = carrier == owner;
      const std::byte* from =
          opened_->pointer(carrier, is_own ? places[at(carrier)].send : places[at(carrier)].recv);
      backend_.copy(recv + begin, from + (is_own ? 0 : begin), static_cast<std::size_t>(bytes),
                    out_.view());
    }
    begin += bytes;
  }
  Event copied(device());
  copied.record(out_.view());
  until(call, [&] { return copied.query(); });
  until_done(*inner_->barrier());  // no rank reads here any more
}

}  // namespace shoal::collectives::device
