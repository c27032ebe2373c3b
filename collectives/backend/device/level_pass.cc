#include "shoal/collectives/backend/device/level_pass.h"

#include <algorithm>

#include "shoal/collectives/backend/device/device_engine.h"
#include "shoal/collectives/backend/partial_sums.h"
#include "shoal/collectives/backend/tree_reduction.h"

namespace shoal::collectives::device {
namespace {

std::int64_t staged_count(const std::vector<LevelPlan::Part>& parts, const Slicing& slicing,
                          std::int64_t slice) {
  std::int64_t sum = 0;
  for (const LevelPlan::Part& part : parts) sum += slice_count(part.count, slicing, slice);
  return sum;
}

// Bytes of the longest slice, which is the first. At least one, because the rail needs a pointer
// even for an empty part.
std::size_t slice_bytes_of(const std::vector<LevelPlan::Part>& parts, const Slicing& slicing,
                           std::int64_t element) {
  return static_cast<std::size_t>(
      std::max<std::int64_t>(staged_count(parts, slicing, 0) * element, 1));
}

}  // namespace

std::vector<Buffer> LevelPass::make_sums(const Call& call, const LevelPlan& plan, int hosts,
                                         std::int64_t slice_bytes, MemoryResource& memory,
                                         Stream in) {
  std::vector<Buffer> sums;
  if (!plan.rail || !call.reduces()) return sums;
  const Slicing slicing = slicing_of(*plan.rail, hosts, slice_bytes);
  const auto wide = static_cast<std::int64_t>(size_of(plan.rail->dtype));
  for (std::int64_t i = 0; i < std::min(slicing.number, kSlots); ++i)
    sums.emplace_back(memory, slice_bytes_of(plan.from, slicing, wide), MemoryTag::communication,
                      in);
  return sums;
}

LevelPass::LevelPass(Setup setup, const Call& call, LevelPlan plan, Buffers buffers,
                     std::vector<Buffer> sums)
    : setup_(setup),
      call_(call),
      plan_(std::move(plan)),
      buffers_(std::move(buffers)),
      backend_(device_backend(setup_.in.device.type)),
      element_(static_cast<std::int64_t>(size_of(call.dtype))),
      copied_(setup_.in.device) {
  if (plan_.rail) {
    const Device device = setup_.in.device;
    wide_ = static_cast<std::int64_t>(size_of(plan_.rail->dtype));
    const int hosts = setup_.rail->size();
    slicing_ = slicing_of(*plan_.rail, hosts, setup_.slice_bytes);
    for (std::int64_t i = 0; i < std::min(slicing_.number, kSlots); ++i) {
      Slot& slot = slots_.emplace_back(Slot{.folded = Event(device), .landed = Event(device)});
      slot.send = Buffer(*setup_.staging, slice_bytes_of(plan_.from, slicing_, wide_),
                         MemoryTag::communication);
      slot.recv = Buffer(*setup_.staging, slice_bytes_of(plan_.to, slicing_, wide_),
                         MemoryTag::communication);
      if (call_.reduces()) slot.sum = std::move(sums[static_cast<std::size_t>(i)]);
    }
  }
  copy_from_neighbours();
}

void LevelPass::copy_from_neighbours() {
  std::byte* const recv = buffers_.recv[at(setup_.local_rank)];
  for (const LevelPlan::Copy& copy : plan_.copies) {
    const std::byte* source = buffers_.send[at(copy.source)] + copy.from * element_;
    std::byte* destination = recv + copy.to * element_;
    if (copy.count > 0 && source != destination)
      backend_.copy(destination, source, static_cast<std::size_t>(copy.count * element_),
                    setup_.out);
  }
  copied_.record(setup_.out);
}

bool LevelPass::progress() {
  bool moved = false;
  if (folded_ < slicing_.number && folded_ - landed_ < std::ssize(slots_)) {
    fold(folded_, slot_of(folded_));
    ++folded_;
    moved = true;
  }
  if (started_ < folded_ && slot_of(started_).folded.query()) {
    start_on_rail(started_, slot_of(started_));
    ++started_;
    moved = true;
  }
  if (arrived_ < started_ && slot_of(arrived_).work->test()) {
    land(arrived_, slot_of(arrived_));
    ++arrived_;
    moved = true;
  }
  if (landed_ < arrived_ && slot_of(landed_).landed.query()) {
    ++landed_;
    moved = true;
  }
  return moved;
}

bool LevelPass::done() const { return landed_ == slicing_.number && copied_.query(); }

Work* LevelPass::awaited() const {
  if (arrived_ == started_) return nullptr;
  return slots_[static_cast<std::size_t>(arrived_) % slots_.size()].work.get();
}

std::vector<LevelPass::Bit> LevelPass::bits_of(const std::vector<LevelPlan::Part>& parts,
                                               std::int64_t slice) const {
  std::vector<Bit> bits;
  std::int64_t staged = 0;
  for (const LevelPlan::Part& part : parts) {
    const std::int64_t count = slice_count(part.count, slicing_, slice);
    if (count > 0) bits.push_back({part.at + slice * slicing_.length, staged, count, part.moves});
    staged += count;
  }
  return bits;
}

void LevelPass::fold(std::int64_t slice, Slot& slot) {
  const bool cpu = setup_.in.device.is_cpu();
  for (const Bit& bit : bits_of(plan_.from, slice)) {
    std::vector<const void*> sources;
    for (const int source : plan_.sources)
      sources.push_back(buffers_.send[at(source)] + bit.at * element_);
    const void* from = sources.front();
    if (call_.reduces()) {
      void* const sum = static_cast<std::byte*>(slot.sum.data()) + bit.staged * wide_;
      const kernels::Reduce operation = traits(call_.op).fold;
      const Stream stream = cpu ? Stream{} : setup_.in;
      if (wide_ == element_)
        setup_.folds->reduce(operation, call_.dtype, sources, sum, bit.count, stream);
      else
        setup_.folds->reduce_widened(operation, call_.dtype, sources, static_cast<float*>(sum),
                                     bit.count, stream);
      from = sum;
    }
    backend_.copy(static_cast<std::byte*>(slot.send.data()) + bit.staged * wide_, from,
                  static_cast<std::size_t>(bit.count * wide_), setup_.in);
    staged_bytes_ += bit.count * wide_;
  }
  slot.folded.record(setup_.in);
}

void LevelPass::start_on_rail(std::int64_t slice, Slot& slot) {
  slot.work = backend_of(*setup_.rail)
                  .call(sliced(*plan_.rail, slicing_, slice, slot.send.data(), slot.recv.data()));
}

// Converts the rail's result to the user's elements.
const void* LevelPass::finish_on_host(std::int64_t slice, Slot& slot) {
  const std::int64_t count = staged_count(plan_.to, slicing_, slice);
  if (call_.reduces() && call_.op == ReduceOp::avg)
    setup_.on_host->scale(plan_.rail->dtype, slot.recv.data(), 1.0 / setup_.ranks, count, Stream{});
  if (wide_ == element_) return slot.recv.data();
  // Writes into the slice's send buffer, which is long enough and which the rail no longer uses.
  narrow(call_.dtype, static_cast<const float*>(slot.recv.data()), slot.send.data(), count);
  return slot.send.data();
}

// Copies each part once over the bus, then from there to the neighbours.
void LevelPass::land(std::int64_t slice, Slot& slot) {
  slot.work.reset();
  const auto* const landed = static_cast<const std::byte*>(finish_on_host(slice, slot));
  const int first = plan_.destinations.size() == 1 ? plan_.destinations.front() : setup_.local_rank;
  for (const Bit& bit : bits_of(plan_.to, slice)) {
    if (!bit.moves) continue;
    const auto bytes = static_cast<std::size_t>(bit.count * element_);
    std::byte* const own = buffers_.recv[at(first)] + bit.at * element_;
    backend_.copy(own, landed + bit.staged * element_, bytes, setup_.out);
    for (const int neighbour : plan_.destinations)
      if (neighbour != first)
        backend_.copy(buffers_.recv[at(neighbour)] + bit.at * element_, own, bytes, setup_.out);
  }
  slot.landed.record(setup_.out);
}

}  // namespace shoal::collectives::device
