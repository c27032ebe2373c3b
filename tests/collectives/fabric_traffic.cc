#include "fabric_traffic.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives::test {
namespace {

constexpr std::uint32_t kGroup = 7;
constexpr std::int64_t kGuard = 16;  // bytes after each receive, which must not change
constexpr std::byte kUntouched{0xa5};

struct Planned {
  int from = 0, to = 0;
  std::uint32_t ordinal = 0;
  std::int64_t bytes = 0;
  std::uint32_t seed = 0;
};

std::vector<Planned> plan_round(const TrafficPlan& plan, int round, int size) {
  std::mt19937 random(plan.seed * 1000 + static_cast<std::uint32_t>(round));
  std::vector<Planned> messages;
  std::map<std::pair<int, int>, std::uint32_t> ordinals;  // keyed by (from, to)
  for (int i = 0; i < plan.messages; ++i) {
    Planned message;
    message.from = static_cast<int>(random() % static_cast<unsigned>(size));
    message.to = static_cast<int>(random() % static_cast<unsigned>(size));
    if (message.from == message.to) message.to = (message.to + 1) % size;
    message.ordinal = ordinals[{message.from, message.to}]++;
    message.bytes = plan.sizes[random() % plan.sizes.size()];
    message.seed = static_cast<std::uint32_t>(random());
    messages.push_back(message);
  }
  return messages;
}

}  // namespace

std::uint8_t expected_byte(std::uint32_t seed, std::int64_t index) {
  const auto i = static_cast<std::uint32_t>(index);
  return static_cast<std::uint8_t>((seed + i * 2654435761u) >> 13);
}

void drive(transport::Endpoint& endpoint, const transport::Completion& completion, double seconds) {
  const Deadline deadline = Deadline::in_seconds(seconds);
  while (!completion.done()) {
    if (endpoint.progress()) continue;
    if (deadline.passed())
      throw_error(ErrorCode::timeout, "rank {}: {} posts are not finished", endpoint.rank(),
                  completion.pending);
    endpoint.sleep(500);
  }
}

void meet(transport::Endpoint& endpoint, Store& store, const std::string& label, double seconds) {
  const Deadline deadline = Deadline::in_seconds(seconds);
  while (endpoint.sending()) {
    if (endpoint.progress()) continue;
    if (deadline.passed())
      throw_error(ErrorCode::timeout, "rank {}: '{}': what it sent has not arrived",
                  endpoint.rank(), label);
    endpoint.sleep(500);
  }
  std::int64_t came = store.add(label, 1);
  for (; came < endpoint.size(); came = store.add(label, 0)) {
    if (endpoint.progress()) continue;
    if (deadline.passed())
      throw_error(ErrorCode::timeout, "rank {}: '{}': {} of {} ranks came", endpoint.rank(), label,
                  came, endpoint.size());
    endpoint.sleep(500);
  }
}

void run_traffic(transport::Endpoint& endpoint, const TrafficPlan& plan, double seconds) {
  std::mt19937 random(plan.seed + 77u * static_cast<unsigned>(endpoint.rank()));
  const int self = endpoint.rank();
  for (int round = 0; round < plan.rounds; ++round) {
    const transport::OperationKey key{kGroup,
                                      plan.first_sequence + static_cast<std::uint32_t>(round)};
    auto messages = plan_round(plan, round, endpoint.size());
    std::erase_if(messages, [&](const Planned& m) { return m.from != self && m.to != self; });
    std::ranges::shuffle(messages, random);
    std::vector<std::vector<std::byte>> buffers;
    buffers.reserve(messages.size());
    transport::Completion completion;
    Signature signature;
    signature.count = round;
    endpoint.begin(key, signature);
    for (const Planned& message : messages) {
      auto& buffer =
          buffers.emplace_back(static_cast<std::size_t>(message.bytes + kGuard), kUntouched);
      const transport::MessageTag tag{key, message.ordinal};
      if (message.from == self) {
        for (std::int64_t i = 0; i < message.bytes; ++i)
          buffer[static_cast<std::size_t>(i)] = std::byte{expected_byte(message.seed, i)};
        endpoint.post_send(message.to, tag, buffer.data(), message.bytes, completion);
      } else {
        endpoint.post_receive(message.from, tag, buffer.data(), message.bytes, completion);
      }
      if (random() % 4 == 0) endpoint.progress();
    }
    drive(endpoint, completion, seconds);
    endpoint.end(key);
    for (std::size_t m = 0; m < messages.size(); ++m) {
      if (messages[m].from == self) continue;
      for (std::int64_t i = 0; i < messages[m].bytes + kGuard; ++i) {
        const std::byte wanted =
            i < messages[m].bytes ? std::byte{expected_byte(messages[m].seed, i)} : kUntouched;
        if (buffers[m][static_cast<std::size_t>(i)] != wanted)
          throw_error(ErrorCode::internal, "rank {}: byte {} of {} from rank {} is wrong", self, i,
                      messages[m].bytes, messages[m].from);
      }
    }
  }
}

}  // namespace shoal::collectives::test
