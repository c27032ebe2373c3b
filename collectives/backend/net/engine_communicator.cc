#include "shoal/collectives/backend/net/engine_communicator.h"

#include <algorithm>
#include <utility>

#include "shoal/collectives/backend/net/scratch_memory.h"

namespace shoal::collectives::net {

void* RegisteredMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  void* pointer = upstream_.allocate(bytes, tag, stream);
  if (bytes < kRegisterBytes) return pointer;
  try {
    auto registration = engine_->register_memory(pointer, static_cast<std::int64_t>(bytes));
    const std::lock_guard lock(mutex_);
    registrations_[pointer] = std::move(registration);
  } catch (...) {
    upstream_.deallocate(pointer, bytes, tag, stream);
    throw;
  }
  return pointer;
}

void RegisteredMemory::deallocate(void* pointer, std::size_t bytes, MemoryTag tag,
                                  Stream stream) noexcept {
  std::unique_ptr<Registration> registration;
  {
    const std::lock_guard lock(mutex_);
    const auto found = registrations_.find(pointer);
    if (found != registrations_.end()) {
      registration = std::move(found->second);
      registrations_.erase(found);
    }
  }
  registration.reset();
  upstream_.deallocate(pointer, bytes, tag, stream);
}

std::string RegisteredMemory::name() const {
  return fmt::format("{}, registered with {}", upstream_.name(), engine_->endpoint_name());
}

EngineCommunicator::EngineCommunicator(std::unique_ptr<NetGroup> flat,
                                       const CommunicatorOptions& options)
    : engine_(flat->engine()), flat_(std::move(flat)), options_(options) {
  engine_->join();
}

EngineCommunicator::~EngineCommunicator() { EngineCommunicator::leave(); }

void EngineCommunicator::leave() {
  if (!std::exchange(left_, true)) engine_->leave();
}

std::unique_ptr<Registration> EngineCommunicator::register_buffer(void* data, std::int64_t bytes) {
  return engine_->register_memory(data, bytes);
}

std::string EngineCommunicator::rdma_problem(Device device) const {
  if (device.is_cpu()) return {};
  if (device != options_.rdma_device)
    return fmt::format("its transport was made for {}", to_string(options_.rdma_device));
  return engine_->device_memory_problem();
}

std::unique_ptr<Registration> EngineCommunicator::register_on(Device device, void* data,
                                                              std::int64_t bytes) {
  return engine_->register_memory(data, bytes, !device.is_cpu());
}

WorkPtr EngineCommunicator::exchange(Call call, algorithm::Program program) {
  const Signature signature = signature_of(call);
  return std::make_unique<NetWork>(
      engine_,
      flat_->submit_program(
          std::move(call), std::make_shared<const CompiledProgram>(std::move(program)), signature));
}

WorkPtr EngineCommunicator::submit(Call&& call) {
  return std::make_unique<NetWork>(engine_, flat_->submit(std::move(call)));
}

// Ranks also exchange which group ids they have used, so that the new groups' ids are new on all of
// them.
std::vector<BackendCommunicator::Place> EngineCommunicator::exchange_places(Place own) {
  struct Card {
    std::int64_t color, key, next_group;
  };
  const Card card{own.color, own.key, engine_->next_group()};
  std::vector<Card> cards(static_cast<std::size_t>(size()));
  Call call;
  call.operation = Operation::split;
  call.send = &card;
  call.recv = cards.data();
  call.count = 3;
  call.dtype = DType::i64;
  engine_->wait(*flat_->submit(std::move(call)), Deadline::in_seconds(deadline_seconds()));

  std::vector<Place> places;
  std::int64_t next = 0;
  std::map<std::int64_t, int> sizes;  // by color
  for (const Card& c : cards) {
    places.push_back({c.color, c.key});
    next = std::max(next, c.next_group);
    if (c.color >= 0) ++sizes[c.color];
  }
  split_ids_.clear();
  for (const auto& [color, ranks] : sizes) {
    split_ids_[color] = static_cast<std::uint32_t>(next);
    next += ids_of(ranks);
  }
  SHOAL_CHECK(next <= INT64_C(0xffffffff), "split: all group ids of this job are used up");
  engine_->set_next_group(static_cast<std::uint32_t>(next));
  return places;
}

}  // namespace shoal::collectives::net
