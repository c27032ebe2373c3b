// Random messages between ranks over an Endpoint, each checked to the byte.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/collectives/transport/endpoint.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::test {

struct TrafficPlan {
  std::uint32_t seed = 1;
  int rounds = 4;      // operations, one after another
  int messages = 100;  // in each round, over all pairs
  std::uint32_t first_sequence = 0;
  std::vector<std::int64_t> sizes;  // message sizes to choose from
};

// Runs this rank's part. Throws on an Error, on a wrong byte or after `seconds`.
void run_traffic(transport::Endpoint& endpoint, const TrafficPlan& plan, double seconds);

// Makes progress until `completion` is done. Throws timeout after `seconds`.
void drive(transport::Endpoint& endpoint, const transport::Completion& completion, double seconds);

// Returns once all ranks of the endpoint have called it with this `label` (new for each call) and
// all their messages have arrived. Meanwhile it makes progress, as engines do until all ranks have
// left. With manual progress, a rank that only waited would answer no peer, and a peer's message to
// it, such as returned credits, would never complete. Throws timeout after `seconds`.
void meet(transport::Endpoint& endpoint, Store& store, const std::string& label, double seconds);

// The expected byte at an index; each message's bytes depend only on its seed.
std::uint8_t expected_byte(std::uint32_t seed, std::int64_t index);

}  // namespace shoal::collectives::test
