#include <array>

#include "shoal/collectives/algorithm/choice.h"
#include "shoal/collectives/backend/backends.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::collectives {
namespace {

constexpr std::array kBackends{Backend{"native", make_native_communicator},
                               Backend{"mpi", make_mpi_communicator},
                               Backend{"nccl", make_nccl_communicator}};

}  // namespace

std::span<const Backend> backends() { return kBackends; }

std::unique_ptr<Communicator> make_communicator(const World& world, Store& store,
                                                const CommunicatorOptions& options) {
  SHOAL_CHECK(world.size > 0 && world.rank >= 0 && world.rank < world.size,
              "rank {} in a world of {}", world.rank, world.size);
  SHOAL_CHECK(options.deadline_seconds > 0, "a deadline of {} s", options.deadline_seconds);
  parse_algorithm(options.algorithm);
  CommunicatorOptions settled = options;
  if (settled.flight_directory.empty()) settled.flight_directory = env::get_string(env::kFlightDir);
  for (const Backend& backend : backends()) {
    if (backend.name != options.backend) continue;
    if (options.fixed_order && backend.name == "nccl")
      throw Error(ErrorCode::invalid_argument, "NCCL sums in an order of its own, not a fixed one",
                  "use the native backend, or leave fixed_order out");
    // One rank with a GPU of its own keeps its data there.
    const bool on_device = backend.name == "nccl" && device_backend(DeviceType::cuda).count() > 0;
    if (world.size == 1 && !on_device) return make_single_communicator(options.backend, settled);
    return backend.make(world, store, settled);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("'{}' is not a collective backend", options.backend),
              "use native, mpi or nccl");
}

}  // namespace shoal::collectives
