// Resolves the backend `auto`.
#include <map>
#include <vector>

#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/device/identity.h"

namespace shoal::collectives {
namespace {

// The reason for native that all ranks know from the options alone; empty: none.
std::string asks_for_native(const CommunicatorOptions& options) {
  if (options.fixed_order) return "NCCL sums in an order of its own, not a fixed one";
  if (!options.algorithm.empty() || !options.collectives.empty() || !options.transport.empty() ||
      !env::get_string(env::kCollectives).empty())
    return "rules, an algorithm or a transport are asked for, which are native's";
  return {};
}

// The reason against nccl from each rank's GPU and NCCL problem; empty: none.
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
    for (const std::string& told :
         exchange(store, fmt::format("shoal/auto/{}", call), world.rank, world.size, own,
                  Deadline::in_seconds(options.deadline_seconds))) {
      const std::size_t end = told.find('\n');
      gpus.push_back(told.substr(0, end));
      problems.push_back(told.substr(end + 1));
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
