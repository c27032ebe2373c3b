// A user's task that is not a chain of units: data parallelism trains it like any other.
#include <list>
#include <mutex>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::Outcome;
using test::RunOptions;
using test::toy_arguments;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

class OwnTask final : public Task {
 public:
  explicit OwnTask(CausalLmTask& task) : task_(task) {}
  nn::Module& module() override { return task_.module(); }
  std::string describe() const override { return "a user's model"; }
  std::int64_t vocabulary() const override { return task_.vocabulary(); }
  std::int64_t positions() const override { return task_.positions(); }
  std::int64_t count_targets(const Batch& batch) const override {
    return task_.count_targets(batch);
  }
  nn::ChainInput chain_input(const Batch& batch, MemoryResource& memory) const override {
    return task_.chain_input(batch, memory);
  }
  nn::LossOutput loss(nn::Context& context, const nn::ChainInput& input) override {
    return task_.loss(context, input);
  }
  nn::LoadReport load(const std::string& directory, const Assign& assign) override {
    return task_.load(directory, assign);
  }
  void save(const std::string& directory, const ValueOf& value) const override {
    task_.save(directory, value);
  }
  void save_setup(const std::string& directory) const override { task_.save_setup(directory); }

 private:
  CausalLmTask& task_;
};

struct OwnTasks {
  std::mutex mutex;
  std::list<OwnTask> all;
  RunOptions on(int ranks) {
    RunOptions options{.ranks = ranks, .eval_samples = 5};
    options.prepare = [this](CausalLmTask& task, TrainerParts& parts) {
      const std::lock_guard lock(mutex);
      parts.task = &all.emplace_back(task);
    };
    return options;
  }
};

TEST(OwnTask, HasTheBitsOfTheSameModelAsAChain) {
  for (const int ranks : {1, 2}) {
    const TemporaryDirectory out;
    TrainingArguments arguments = toy_arguments(out / "run");
    arguments.max_steps = 6;
    arguments.gradient_accumulation_steps = 2;
    arguments.eval_strategy = Interval::epoch;
    arguments.gradient_checkpointing = true;
    const Outcome expected = test::run(arguments, {.ranks = ranks, .eval_samples = 5});
    OwnTasks own;
    const Outcome actual = test::run(arguments, own.on(ranks));
    EXPECT_EQ(actual.main.losses, expected.main.losses);
    EXPECT_EQ(actual.main.norms, expected.main.norms);
    EXPECT_EQ(actual.main.evaluations.size(), expected.main.evaluations.size());
    for (std::size_t i = 0; i < actual.main.evaluations.size(); ++i)
      EXPECT_EQ(actual.main.evaluations[i].at("eval_loss"),
                expected.main.evaluations[i].at("eval_loss"));
  }
}

TEST(OwnTask, CannotBeSpreadOverRanksOrPredict) {
  const TemporaryDirectory out;
  TrainingArguments arguments = toy_arguments(out / "run");
  arguments.max_steps = 1;
  OwnTasks own;
  RunOptions options = own.on(1);
  std::shared_ptr<const Dataset> rows;
  options.prepare = [&, before = options.prepare](CausalLmTask& task, TrainerParts& parts) {
    before(task, parts);
    rows = parts.eval_dataset;
  };
  options.after = [&](Trainer& trainer, int) { trainer.predict(rows); };
  EXPECT_THAT(test::error_of(arguments, options),
              HasSubstr("a user's model is no chain of units, which predictions need"));
  arguments.mp_parameters = {{"pipeline_parallel_degree", 2}};
  EXPECT_THAT(test::error_of(arguments, own.on(2)),
              HasSubstr("a user's model is no chain of units, which mp_parameters need"));
}

}  // namespace
}  // namespace shoal
