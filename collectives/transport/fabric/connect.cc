// Connects the endpoints of a job in two rounds through the store. In the first round every rank
// lists its host's rails, in the second the rails that it opened and their addresses.
#include <algorithm>
#include <limits>
#include <optional>
#include <random>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/collectives/transport/fabric/cards.h"
#include "shoal/collectives/transport/fabric/datagrams.h"
#include "shoal/collectives/transport/fabric/fabric_endpoint.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/roll_call.h"

namespace shoal::collectives::fabric {
namespace {

using nlohmann::json;

constexpr int kMessagesInFlight = 256, kWritesInFlight = 512;                      // of one rail
constexpr const char *kSurvey = "survey", *kOpened = "opened", *kReady = "ready";  // rounds
constexpr const char* kFailed = "failed";  // a rank that fails stores its reason, not a card

struct Who {
  int rank, size;
  Store& store;
  const std::string& prefix;
  Deadline deadline;
};

template <typename Parse>
auto read(const Who& who, int rank, std::string_view text, const Parse& parse) {
  try {
    return read_card(rank, "fabric", text, parse);
  } catch (Error& problem) {
    throw problem.at_rank(who.rank).in_operation("make_communicator");
  }
}

// Throws peer_lost if the rank stored a failure in place of its card.
json open_card(const Who& who, int rank, std::string_view text) {
  std::optional<std::string> failure;
  json opened = read(who, rank, text, [&](std::string_view from) {
    json card = parse_json(from, "it");
    if (!card.is_object())
      throw_error(ErrorCode::corrupt_data, "it is {}, not an object", card.type_name());
    if (card.contains(kFailed)) failure = card.at(kFailed).get<std::string>();
    return card;
  });
  if (failure)
    throw Error(ErrorCode::peer_lost,
                fmt::format("fabric: rank {} failed (its last words: {})", rank, *failure),
                "look at that rank's own output for the cause")
        .at_rank(who.rank)
        .with_peer(rank)
        .in_operation("make_communicator");
  return opened;
}

std::vector<json> exchange_cards(const Who& who, const char* round, const json& card) {
  std::vector<json> cards;
  const RollCall roll = call_roll(
      who.store, fmt::format("{}/{}", who.prefix, round), who.rank, who.size, card.dump(),
      who.deadline,
      [&](int rank, std::string_view text) { cards.push_back(open_card(who, rank, text)); });
  if (roll.missing.empty()) return cards;
  throw Error(ErrorCode::timeout,
              fmt::format("fabric: rank(s) {} did not join in time", fmt::join(roll.missing, ", ")),
              "see whether they started and why they stopped")
      .at_rank(who.rank)
      .with_peer(roll.missing.front())
      .in_operation("make_communicator");
}

std::vector<Survey> take_survey(const Who& who, const std::vector<FoundRail>& found, int local_rank,
                                int local_size) {
  Survey own{found[0].info->fabric_attr->prov_name, host_name(), local_rank, local_size, {}};
  for (const FoundRail& rail : found) own.sites.push_back(rail.site);
  std::vector<Survey> surveys;
  for (const json& card : exchange_cards(who, kSurvey, to_card(own)))
    surveys.push_back(read(who, static_cast<int>(surveys.size()), {},
                           [&](std::string_view) { return parse_survey(card, who.size); }));
  // This rank uses the survey that it took, not the copy in the store.
  surveys[static_cast<std::size_t>(who.rank)] = own;
  for (std::size_t rank = 0; rank < surveys.size(); ++rank)
    if (surveys[rank].provider != surveys[0].provider)
      throw Error(
          ErrorCode::mismatch,
          fmt::format("fabric: rank 0 on {} uses {}, rank {} on {} uses {}", surveys[0].host,
                      surveys[0].provider, rank, surveys[rank].host, surveys[rank].provider),
          "name one that all hosts have with SHOAL_FABRIC_PROVIDER")
          .at_rank(who.rank);
  return surveys;
}

// The rails that this rank opens, and those that it prefers to send through.
struct Plan {
  std::vector<int> open;       // indices into the found rails
  std::vector<int> preferred;  // indices into `open`
  bool by_index = false;
};

Plan plan_rails(int rank, const std::vector<Survey>& surveys) {
  std::vector<std::vector<RailSite>> sites;
  for (const Survey& survey : surveys) sites.push_back(survey.sites);
  const CommonRails common = find_common_rails(sites);
  const Survey& own = surveys[static_cast<std::size_t>(rank)];
  const auto& usable = common.sites[static_cast<std::size_t>(rank)];
  // By local rank of this host: the distances of the usable rails.
  std::vector<std::vector<int>> distances(static_cast<std::size_t>(std::max(1, own.local_size)));
  for (std::size_t other = 0; other < surveys.size(); ++other) {
    const Survey& survey = surveys[other];
    if (survey.host != own.host || survey.sites.size() != own.sites.size()) continue;
    const auto local = static_cast<std::size_t>(survey.local_rank);
    if (local >= distances.size()) continue;
    distances[local].clear();
    for (const int site : common.sites[other])
      distances[local].push_back(survey.sites[static_cast<std::size_t>(site)].distance);
  }
  for (auto& distance : distances) distance.resize(usable.size(), 0);
  const auto shares = share_rails(distances);
  const auto& share = shares[static_cast<std::size_t>(own.local_rank)];
  // Rails of one network all reach each other, so this rank opens only its share. Otherwise a
  // peer's messages may arrive on any rail, so it opens all.
  bool one_network = true;
  for (const int site : usable)
    one_network = one_network && own.sites[static_cast<std::size_t>(site)].network ==
                                     own.sites[static_cast<std::size_t>(usable[0])].network;
  Plan plan{{}, {}, common.by_index};
  if (one_network && !common.by_index) {
    for (const int rail : share) {
      plan.preferred.push_back(static_cast<int>(plan.open.size()));
      plan.open.push_back(usable[static_cast<std::size_t>(rail)]);
    }
  } else {
    plan.open = usable;
    plan.preferred = share;
  }
  return plan;
}

Opened describe_own(const FabricOptions& options, const Plan& plan,
                    const std::vector<std::unique_ptr<Rail>>& rails) {
  Opened own;
  own.preferred = plan.preferred;
  own.largest_message = own.largest_write = std::numeric_limits<std::int64_t>::max();
  own.receives = std::numeric_limits<int>::max();
  own.writes = options.remote_writes;
  for (std::size_t i = 0; i < rails.size(); ++i) {
    const Rail& rail = *rails[i];
    own.networks.push_back(plan.by_index ? fmt::format("#{}", i) : rail.site().network);
    own.addresses.push_back(rail.address());
    own.largest_message = std::min(own.largest_message, rail.largest_message());
    own.largest_write = std::min(own.largest_write, rail.largest_write());
    own.receives = std::min(own.receives, rail.receive_queue());
    own.writes = own.writes && rail.can_write();
  }
  own.eager = options.eager_bytes;
  own.stripe = options.stripe_bytes;
  own.credits = options.credits;
  own.unmatched = options.unmatched;
  own.magic = std::random_device{}();
  return own;
}

std::unique_ptr<SocketLane> make_lane(const FabricOptions& options, const Plan& plan,
                                      const FabricSetup& setup) {
  const Rail& rail = *setup.rails[static_cast<std::size_t>(plan.preferred.at(0))];
  if (!options.sockets || !rail.provider().starts_with("tcp") || setup.size == 1) return nullptr;
  const auto largest = std::max(
      options.eager_bytes, static_cast<std::int64_t>((1 + kMostRails) * sizeof(std::uint64_t)));
  try {
    return std::make_unique<SocketLane>(rail.address(), setup.rank, setup.size,
                                        sizeof(MessageHeader) + static_cast<std::size_t>(largest));
  } catch (const Error& problem) {
    log::once(log::Level::warn, "fabric-no-lane",
              fmt::format("{}; small messages take the provider's way, which is slower",
                          problem.message()));
    return nullptr;
  }
}

void start_lane(FabricSetup& setup, const std::vector<Opened>& opened) {
  if (!setup.lane) return;
  std::vector<std::string> addresses;
  for (const Opened& rank : opened) addresses.push_back(rank.lane);
  setup.lane->start(std::move(addresses), setup.magic);
}

// Routes from `from` to `to`, as pairs (rail of `from`, rail of `to`): over the preferred rails of
// `from`, or over all its rails if no preferred rail leads there.
std::vector<std::pair<int, int>> routes_between(const Opened& from, const Opened& to) {
  const auto pairs = pair_rails(from.networks, to.networks);
  std::vector<std::pair<int, int>> routes, all;
  for (std::size_t rail = 0; rail < pairs.size(); ++rail) {
    if (pairs[rail] < 0) continue;
    const std::pair route(static_cast<int>(rail), pairs[rail]);
    all.push_back(route);
    if (std::ranges::find(from.preferred, route.first) != from.preferred.end())
      routes.push_back(route);
  }
  return routes.empty() ? all : routes;
}

// Computes the limits that both ends of every message apply, from all ranks' cards.
void agree(FabricSetup& setup, const std::vector<Opened>& opened) {
  std::int64_t largest_message = std::numeric_limits<std::int64_t>::max();
  int receives = std::numeric_limits<int>::max();
  setup.largest_write = setup.eager_bytes = setup.stripe_bytes = largest_message;
  setup.credits = setup.unmatched = 0;
  for (const Opened& rank : opened) {
    largest_message = std::min(largest_message, rank.largest_message);
    setup.largest_write = std::min(setup.largest_write, rank.largest_write);
    setup.eager_bytes = std::min(setup.eager_bytes, rank.eager);
    setup.stripe_bytes = std::min(setup.stripe_bytes, rank.stripe);
    receives = std::min(receives, rank.receives);
    setup.credits = std::max(setup.credits, rank.credits);
    setup.unmatched = std::max(setup.unmatched, rank.unmatched);
  }
  constexpr auto kHeader = static_cast<std::int64_t>(sizeof(MessageHeader));
  const auto grant = static_cast<std::int64_t>((1 + kMostRails) * sizeof(std::uint64_t));
  if (largest_message < kHeader + grant)
    throw_error(ErrorCode::unavailable, "{}: its largest message is {} bytes, {} are needed",
                setup.name, largest_message, kHeader + grant);
  setup.eager_bytes = std::clamp(setup.eager_bytes, std::int64_t{0}, largest_message - kHeader);
  const int peers = std::max(1, setup.size - 1);
  constexpr int kFewest = 4;  // with fewer, ranks that wait for credits could not return theirs
  if (setup.credits == 0) setup.credits = std::clamp(512 / peers, 8, 64);
  setup.credits = std::max(kFewest, std::min(setup.credits, receives / peers));
  if (setup.unmatched == 0) setup.unmatched = std::clamp(4096 / peers, 32, 512);
  setup.unmatched = std::max(2, setup.unmatched);
}

void connect_peers(FabricSetup& setup, const std::vector<Opened>& opened) {
  const Opened& own = opened[static_cast<std::size_t>(setup.rank)];
  setup.peers.resize(opened.size());
  for (int rank = 0; rank < setup.size; ++rank) {
    if (rank == setup.rank) continue;
    const Opened& other = opened[static_cast<std::size_t>(rank)];
    PeerSetup& peer = setup.peers[static_cast<std::size_t>(rank)];
    peer.peer_rails = static_cast<int>(other.networks.size());
    peer.writes = own.writes && other.writes;
    for (const auto& [rail, theirs] : routes_between(own, other)) {
      const std::string& address = other.addresses.at(static_cast<std::size_t>(theirs));
      // libfabric reads as many bytes as an address of this rank's rail has.
      if (address.size() != own.addresses.at(static_cast<std::size_t>(rail)).size())
        throw unreadable_card(
            rank, "fabric",
            fmt::format("its address {} has {} bytes, not {}", theirs, address.size(),
                        own.addresses.at(static_cast<std::size_t>(rail)).size()))
            .at_rank(setup.rank)
            .in_operation("make_communicator");
      peer.routes.push_back(
          {rail, theirs, setup.rails[static_cast<std::size_t>(rail)]->insert(address)});
    }
    for (const auto& [theirs, rail] : routes_between(other, own)) peer.arrives_on.push_back(rail);
    if (peer.routes.empty() || peer.arrives_on.empty())
      throw Error(
          ErrorCode::unavailable,
          fmt::format("{}: no network is common to ranks {} and {}", setup.name, setup.rank, rank),
          "choose interfaces that reach each other with SHOAL_FABRIC_INTERFACES");
    if (!peer.writes)
      log::once(log::Level::warn, "fabric-no-writes",
                fmt::format("{}: no remote writes with completion data; large messages travel in "
                            "pieces of {} bytes",
                            setup.name, setup.eager_bytes));
  }
}

std::string device_memory_problem(const FabricSetup& setup) {
  for (const auto& rail : setup.rails)
    if (!rail->device_memory_problem().empty()) return rail->device_memory_problem();
  for (int rank = 0; rank < setup.size; ++rank)
    if (rank != setup.rank && !setup.peers[static_cast<std::size_t>(rank)].writes)
      return fmt::format("{}: no remote writes between ranks {} and {}", setup.name, setup.rank,
                         rank);
  return {};
}

void start_rails(FabricSetup& setup) {
  std::vector<int> senders(setup.rails.size(), 0);
  for (const PeerSetup& peer : setup.peers) {
    std::vector<int> rails = peer.arrives_on;  // routes to the same rail share its credits
    std::ranges::sort(rails);
    rails.erase(std::unique(rails.begin(), rails.end()), rails.end());
    for (const int rail : rails) ++senders[static_cast<std::size_t>(rail)];
  }
  const auto grant = (1 + setup.rails.size()) * sizeof(std::uint64_t);
  for (std::size_t at = 0; at < setup.rails.size(); ++at) {
    Rail& rail = *setup.rails[at];
    const int wanted = senders[at] * setup.credits;
    const int receives = std::min(wanted, rail.receive_queue());
    if (receives < wanted && !rail.manages_resources())
      throw_error(ErrorCode::unavailable,
                  "{}: {} peers need {} receive buffers, its queue holds {} and overruns",
                  setup.name, senders[at], wanted, receives);
    if (receives < wanted)
      log::once(log::Level::warn, "fabric-receives",
                fmt::format("{}: {} receive buffers for {} peers; the provider holds back the rest",
                            setup.name, receives, senders[at]));
    const int half = std::max(1, rail.transmit_queue() / 2);
    rail.start(
        {sizeof(MessageHeader) + std::max(static_cast<std::size_t>(setup.eager_bytes), grant),
         receives, std::min(half, kMessagesInFlight), std::min(half, kWritesInFlight)});
  }
}

// Stores the failure in place of this rank's cards, so that the other ranks do not wait for them.
void say_failed(const Who& who, const char* why) noexcept {
  try {
    for (const char* round : {kSurvey, kOpened, kReady})
      who.store.compare_set(fmt::format("{}/{}/{}", who.prefix, round, who.rank), std::nullopt,
                            json{{kFailed, why}}.dump());
  } catch (const std::exception& problem) {
    log::debug("rank {}: cannot tell the others: {}", who.rank, problem.what());
  }
}

std::string name_of(const std::vector<std::unique_ptr<Rail>>& rails) {
  std::vector<std::string> names;
  for (const auto& rail : rails) names.push_back(rail->site().name);
  return fmt::format("{} over {}", rails[0]->provider(), fmt::join(names, ", "));
}

}  // namespace

std::unique_ptr<transport::Endpoint> make_fabric_endpoint(const FabricOptions& options, int rank,
                                                          int size, int local_rank, int local_size,
                                                          Store& store, const std::string& prefix,
                                                          Deadline deadline) {
  SHOAL_CHECK(rank >= 0 && rank < size && local_rank >= 0 && local_rank < local_size,
              "fabric: rank {} of {}, local rank {} of {}", rank, size, local_rank, local_size);
  const Who who{rank, size, store, prefix, deadline};
  try {
    bound_datagrams(library().version(), size - 1);
    std::vector<FoundRail> found = find_rails(options, local_size == size);
    const auto surveys = take_survey(who, found, local_rank, local_size);
    const Plan plan = plan_rails(rank, surveys);
    if (plan.open.empty() || plan.open.size() > kMostRails)
      throw_error(ErrorCode::unavailable, "fabric: {} rails are common to all ranks (1 to {} work)",
                  plan.open.size(), kMostRails);
    FabricSetup setup;
    setup.rank = rank;
    setup.size = size;
    setup.first_receive_id = options.first_receive_id;
    for (const int rail : plan.open)
      setup.rails.push_back(std::make_unique<Rail>(std::move(found[static_cast<std::size_t>(rail)]),
                                                   options.cuda_device));
    setup.name = name_of(setup.rails);
    check_datagrams(setup.rails[0]->provider(), library().version(), datagram_window(), size - 1);
    setup.idle_registrations = options.idle_registrations >= 0
                                   ? static_cast<std::size_t>(options.idle_registrations)
                                   : (setup.rails[0]->pins() ? 0 : 256);
    setup.lane = make_lane(options, plan, setup);
    Opened own = describe_own(options, plan, setup.rails);
    if (setup.lane) own.lane = setup.lane->address();
    std::vector<Opened> opened;
    for (const json& card : exchange_cards(who, kOpened, to_card(own)))
      opened.push_back(read(who, static_cast<int>(opened.size()), {},
                            [&](std::string_view) { return parse_opened(card); }));
    opened[static_cast<std::size_t>(rank)] = own;
    setup.magic = opened[0].magic;
    start_lane(setup, opened);
    agree(setup, opened);
    connect_peers(setup, opened);
    setup.device_memory_problem = device_memory_problem(setup);
    start_rails(setup);
    // No rank sends before all ranks have posted their receives.
    exchange_cards(who, kReady, json::object());
    return std::make_unique<FabricEndpoint>(std::move(setup));
  } catch (const Error& problem) {
    // Of a rank or a store that is missing, the others learn as this rank did. To tell them through
    // a store that does not answer would only take time.
    if (problem.code() != ErrorCode::timeout && problem.code() != ErrorCode::peer_lost)
      say_failed(who, problem.what());
    throw;
  } catch (const std::exception& problem) {
    say_failed(who, problem.what());
    throw;
  }
}

}  // namespace shoal::collectives::fabric
