// How a run opens its data.
#include "shoal/train/command/setup.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/rendezvous/store.h"

namespace shoal::command {

namespace {

// Records the number of threads that open its files.
class Noting final : public TaskData {
 public:
  void name_labels(nlohmann::json& /*config*/) const override {}
  LabelsOf labels_of() const override { return LabelsOf::sample; }
  std::vector<std::string> metric_names() const override { return {}; }
  nlohmann::ordered_json metrics(const Dataset& /*dataset*/,
                                 const Predictions& /*predictions*/) const override {
    return {};
  }
  std::shared_ptr<const Dataset> open(const Opening& opening,
                                      std::vector<std::string>& /*notices*/) const override {
    threads.push_back(opening.threads);
    return nullptr;
  }
  std::vector<File> predicted(const Dataset& /*dataset*/,
                              const Predictions& /*predictions*/) const override {
    return {};
  }
  std::vector<nlohmann::ordered_json> answers(const Dataset& /*dataset*/,
                                              const Predictions& /*predictions*/) const override {
    return {};
  }
  mutable std::vector<int> threads;
};

std::vector<int> threads_used(int of_this_rank, std::int64_t asked) {
  const auto samples = std::make_shared<Noting>();
  RunSetup setup;
  setup.samples = samples;
  RunArguments arguments;
  arguments.training.do_train = true;
  arguments.data.train_file = "train.csv";
  arguments.data.validation_file = "dev.csv";
  arguments.data.preprocessing_num_workers = asked;
  World world;
  world.size = world.local_size = 2;
  const auto store = make_hash_store();
  collectives::WatchedStore ranks(*store, nullptr, {}, "data");
  open_data(arguments, world, ranks, of_this_rank, setup);
  return samples->threads;
}

// Commit 39c9efe0 divided the host's cores by its ranks, and ignored CPU quotas, the ranks'
// affinities and SHOAL_THREADS.
TEST(RunSetup, RowsAreTokenizedWithTheThreadsOfTheRank) {
  EXPECT_EQ(threads_used(7, 0), std::vector<int>({7, 7}));
  EXPECT_EQ(threads_used(7, 3), std::vector<int>({3, 3}));
}

}  // namespace
}  // namespace shoal::command
