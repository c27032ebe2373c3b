#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/device/device_communicator.h"
#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

constexpr std::array kBackends{Backend{"native", hierarchical::make_native_communicator},
                               Backend{"mpi", mpi::make_mpi_communicator},
                               Backend{"nccl", nccl::make_nccl_communicator}};

// Throws for native-only options instead of ignoring them.
void refuse_native_options(std::string_view backend, const CommunicatorOptions& options) {
  const std::array chosen{std::pair{"algorithm", &options.algorithm},
                          std::pair{"collectives", &options.collectives},
                          std::pair{"transport", &options.transport}};
  for (const auto& [name, value] : chosen)
    if (!value->empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} '{}' is native's; the {} backend chooses by itself", name, *value,
                              backend),
                  fmt::format("leave {} out, or use the native backend", name));
  if (!env::get_string(env::kCollectives).empty())
    log::once(log::Level::warn, "collectives-not-native",
              fmt::format("SHOAL_COLLECTIVES has no effect: its rules are for native, the {} "
                          "backend chooses by itself",
                          backend));
}

// Logs options that have no effect with one rank, but still refuses unknown values.
void check_single_options(const CommunicatorOptions& options) {
  (void)make_selector(options.collectives);
  constexpr std::array<std::string_view, 4> kKnown{"shm", "tcp", "udp", "efa"};
  if (!options.transport.empty() && std::ranges::find(kKnown, options.transport) == kKnown.end()) {
    const auto providers = fabric::fabric_providers();
    if (std::ranges::find(providers, options.transport) == providers.end())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' is not a transport; there are {}{}{}", options.transport,
                              fmt::join(kKnown, ", "), providers.empty() ? "" : ", ",
                              fmt::join(providers, ", ")));
  }
  std::vector<std::string> unused;
  if (options.backend != "native") unused.push_back("backend " + options.backend);
  if (!options.algorithm.empty()) unused.push_back("algorithm " + options.algorithm);
  if (!options.collectives.empty()) unused.emplace_back("the rules of collectives");
  if (!options.transport.empty()) unused.push_back("transport " + options.transport);
  if (unused.empty()) return;
  const std::string text = fmt::format("{}: without effect, for one rank's operations are copies",
                                       fmt::join(unused, ", "));
  log::once(log::Level::info, text, text);
}

// Names the folder of this job's dumps. A killed rank leaves no dump. Without a folder for each
// job, the dump of an earlier job could be taken for the killed rank's. Names sort by time. The
// first rank to come here sets the name. No rank waits for another rank, which could be the missing
// one.
std::string job_name(Store& store) {
  constexpr std::string_view kKey = "shoal/job";
  const auto now = std::chrono::system_clock::now();
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch());
  const std::string own = fmt::format("job-{:%Y%m%dT%H%M%S}.{:03}-{}",
                                      fmt::gmtime(std::chrono::system_clock::to_time_t(now)),
                                      ms.count() % 1000, ::getpid());
  store.compare_set(kKey, std::nullopt, own);
  return store.try_get(kKey).value_or(own);
}

}  // namespace

std::span<const Backend> backends() { return kBackends; }

std::unique_ptr<Communicator> make_communicator(const World& world, Store& store) {
  return make_communicator(world, store, {});
}

std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options) {
  SHOAL_CHECK(world.size > 0 && world.rank >= 0 && world.rank < world.size,
              "rank {} in a world of {}", world.rank, world.size);
  parse_algorithm(options.algorithm);
  CommunicatorOptions settled = options;
  if (settled.deadline_seconds == 0) settled.deadline_seconds = deadlines::seconds();
  SHOAL_CHECK(settled.deadline_seconds > 0, "a deadline of {} s", settled.deadline_seconds);
  if (const std::string directory = env::get_string(env::kFlightDir);
      settled.flight_directory.empty() && !directory.empty())
    settled.flight_directory = directory + "/" + job_name(store);
  if (options.backend == "auto") {
    CommunicatorOptions chosen = options;
    chosen.backend = choose_backend(world, store, settled);
    return make_communicator(world, store, chosen);
  }
  for (const Backend& backend : backends()) {
    if (backend.name != options.backend) continue;
    if (options.fixed_order && backend.name == "nccl")
      throw Error(ErrorCode::invalid_argument, "NCCL sums in an order of its own, not a fixed one",
                  "use the native backend, or leave fixed_order out");
    if (backend.name != "native") refuse_native_options(backend.name, options);
    if (backend.name != "nccl" && !options.stream.device.is_cpu()) {
      device_backend(options.stream.device.type).check_available(options.stream.device);
      CommunicatorOptions of_host = options;
      of_host.stream = {};
      of_host.rdma_device = options.stream.device;
      of_host.counted_by = nullptr;  // it counts device memory only
      return device::make_device_communicator(make_communicator(world, store, of_host), world,
                                              settled);
    }
    // A single rank with its own GPU keeps its data there.
    const bool on_device = backend.name == "nccl" && device_backend(DeviceType::cuda).count() > 0;
    if (world.size == 1 && !on_device) {
      check_single_options(options);
      return make_single_communicator("native", settled);  // no other rank takes part
    }
    return backend.make(world, store, settled);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not a collective backend", options.backend),
              "use auto, native, mpi or nccl");
}

}  // namespace shoal::collectives
