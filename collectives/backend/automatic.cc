// Resolves the backend `auto`.
#include <map>
#include <utility>
#include <vector>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/device/identity.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives {
namespace {

// Why the options, which are the same on all ranks, require native. Empty: they do not.
std::string asks_for_native(const CommunicatorOptions& options) {
  if (options.fixed_order) return "NCCL sums in an order of its own, not a fixed one";
  if (!options.algorithm.empty() || !options.collectives.empty() || !options.transport.empty() ||
      !env::get_string(env::kCollectives).empty())
    return "rules, an algorithm or a transport are asked for, which are native's";
  return {};
}

// Why nccl cannot be used, by each rank's GPU and NCCL problem. Empty: it can.
std::string why_not_nccl(const std::vector<std::string>& gpus,
                         const std::vector<std::string>& problems) {
  for (std::size_t rank = 0; rank < problems.size(); ++rank)
    if (!problems[rank].empty())
      return rank == 0 ? problems[rank] : fmt::format("rank {}: {}", rank, problems[rank]);
  if (const auto shared = ranks_on_one_gpu(gpus))
    return fmt::format("ranks {} and {} share {}, and NCCL wants a GPU for each rank",
                       shared->first, shared->second,
                       gpus[static_cast<std::size_t>(shared->first)]);
  return {};
}

}  // namespace

std::optional<std::pair<int, int>> ranks_on_one_gpu(std::span<const std::string> identities) {
  std::map<std::string_view, int> owner;
  for (int rank = 0; rank < std::ssize(identities); ++rank) {
    const std::string& gpu = identities[static_cast<std::size_t>(rank)];
    if (gpu.empty()) continue;
    const auto [known, is_new] = owner.emplace(gpu, rank);
    if (!is_new) return std::pair{known->second, rank};
  }
  return std::nullopt;
}

std::string choose_backend(const World& world, Store& store, const CommunicatorOptions& options) {
  const Device device = options.stream.device;
  if (device.is_cpu() || world.size == 1) return "native";
  std::string why = asks_for_native(options);
  if (why.empty()) {
    // Each rank counts its own calls; all make them in the same order, so the counts agree.
    const auto call = store.add(fmt::format("shoal/auto/generation/{}", world.rank), 1);
    const std::string own = device_identity(device) + '\n' + nccl::nccl_problem();
    std::vector<std::string> gpus, problems;
    const auto read = [](std::string_view card) {
      CardFields fields(card, '\n');
      std::string gpu(fields.next("GPU"));
      return std::pair(std::move(gpu), std::string(fields.rest("word on NCCL")));
    };
    for (auto& [gpu, problem] :
         exchange_cards(store, fmt::format("shoal/auto/{}", call), world.rank, world.size, own,
                        Deadline::in_seconds(options.deadline_seconds), "GPUs", read)) {
      gpus.push_back(std::move(gpu));
      problems.push_back(std::move(problem));
    }
    why = why_not_nccl(gpus, problems);
  }
  if (why.empty()) return "nccl";
  log::once(
      log::Level::info, "auto-native",
      fmt::format("collectives between {} ranks with GPUs are native ones: {}", world.size, why));
  return "native";
}

}  // namespace shoal::collectives
