// Operations in the ranks' own device memory. Each rank reads its peers' data.
#include <array>
#include <cstring>
#include <numeric>

#include <sys/stat.h>
#include <unistd.h>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/backend/tree_reduction.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::device {
namespace {

// Facts that a rank tells the others about itself at the start.
struct Introduction {
  std::uint64_t host = 0;
  std::uint64_t processes = 0;  // PID namespace of `process`
  std::int32_t process = 0;
  std::int32_t device = 0;
  std::uint64_t segments = 0;  // Segments::number()
};

Introduction introduce(const std::string& host, Device device) {
  Introduction own;
  const std::vector<std::int64_t> letters(host.begin(), host.end());
  own.host = hash_counts(letters);
  struct stat status{};
  if (stat("/proc/self/ns/pid", &status) == 0) own.processes = status.st_ino;
  own.process = getpid();
  own.device = device.index;
  return own;
}

// Every rank's value, in rank order. Blocking.
template <typename T>
std::vector<T> gather_all(Communicator& communicator, const T& own, double seconds) {
  std::vector<T> all(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(&own, all.data(), sizeof(T), DType::u8)
      ->wait(Deadline::in_seconds(seconds));
  return all;
}

}  // namespace

void DeviceEngine::meet() {
  Introduction own = introduce(setup_.host, device());
  own.segments = memory_.segments().number();
  const auto all = gather_all(*inner_, own, setup_.deadline_seconds);
  std::vector<bool> same(at(size_));
  std::vector<std::string> hosts;
  bool one_host = true;
  for (int peer = 0; peer < size_; ++peer) {
    const Introduction& other = all[at(peer)];
    same[at(peer)] =
        other.host == own.host && other.processes == own.processes && other.process == own.process;
    one_host = one_host && other.host == all.front().host;
    hosts.push_back(std::to_string(other.host));
    devices_.push_back({device().type, static_cast<std::int16_t>(other.device)});
    processes_ = processes_ || other.processes != all.front().processes ||
                 other.process != all.front().process;
  }
  placement_.emplace(hosts);
  same_process_ = same;
  opened_ = std::make_unique<OpenedSegments>(access_, same);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && same[at(peer)]) opened_->keep(Segments::find(all[at(peer)].segments));
  std::string why;
  if (!one_host) {
    if (size_ > 1) why = set_up_rdma();
    meet_levels();
    if (rdma_) return;
    why = "they are on several hosts, with " + why;
  } else {
    why = reach_neighbours();
    std::int32_t fine = why.empty() ? 1 : 0;
    inner_->all_reduce(&fine, &fine, 1, DType::i32, ReduceOp::min)
        ->wait(Deadline::in_seconds(setup_.deadline_seconds));
    direct_ = fine == 1;
    if (why.empty()) why = "another rank cannot open its peers' memory";
  }
  if (!direct_)
    log::once(log::Level::info, "device-staging",
              fmt::format("{} ranks with {} pass data {}through pinned host memory{}: {}", size_,
                          to_string(device()), levels_ ? "between hosts " : "",
                          levels_ ? ", each its share of large operations" : "", why));
}

// Why this rank cannot access the memory of its host's other ranks. Empty: it can. Collective.
std::string DeviceEngine::reach_neighbours() {
  std::string why;
  std::vector<bool> near(at(size_));
  for (int peer = 0; peer < size_; ++peer)
    near[at(peer)] = placement_->node_of(peer) == placement_->node_of(rank_);
  try {
    for (int peer = 0; peer < size_; ++peer)
      if (near[at(peer)] && same_process_[at(peer)]) access_->reach(devices_[at(peer)]);
  } catch (const Error& error) {
    why = error.message();
  }
  if (!processes_) return why;
  const std::string other = try_opening(near);
  return why.empty() ? other : why;
}

// Why this rank cannot open a segment of each of `which`. Empty: it can. Collective.
std::string DeviceEngine::try_opening(const std::vector<bool>& which) {
  std::string why;
  SharedPlace own;
  try {
    void* probe = memory_.allocate(256, MemoryTag::communication, {});
    memory_.deallocate(probe, 256, MemoryTag::communication, {});
    own = place_of(probe, 256);
  } catch (const Error& error) {
    why = error.message();
  }
  const auto places = gather_all(*inner_, own, setup_.deadline_seconds);
  try {
    for (int peer = 0; peer < size_ && why.empty(); ++peer) {
      if (peer == rank_ || !which[at(peer)]) continue;
      if (places[at(peer)].base == 0)
        why = fmt::format("rank {} cannot share its memory", peer);
      else
        (void)opened_->pointer(peer, places[at(peer)]);
    }
  } catch (const Error& error) {
    why = error.message();
  }
  return why;
}

SharedPlace DeviceEngine::place_of(const void* pointer, std::int64_t bytes) {
  SharedPlace place;
  void* segment = memory_.segment_of(pointer, static_cast<std::size_t>(bytes));
  if (!segment) return place;
  place.base = reinterpret_cast<std::uint64_t>(segment);
  place.offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(pointer) -
                                            static_cast<const std::byte*>(segment));
  if (processes_) place.handle = memory_.exported(segment);
  return place;
}

// Depends only on the call, so all ranks agree.
bool DeviceEngine::may_be_direct(const Call& call) const {
  if (call.operation == Operation::all_to_all_v) return false;  // no rank knows all counts
  if (!call.reduces()) return true;
  // Reductions that the device's kernels lack; see tree_reduction.h.
  if (call.op == ReduceOp::premultiplied_sum) return false;
  if (call.op == ReduceOp::avg && size_of(call.dtype) == 2) return false;
  constexpr int kSources = 64;  // limit of the device's kernels
  return size_ <= kSources && (!setup_.fixed_order || !is_floating(call.dtype) || size_ <= 3);
}

bool DeviceEngine::peers_read(const Call& call) const {
  return direct_ || neighbours_read_send(call, rank_);
}

// A rank that sums a share of the elements writes it to all ranks, or to the root. In an operation
// by levels, a rank that receives a share from another host writes it to its neighbours.
bool DeviceEngine::peers_write(const Call& call) const {
  if (!direct_) return neighbours_write_recv(call, rank_);
  return call.operation == Operation::all_reduce || call.operation == Operation::reduce;
}

// Called by the thread that makes the calls, on their streams. Buffers that are too large, or for
// which there is no room, stay where they are. The operation then passes through host memory.
void DeviceEngine::make_reachable(DeviceOperation& operation) {
  if (!direct_ && !levels_) return;
  for (std::size_t i = 0; i < operation.calls.size(); ++i) {
    Call& call = operation.calls[i];
    if (call.operation == Operation::barrier || call.operation == Operation::recv ||
        !(direct_ ? may_be_direct(call) : goes_by_levels(call)))
      continue;
    const std::int64_t sent = call.send_bytes(rank_, size_),
                       received = call.recv_bytes(rank_, size_);
    const auto is_elsewhere = [&](const void* pointer, std::int64_t bytes) {
      return bytes > 0 && bytes <= setup_.copy_bytes &&
             memory_.segment_of(pointer, static_cast<std::size_t>(bytes)) == nullptr;
    };
    const auto block = [&](std::int64_t bytes) {
      return Buffer(memory_, static_cast<std::size_t>(bytes), MemoryTag::communication,
                    call.stream);
    };
    const bool copies_send = peers_read(call) && is_elsewhere(call.send, sent),
               copies_recv = peers_write(call) && is_elsewhere(call.recv, received);
    if (!copies_send && !copies_recv) continue;
    ReachableCopy copy;
    try {
      // In an in-place all_gather on rank 0, both buffers begin at the same address but differ in
      // length.
      const bool in_place = call.send == call.recv && sent == received;
      if (copies_send) copy.send = block(sent);
      if (copies_recv && !(in_place && copies_send)) copy.recv = block(received);
      if (copies_recv) copy.wanted = call.recv;
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::out_of_memory) throw;
      continue;
    }
    if (copies_send)
      backend_.copy(copy.send.data(), call.send, static_cast<std::size_t>(sent), call.stream);
    if (copies_recv) call.recv = copy.recv ? copy.recv.data() : copy.send.data();
    if (copies_send) call.send = copy.send.data();
    operation.copies.resize(operation.calls.size());
    operation.copies[i] = std::move(copy);
  }
}

void DeviceEngine::copy_back(DeviceOperation& operation) {
  bool any = false;
  for (std::size_t i = 0; i < operation.copies.size(); ++i) {
    const ReachableCopy& copy = operation.copies[i];
    if (!copy.wanted) continue;
    const Call& call = operation.calls[i];
    backend_.copy(copy.wanted, call.recv, static_cast<std::size_t>(call.recv_bytes(rank_, size_)),
                  out_.view());
    any = true;
  }
  if (!any) return;
  Event done(device());
  done.record(out_.view());
  until(operation.call(), [&] { return done.query(); });
}

std::vector<DeviceEngine::Reached> DeviceEngine::exchange_places(const std::vector<Call>& calls,
                                                                 bool room) {
  struct Places {
    SharedPlace send, recv;
    std::uint64_t usable = 0;
  };
  std::vector<Places> own(calls.size());
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Call& call = calls[i];
    const auto sent = peers_read(call) ? call.send_bytes(rank_, size_) : 0,
               received = peers_write(call) ? call.recv_bytes(rank_, size_) : 0;
    if (sent > 0) own[i].send = place_of(call.send, sent);
    if (received > 0) own[i].recv = place_of(call.recv, received);
    own[i].usable =
        room && (sent == 0 || own[i].send.base != 0) && (received == 0 || own[i].recv.base != 0);
  }
  std::vector<Places> all(at(size_) * calls.size());
  until_done(*inner_->all_gather(own.data(), all.data(),
                                 std::ssize(own) * static_cast<std::int64_t>(sizeof(Places)),
                                 DType::u8));
  std::vector<Reached> reached(calls.size());
  for (int peer = 0; peer < size_; ++peer)
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const Places& places = all[at(peer) * calls.size() + i];
      if (places.usable == 0) {
        log::once(log::Level::info, "device-call-staged",
                  fmt::format("{} passes through pinned host memory: a buffer of rank {} is not "
                              "from memory_resource() and too large to be copied there, or its "
                              "device has no room",
                              describe(calls[i]), peer));
        return {};
      }
      const auto pointer = [&](const SharedPlace& place, const void* mine) -> std::byte* {
        if (peer == rank_) return static_cast<std::byte*>(const_cast<void*>(mine));
        const bool near = placement_->node_of(peer) == placement_->node_of(rank_);
        return place.base == 0 || !near ? nullptr : opened_->pointer(peer, place);
      };
      reached[i].send.push_back(pointer(places.send, calls[i].send));
      reached[i].recv.push_back(pointer(places.recv, calls[i].recv));
    }
  return reached;
}

void DeviceEngine::carry_out_directly(const std::vector<Call>& calls,
                                      const std::vector<Reached>& reached) {
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i].reduces())
      reduce_shard(calls[i], reached[i].send, reached[i].recv);
    else
      fetch(calls[i], reached[i].send, reached[i].recv[at(rank_)]);
  Event done(device());
  done.record(out_.view());
  until(calls.front(), [&] { return done.query(); });
}

// all_reduce and reduce: computes this rank's share of the elements, for all ranks or for the root.
// Others: computes this rank's own part.
void DeviceEngine::reduce_shard(const Call& call, const std::vector<std::byte*>& send,
                                const std::vector<std::byte*>& recv) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  std::int64_t begin = call.count * rank_ / size_;
  std::int64_t count = call.count * (rank_ + 1) / size_ - begin;
  std::vector<void*> destinations;
  if (call.operation == Operation::reduce_scatter) {
    begin = call.count * rank_;
    count = call.count;
  } else if (call.operation == Operation::reduce_scatter_v) {
    begin = before(call.counts, rank_);
    count = call.counts[at(rank_)];
  }
  if (count == 0) return;
  if (call.operation == Operation::all_reduce)
    for (std::byte* peer : recv) destinations.push_back(peer + begin * element);
  else if (call.operation == Operation::reduce)
    destinations.push_back(recv[at(call.root)] + begin * element);
  else
    destinations.push_back(recv[at(rank_)]);
  std::vector<const void*> sources;
  sources.reserve(send.size());
  for (const std::byte* peer : send) sources.push_back(peer + begin * element);

  const Stream stream = device().is_cpu() ? Stream{} : out_.view();
  kernels::ReductionKernels& reductions = reductions_.get();
  const kernels::Reduce operation = traits(call.op).fold;
  if (call.op != ReduceOp::avg) {
    reductions.reduce_into_all(operation, call.dtype, sources, destinations, count, false, stream);
    return;
  }
  // Scales the result before other ranks get it. Until then, only this rank uses the destination.
  reductions.reduce(operation, call.dtype, sources, destinations.front(), count, stream);
  reductions.scale(call.dtype, destinations.front(), 1.0 / size_, count, stream);
  for (std::size_t i = 1; i < destinations.size(); ++i)
    backend_.copy(destinations[i], destinations.front(), static_cast<std::size_t>(count * element),
                  out_.view());
}

// Copies data of peers into this rank's recv buffer.
void DeviceEngine::fetch(const Call& call, const std::vector<std::byte*>& send, std::byte* recv) {
  const auto element = static_cast<std::int64_t>(size_of(call.dtype));
  const auto copy = [&](int peer, std::int64_t from, std::int64_t to, std::int64_t count) {
    const std::byte* source = send[at(peer)] + from * element;
    std::byte* destination = recv + to * element;
    if (count > 0 && source != destination)
      backend_.copy(destination, source, static_cast<std::size_t>(count * element), out_.view());
  };
  const std::int64_t count = call.count;
  if (count == 0) return;
  switch (call.operation) {
    case Operation::all_gather:
      for (int peer = 0; peer < size_; ++peer) copy(peer, 0, peer * count, count);
      return;
    case Operation::gather:
      for (int peer = 0; rank_ == call.root && peer < size_; ++peer)
        copy(peer, 0, peer * count, count);
      return;
    case Operation::all_gather_v:
      for (int peer = 0; peer < size_; ++peer)
        copy(peer, 0, before(call.counts, peer), call.counts[at(peer)]);
      return;
    case Operation::broadcast:
      if (rank_ != call.root) copy(call.root, 0, 0, count);
      return;
    case Operation::scatter:
      copy(call.root, rank_ * count, 0, count);
      return;
    case Operation::all_to_all:
      for (int peer = 0; peer < size_; ++peer) copy(peer, rank_ * count, peer * count, count);
      return;
    default:
      SHOAL_ASSERT(false);
  }
}

}  // namespace shoal::collectives::device
