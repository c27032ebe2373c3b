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
  int rounds = 4;      // operations, one after the other
  int messages = 100;  // of each round, over all pairs
  std::uint32_t first_sequence = 0;
  std::vector<std::int64_t> sizes;  // chosen from
};

// Runs this rank's part; throws on an Error, a wrong byte or after `seconds`.
void run_traffic(transport::Endpoint& endpoint, const TrafficPlan& plan, double seconds);

// Drives until done; throws timeout after `seconds`.
void drive(transport::Endpoint& endpoint, const transport::Completion& completion, double seconds);

// Returns once all the endpoint's ranks have called it with this `label` (new for each call) and
// what they had sent has arrived. They drive their endpoints meanwhile, as engines do until all
// have left: with manual progress a rank that only waited would answer nobody, and what a peer
// still sends it (returned credits, say) would never be finished. Throws timeout after `seconds`.
void meet(transport::Endpoint& endpoint, Store& store, const std::string& label, double seconds);

// Bytes of a message are a function of this.
std::uint8_t expected_byte(std::uint32_t seed, std::int64_t index);

}  // namespace shoal::collectives::test
