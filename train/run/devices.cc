#include "shoal/train/run/devices.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/device/identity.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/train/run/json_card.h"

namespace shoal {
namespace {

// Ranks as "0-3, 8".
std::string rank_list(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ranks[i]);
    if (last > i) text += fmt::format("-{}", ranks[last]);
    i = last + 1;
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", text);
}

std::string host_of(const World& world) { return world.host.empty() ? host_name() : world.host; }

RankDevice read_device(std::string_view card) {
  constexpr std::int16_t kMostDevices = 1024;
  const nlohmann::json from = json_list(card, 7);
  RankDevice read;
  read.host = json_text(from, 0);
  read.why = json_text(from, 1);
  const auto index = json_integer<std::int16_t>(from, 3, 0, kMostDevices);
  read.device = from.at(2).get<bool>() ? Device::cpu() : Device::cuda(index);
  read.identity = json_text(from, 4);
  read.description = json_text(from, 5);
  read.free = json_integer<std::int64_t>(from, 6, 0);
  return read;
}

// A key that is equal for ranks on the same GPU: its identity or, if the driver gives none, host
// and index.
std::string key_of(const RankDevice& of) {
  return of.identity.empty() ? fmt::format("{}/{}", of.host, to_string(of.device)) : of.identity;
}

// Groups ranks by value, ordered by each group's first rank.
template <typename Of>
std::vector<std::pair<std::string, std::vector<int>>> grouped(std::span<const RankDevice> ranks,
                                                              const Of& of) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    const std::string value = of(ranks[rank]);
    auto found = std::ranges::find(groups, value, [](const auto& group) { return group.first; });
    if (found == groups.end()) found = groups.insert(found, {value, {}});
    found->second.push_back(static_cast<int>(rank));
  }
  return groups;
}

// "a: rank 0 cuda:0, rank 1 cuda:1"
std::string line_of_host(std::span<const RankDevice> ranks, const std::string& host,
                         const std::vector<int>& here) {
  std::vector<std::string> words;
  words.reserve(here.size());
  for (const int rank : here)
    words.push_back(
        fmt::format("rank {} {}", rank, to_string(ranks[static_cast<std::size_t>(rank)].device)));
  return fmt::format("  {}: {}", host, fmt::join(words, ", "));
}

}  // namespace

RankDevice describe_device(const World& world, const ChosenDevice& chosen) {
  RankDevice own{.host = host_of(world),
                 .why = chosen.why,
                 .device = chosen.device,
                 .identity = {},
                 .description = {}};
  if (own.device.is_cpu()) return own;
  DeviceBackend& backend = device_backend(own.device.type);
  own.identity = device_identity(own.device);
  own.description = backend.describe(own.device);
  own.free = static_cast<std::int64_t>(backend.memory_info(own.device).free);
  return own;
}

std::vector<RankDevice> exchange_devices(const World& world, Store& store, const RankDevice& own,
                                         Deadline deadline) {
  const nlohmann::json report = {own.host,         own.why,      own.device.is_cpu(),
                                 own.device.index, own.identity, own.description,
                                 own.free};
  auto ranks = exchange_cards(store, "devices", world.rank, world.size,
                              report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                              deadline, "devices", read_device);
  ranks[static_cast<std::size_t>(world.rank)] = own;
  check_devices(ranks);
  return ranks;
}

void check_devices(std::span<const RankDevice> ranks) {
  const auto is_cpu = [](const RankDevice& rank) { return rank.device.is_cpu(); };
  const auto cpus = std::ranges::count_if(ranks, is_cpu);
  if (cpus == 0 || cpus == std::ssize(ranks)) return;
  std::vector<std::string> words;
  for (const auto& [what, who] : grouped(ranks, [](const RankDevice& rank) {
         return rank.device.is_cpu() ? fmt::format("no GPU on {} ({})", rank.host, rank.why)
                                     : fmt::format("a GPU on {}", rank.host);
       }))
    words.push_back(
        fmt::format("{} {} {}", rank_list(who), who.size() == 1 ? "has" : "have", what));
  throw Error(
      ErrorCode::unavailable,
      fmt::format("all ranks train on GPUs or none does: {}", fmt::join(words, ", ")),
      "start ranks only where there is a GPU, or train on CPUs with --use_cpu true on every "
      "rank");
}

std::vector<int> ranks_on_device_of(std::span<const RankDevice> ranks, int rank) {
  const RankDevice& own = ranks[static_cast<std::size_t>(rank)];
  if (own.device.is_cpu()) return {rank};
  std::vector<int> all;
  for (int other = 0; other < std::ssize(ranks); ++other)
    if (key_of(ranks[static_cast<std::size_t>(other)]) == key_of(own)) all.push_back(other);
  return all;
}

std::vector<std::string> device_lines(std::span<const RankDevice> ranks) {
  constexpr std::size_t kHosts = 16;  // maximum number of hosts to list
  if (ranks.size() < 2 || ranks.front().device.is_cpu()) return {};
  const auto gpus = grouped(ranks, key_of);
  const auto hosts = grouped(ranks, [](const RankDevice& rank) { return rank.host; });
  const auto kinds = grouped(ranks, [](const RankDevice& rank) { return rank.description; });
  std::vector<std::string> lines = {fmt::format(
      "devices: {} ranks on {} GPU{} of {} host{}{}", ranks.size(), gpus.size(),
      gpus.size() == 1 ? "" : "s", hosts.size(), hosts.size() == 1 ? "" : "s",
      kinds.size() == 1 ? fmt::format(", {}{}", gpus.size() == 1 ? "" : "each ", kinds[0].first)
                        : "")};
  for (std::size_t i = 0; i < std::min(hosts.size(), kHosts); ++i)
    lines.push_back(line_of_host(ranks, hosts[i].first, hosts[i].second));
  if (hosts.size() > kHosts)
    lines.push_back(fmt::format("  and {} hosts more", hosts.size() - kHosts));
  if (kinds.size() > 1)
    for (const auto& [kind, who] : kinds)
      lines.push_back(fmt::format("  {}: {}", rank_list(who), kind));
  if (gpus.size() < ranks.size())
    lines.push_back(
        fmt::format("note: {} ranks share {} GPU{}: each waits for the other's work; one rank a "
                    "GPU is faster",
                    ranks.size(), gpus.size(), gpus.size() == 1 ? "" : "s"));
  return lines;
}

}  // namespace shoal
