// The Trainer on a mesh whose activations are large enough to be offloaded between
// forward and backward.
#include <mutex>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::Outcome;
using test::run;
using test::RunOptions;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int64_t kSteps = 2, kRows = 8, kLength = 12, kWidth = 192, kBlocks = 4;
constexpr std::int64_t kStream = kRows * kLength * kWidth * 4;
static_assert(kStream >= std::int64_t{1} << 16, "what is smaller stays");

struct Layout {
  int rdp = 1, pp = 1;
  std::int64_t microbatches = 1;
  bool on_mesh = true;
  int ranks() const { return rdp * pp; }
};

struct Ran {
  Outcome outcome;
  std::vector<parallel::OffloadStatistics> of_ranks;
  std::vector<std::string> report;  // rank 0's
};

Ran train(const Layout& layout, bool offloads, std::int64_t width = kWidth) {
  const TemporaryDirectory output;
  TrainingArguments a = test::toy_arguments(output.path());
  a.max_steps = kSteps;
  a.per_device_train_batch_size = kRows * layout.microbatches;
  a.gradient_checkpointing = true;
  a.activation_offloading = offloads;
  if (layout.on_mesh)
    a.mp_parameters = {{"ddp", true},
                       {"pipeline_parallel_degree", layout.pp},
                       {"microbatches", layout.microbatches}};
  Ran ran;
  ran.of_ranks.resize(static_cast<std::size_t>(layout.ranks()));
  std::mutex mutex;
  RunOptions options{.ranks = layout.ranks(), .samples = 64};
  options.config.hidden_size = width;
  options.config.num_hidden_layers = kBlocks;
  options.config.num_attention_heads = 4;
  options.after = [&](Trainer& trainer, int rank) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(trainer.offloaded().has_value(), offloads);
    if (trainer.offloaded()) ran.of_ranks[static_cast<std::size_t>(rank)] = *trainer.offloaded();
    if (rank == 0) ran.report = trainer.memory_report();
  };
  ran.outcome = run(a, options);
  return ran;
}

// Per microbatch a rank offloads its blocks' inputs. The head also offloads the input of its norm
// and the gradient that it computes in forward.
TEST(TrainerOffload, OnAMeshTakesWhatTheLayoutSaysAndChangesNoBit) {
  for (const Layout& layout : std::vector<Layout>{{.rdp = 2, .on_mesh = false},
                                                  {.rdp = 2, .microbatches = 2},
                                                  {.pp = 2, .microbatches = 2}}) {
    SCOPED_TRACE(fmt::format("rdp {} pp {} mesh {}", layout.rdp, layout.pp, layout.on_mesh));
    const Ran kept = train(layout, false), away = train(layout, true);
    EXPECT_EQ(away.outcome.main.losses, kept.outcome.main.losses);
    EXPECT_EQ(away.outcome.main.norms, kept.outcome.main.norms);
    std::int64_t all = 0;
    for (const parallel::OffloadStatistics& rank : away.of_ranks) {
      EXPECT_GT(rank.bytes, 0);
      EXPECT_EQ(rank.bytes, rank.tensors * kStream);
      all += rank.tensors;
    }
    EXPECT_EQ(all, kSteps * layout.microbatches * layout.rdp * (kBlocks + 2));
    EXPECT_THAT(away.report, Contains(HasSubstr("offloaded")));
    EXPECT_THAT(away.report, ::testing::Not(Contains(HasSubstr("nothing"))));
  }
}

TEST(TrainerOffload, ReportsIfNothingWasLargeEnough) {
  const Ran run = train({.pp = 2, .microbatches = 2}, true, 24);
  for (const parallel::OffloadStatistics& rank : run.of_ranks) EXPECT_EQ(rank.tensors, 0);
  EXPECT_THAT(run.report, Contains(HasSubstr("offloaded      nothing: what checkpoints keep is "
                                             "smaller than 64.00 KiB")));
}

}  // namespace
}  // namespace shoal
