// The cards that ranks exchange in the two rounds of connect.cc: they describe a rank's rails.
// Parse them inside read_card() (runtime/rendezvous/cards.h): a missing or wrong field throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/transport/fabric/rail_choice.h"

namespace shoal::collectives::fabric {

// First round: the rails on the rank's host.
struct Survey {
  std::string provider, host;
  int local_rank = 0, local_size = 1;
  std::vector<RailSite> sites;
};

// Second round: the rails that the rank opened.
struct Opened {
  std::vector<std::string> networks, addresses;  // by rail
  std::vector<int> preferred;                    // indices of the rails it prefers to send through
  std::int64_t largest_message = 0, largest_write = 0, eager = 0, stripe = 0;
  int receives = 0;
  int credits = 0, unmatched = 0;
  bool writes = false;
  std::uint32_t magic = 0;
  std::string lane;  // address of the rank's SocketLane; empty: it has none
};

nlohmann::json to_card(const Survey& survey);
nlohmann::json to_card(const Opened& opened);

// `ranks`: number of ranks in the job.
Survey parse_survey(const nlohmann::json& card, int ranks);
Opened parse_opened(const nlohmann::json& card);

}  // namespace shoal::collectives::fabric
