// The mpi backend: collectives by MPI (Open MPI).
#include <numeric>

#include <fmt/ranges.h>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/mpi/engine.h"
#include "shoal/collectives/backend_communicator.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives::mpi {
namespace {

class MpiCommunicator final : public BackendCommunicator {
 public:
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, const CommunicatorOptions& options)
      : engine_(std::move(engine)),
        options_(options),
        memory_(make_counted_host_memory(options.counted_by)) {}
  ~MpiCommunicator() override { engine_->stop(); }

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string backend() const override { return "mpi"; }
  MemoryResource& memory_resource() override { return *memory_; }
  CommunicatorStatistics statistics() const override { return engine_->statistics(); }
  void abort(std::string_view reason) override { engine_->abort(reason); }

 private:
  WorkPtr submit(Call&& call) override {
    return std::make_unique<EngineWork<MpiEngine, MpiOperation>>(engine_,
                                                                 engine_->submit(std::move(call)));
  }
  double deadline_seconds() const override { return engine_->deadline_seconds(); }
  // Every rank makes this collective call, because exchange_places() returns on every rank.
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    MPI_Comm part = engine_->split(plan.ranks.empty() ? -1 : plan.color, plan.rank,
                                   Deadline::in_seconds(deadline_seconds()));
    if (part == MPI_COMM_NULL) return nullptr;
    std::unique_ptr<Communicator> result;
    if (plan.ranks.size() == 1) {
      result = make_single_communicator("mpi", options_, engine_->member(engine_->rank()));
    } else {
      const std::string prefix =
          fmt::format("{}/split/{}/{}", engine_->prefix(), plan.ordinal, plan.color);
      std::vector<int> members;
      for (const int peer : plan.ranks) members.push_back(engine_->member(peer));
      result = std::make_unique<MpiCommunicator>(
          std::make_shared<MpiEngine>(part, engine_->store(), prefix, options_, std::move(members)),
          options_);
    }
    const std::lock_guard lock(MpiRuntime::instance().mutex);
    MPI_Comm_free(&part);
    return result;
  }

  std::shared_ptr<MpiEngine> engine_;
  const CommunicatorOptions options_;
  std::unique_ptr<MemoryResource> memory_;
};

void check_launch(const World& world) {
  const std::lock_guard lock(MpiRuntime::instance().mutex);
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank != world.rank || size != world.size)
    throw Error(ErrorCode::unavailable,
                fmt::format("MPI says rank {} of {}, the launch variables say rank {} of {}", rank,
                            size, world.rank, world.size),
                "start every rank with one mpirun");
}

// Call before MPI_Init, which waits for all ranks without a deadline.
void join(const World& world, Store& store, const std::string& prefix, double deadline_seconds) {
  const auto key = [&](int rank) { return fmt::format("{}/joined/{}", prefix, rank); };
  store.set(key(world.rank), "");
  const Deadline deadline = Deadline::in_seconds(deadline_seconds);
  std::vector<int> missing;
  for (int rank = 0; rank < world.size; ++rank) try {
      store.get(key(rank), deadline);
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::timeout) throw;
      missing.push_back(rank);
    }
  if (missing.empty()) return;
  throw Error(
      ErrorCode::timeout,
      fmt::format("mpi: rank(s) {} did not join the group in time", fmt::join(missing, ", ")),
      "see whether they started and why they stopped")
      .at_rank(world.rank)
      .with_peer(missing.front())
      .in_operation("make_communicator");
}

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Store& store,
                                                    const CommunicatorOptions& options) {
  const std::string prefix =
      fmt::format("shoal/mpi/{}", store.add(fmt::format("shoal/mpi/generation/{}", world.rank), 1));
  join(world, store, prefix, options.deadline_seconds);
  check_launch(world);
  if (options.fixed_order)
    log::once(log::Level::info, "mpi-fixed-order",
              "fixed_order: the mpi backend exchanges the inputs of floating reductions and sums "
              "them itself, which takes the place of MPI's own reductions");
  std::vector<int> members(static_cast<std::size_t>(world.size));
  std::iota(members.begin(), members.end(), 0);
  auto engine =
      std::make_shared<MpiEngine>(MPI_COMM_WORLD, store, prefix, options, std::move(members));
  return std::make_unique<MpiCommunicator>(std::move(engine), options);
}

}  // namespace shoal::collectives::mpi
