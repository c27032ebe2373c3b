#include "shoal/collectives/backend/net/net_communicator.h"

#include <algorithm>
#include <numeric>

#include "shoal/collectives/backend/backends.h"

namespace shoal::collectives {
namespace {

// Smaller allocations are rather found in the transport's registration cache, or copied.
constexpr std::size_t kRegisterBytes = 64 << 10;

}  // namespace

RegisteredMemory::RegisteredMemory(std::shared_ptr<NetEngine> engine, CountingMemory* counted_by)
    : engine_(std::move(engine)), host_(make_counted_host_memory(counted_by)) {}

RegisteredMemory::~RegisteredMemory() = default;

void* RegisteredMemory::allocate(std::size_t bytes, MemoryTag tag, Stream stream) {
  void* pointer = host_->allocate(bytes, tag, stream);
  if (bytes < kRegisterBytes) return pointer;
  try {
    auto registration = engine_->register_memory(pointer, static_cast<std::int64_t>(bytes));
    const std::lock_guard lock(mutex_);
    registrations_[pointer] = std::move(registration);
  } catch (...) {
    host_->deallocate(pointer, bytes, tag, stream);
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
  host_->deallocate(pointer, bytes, tag, stream);
}

std::string RegisteredMemory::name() const {
  return fmt::format("host memory registered with {}", engine_->endpoint_name());
}

NetCommunicator::NetCommunicator(std::unique_ptr<NetGroup> group,
                                 const CommunicatorOptions& options)
    : engine_(group->engine()),
      group_(std::move(group)),
      options_(options),
      memory_(engine_, options.counted_by) {
  engine_->join();
}

NetCommunicator::~NetCommunicator() { engine_->leave(); }

std::unique_ptr<Registration> NetCommunicator::register_buffer(void* data, std::int64_t bytes) {
  return engine_->register_memory(data, bytes);
}

WorkPtr NetCommunicator::submit(Call call) {
  return std::make_unique<NetWork>(engine_, group_->submit(std::move(call)));
}

// Ranks also tell each other which group ids they have used, so that the new groups' are new on
// every one of them.
std::vector<CallCommunicator::Place> NetCommunicator::exchange_places(Place own) {
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
  submit(std::move(call))->wait(Deadline::in_seconds(deadline_seconds()));

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
    next += group_ids(ranks);
  }
  SHOAL_CHECK(next <= INT64_C(0xffffffff), "split: all group ids of this job are used up");
  engine_->set_next_group(static_cast<std::uint32_t>(next));
  return places;
}

std::unique_ptr<Communicator> NetCommunicator::make_split(const SplitPlan& plan) {
  if (plan.ranks.empty()) return nullptr;
  if (plan.ranks.size() == 1) return make_single_communicator(backend(), options_);
  std::vector<int> members;
  for (const int peer : plan.ranks)
    members.push_back(group_->members()[static_cast<std::size_t>(peer)]);
  return std::make_unique<NetCommunicator>(
      std::make_unique<NetGroup>(engine_, split_ids_.at(plan.color), std::move(members), plan.rank,
                                 options_),
      options_);
}

std::unique_ptr<Communicator> make_net_communicator(std::unique_ptr<Endpoint> endpoint,
                                                    std::unique_ptr<ControlLinks> control,
                                                    int ranks_on_host,
                                                    const CommunicatorOptions& options,
                                                    std::uint32_t first) {
  const int rank = endpoint->rank();
  std::vector<int> members(static_cast<std::size_t>(endpoint->size()));
  std::iota(members.begin(), members.end(), 0);
  auto engine =
      std::make_shared<NetEngine>(std::move(endpoint), std::move(control),
                                  NetEngine::Options{options.deadline_seconds, ranks_on_host});
  const std::uint32_t id = engine->next_group();
  engine->set_next_group(id + group_ids(static_cast<int>(members.size())));
  return std::make_unique<NetCommunicator>(
      std::make_unique<NetGroup>(std::move(engine), id, std::move(members), rank, options, first),
      options);
}

}  // namespace shoal::collectives
