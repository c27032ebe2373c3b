// Whole collectives from MPI (Open MPI).
#include <numeric>

#include "shoal/collectives/backend/backends.h"
#include "shoal/collectives/backend/call_communicator.h"
#include "shoal/collectives/backend/mpi/engine.h"
#include "shoal/runtime/base/log.h"

namespace shoal::collectives {
namespace {

class MpiWork final : public Work {
 public:
  MpiWork(std::shared_ptr<MpiEngine> engine, std::shared_ptr<MpiOperation> operation)
      : engine_(std::move(engine)), operation_(std::move(operation)) {}
  bool test() override { return engine_->test(*operation_); }
  void wait(Deadline deadline) override { engine_->wait(*operation_, deadline); }
  double default_deadline_seconds() const override { return engine_->deadline_seconds(); }

 private:
  std::shared_ptr<MpiEngine> engine_;
  std::shared_ptr<MpiOperation> operation_;
};

class MpiCommunicator final : public CallCommunicator {
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
    return std::make_unique<MpiWork>(engine_, engine_->submit(std::move(call)));
  }
  double deadline_seconds() const override { return engine_->deadline_seconds(); }
  // Every rank is on its way here: exchange_places has returned on it, or will.
  std::unique_ptr<Communicator> make_split(const SplitPlan& plan) override {
    MPI_Comm part = engine_->split(plan.ranks.empty() ? -1 : plan.color, plan.rank);
    if (part == MPI_COMM_NULL) return nullptr;
    std::unique_ptr<Communicator> result;
    if (plan.ranks.size() == 1) {
      result = make_single_communicator("mpi", options_);
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

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Store& store,
                                                    const CommunicatorOptions& options) {
  if (!options.algorithm.empty())
    throw_error(ErrorCode::invalid_argument,
                "algorithm '{}' is native's; the mpi backend leaves the choice to MPI",
                options.algorithm);
  check_launch(world);
  if (options.fixed_order)
    log::once(log::Level::info, "mpi-fixed-order",
              "fixed_order: the mpi backend exchanges the inputs of floating reductions and sums "
              "them itself, which takes the place of MPI's own reductions");
  const auto generation = store.add(fmt::format("shoal/mpi/generation/{}", world.rank), 1);
  std::vector<int> members(static_cast<std::size_t>(world.size));
  std::iota(members.begin(), members.end(), 0);
  auto engine = std::make_shared<MpiEngine>(
      MPI_COMM_WORLD, store, fmt::format("shoal/mpi/{}", generation), options, std::move(members));
  return std::make_unique<MpiCommunicator>(std::move(engine), options);
}

}  // namespace shoal::collectives
