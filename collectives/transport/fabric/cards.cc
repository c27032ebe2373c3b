#include "shoal/collectives/transport/fabric/cards.h"

#include <concepts>
#include <limits>

#include <fmt/format.h>
#include <netinet/in.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/transport/fabric/wire.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::collectives::fabric {
namespace {

using nlohmann::json;

constexpr int kMostCredits = 65535;  // as many as one message can return (wire.h)

std::string to_hex(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto byte = parse_number<unsigned char>(text.substr(i, 2), 16);
    if (!byte || text.size() % 2 != 0)
      throw_error(ErrorCode::corrupt_data, "'{}' is no address", shortened(text));
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

template <std::integral Number>
Number integer(const json& card, const char* name, Number least,
               Number most = std::numeric_limits<Number>::max()) {
  const auto value = integer_in<Number>(card.at(name));
  if (!value || *value < least || *value > most)
    throw_error(ErrorCode::corrupt_data, "its {} is {}", name, shortened(card.at(name).dump()));
  return *value;
}

const json& list(const json& card, const char* name) {
  if (!card.at(name).is_array())
    throw_error(ErrorCode::corrupt_data, "its {} are {}, not a list", name,
                card.at(name).type_name());
  return card.at(name);
}

}  // namespace

json to_card(const Survey& survey) {
  json sites = json::array();
  for (const RailSite& site : survey.sites)
    sites.push_back({{"name", site.name}, {"network", site.network}, {"distance", site.distance}});
  return {{"provider", survey.provider},
          {"host", survey.host},
          {"local_rank", survey.local_rank},
          {"local_size", survey.local_size},
          {"sites", sites}};
}

json to_card(const Opened& own) {
  std::vector<std::string> addresses;
  for (const std::string& address : own.addresses) addresses.push_back(to_hex(address));
  return {{"networks", own.networks},
          {"addresses", addresses},
          {"preferred", own.preferred},
          {"largest_message", own.largest_message},
          {"largest_write", own.largest_write},
          {"eager", own.eager},
          {"stripe", own.stripe},
          {"receives", own.receives},
          {"credits", own.credits},
          {"unmatched", own.unmatched},
          {"writes", own.writes},
          {"magic", own.magic},
          {"lane", to_hex(own.lane)}};
}

Survey parse_survey(const json& card, int ranks) {
  Survey survey;
  survey.provider = card.at("provider").get<std::string>();
  survey.host = card.at("host").get<std::string>();
  survey.local_size = integer<int>(card, "local_size", 1, ranks);
  survey.local_rank = integer<int>(card, "local_rank", 0, survey.local_size - 1);
  for (const json& site : list(card, "sites"))
    survey.sites.push_back({site.at("name").get<std::string>(),
                            site.at("network").get<std::string>(),
                            integer<int>(site, "distance", 0)});
  return survey;
}

Opened parse_opened(const json& card) {
  Opened opened;
  for (const json& network : list(card, "networks"))
    opened.networks.push_back(network.get<std::string>());
  for (const json& address : list(card, "addresses"))
    opened.addresses.push_back(from_hex(address.get<std::string>()));
  const std::size_t rails = opened.networks.size();
  if (rails == 0 || rails > kMostRails || opened.addresses.size() != rails)
    throw_error(ErrorCode::corrupt_data,
                "it has {} networks and {} addresses (1 to {}, equally many)", rails,
                opened.addresses.size(), kMostRails);
  for (const json& rail : list(card, "preferred")) {
    const auto index = integer_in<int>(rail);
    if (!index || *index < 0 || static_cast<std::size_t>(*index) >= rails)
      throw_error(ErrorCode::corrupt_data, "it prefers rail {} of {}", shortened(rail.dump()),
                  rails);
    opened.preferred.push_back(*index);
  }
  opened.largest_message = integer<std::int64_t>(card, "largest_message", 0);
  opened.largest_write = integer<std::int64_t>(card, "largest_write", 0);
  opened.eager = integer<std::int64_t>(card, "eager", 0);
  opened.stripe = integer<std::int64_t>(card, "stripe", 1);
  opened.receives = integer<int>(card, "receives", 0);
  opened.credits = integer<int>(card, "credits", 0, kMostCredits);
  opened.unmatched = integer<int>(card, "unmatched", 0, kMostCredits);
  opened.writes = card.at("writes").get<bool>();
  opened.magic = integer<std::uint32_t>(card, "magic", 0);
  opened.lane = from_hex(card.at("lane").get<std::string>());
  if (!opened.lane.empty() && opened.lane.size() != sizeof(sockaddr_in) &&
      opened.lane.size() != sizeof(sockaddr_in6))
    throw_error(ErrorCode::corrupt_data, "its lane's address has {} bytes", opened.lane.size());
  return opened;
}

}  // namespace shoal::collectives::fabric
