// Ranks on several hosts while one prepares text: its death or hang must end the others too.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include "apps/shoal_fixture.h"
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

class ShoalWaits : public Shoal {
 protected:
  struct Ended {
    ProgramResult victim, survivor;
    double seconds = 0;  // from the signal to the survivor's end
  };

  // Two ranks are on separate hosts. Rank `busy` cannot prepare its text, because this process
  // holds the lock for it. Then rank `victim` gets `signal`.
  Ended run(int busy, int victim, int signal, const std::vector<std::string>& variables) {
    const std::string name = prepared_name();
    const std::string cache = fmt::format("{}{}", mine_ / "cache", busy);
    fs::create_directories(cache);
    const std::string lock = cache + "/" + name + ".lock";
    const int held = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(::flock(held, LOCK_EX), 0);
    const std::string other = fmt::format("{}{}", mine_ / "cache", 1 - busy);
    ProgramOptions options;
    options.seconds = 40;
    options.environment = variables;
    options.signal = signal;
    options.signal_only = victim;
    // The other rank has its tokens, so it waits now or soon.
    options.signal_when = [&] { return fs::exists(other + "/train-" + name + ".shoaltok"); };
    auto words = train_words({"--do_eval", "false", "--validation_file", ""});
    words.insert(words.begin(),
                 {"sh", "-c", "exec \"$0\" \"$@\" --data_cache_dir " + (mine_ / "cache") + "$RANK",
                  SHOAL_PROGRAM});
    const int port = testing::free_port();
    std::vector<std::vector<std::string>> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.push_back({fmt::format("RANK={}", rank), "LOCAL_RANK=0", "WORLD_SIZE=2",
                       "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1",
                       fmt::format("MASTER_PORT={}", port), "SHOAL_THREADS=1",
                       fmt::format("SHOAL_HOST_NAME=host{}", rank)});
    auto results = test::run_programs(words, ranks, options);
    ::close(held);
    Ended ended{results[static_cast<std::size_t>(victim)],
                results[static_cast<std::size_t>(1 - victim)], 0};
    ended.seconds = ended.survivor.ended - ended.victim.signalled;
    EXPECT_GT(ended.victim.signalled, 0) << ended.survivor.err << ended.victim.err;
    return ended;
  }
  // The key in the file names that a run of train_words() prepares.
  std::string prepared_name() {
    const auto once = train({"--do_eval", "false", "--validation_file", "", "--max_steps", "1",
                             "--save_strategy", "no", "--data_cache_dir", mine_ / "cache"});
    EXPECT_EQ(once.status, 0) << once.err;
    for (const auto& entry : fs::directory_iterator(mine_ / "cache"))
      if (const std::string stem = entry.path().stem(); stem.starts_with("train-"))
        return stem.substr(6);
    return {};
  }
  void expect_ended(const Ended& ended, int victim, double at_most) {
    EXPECT_EQ(ended.survivor.status, 5) << ended.survivor.err;
    EXPECT_LT(ended.seconds, at_most) << ended.survivor.err;
    const auto by_link = HasSubstr(fmt::format("rank {} (host host{})", victim, victim));
    // Rank 0 serves the store, so the survivor may learn of its death from there first.
    const auto by_store = HasSubstr("rank 0, which serves it, has ended");
    if (victim == 0)
      EXPECT_THAT(ended.survivor.err, ::testing::AnyOf(by_link, by_store));
    else
      EXPECT_THAT(ended.survivor.err, by_link);
    EXPECT_TRUE(is_one_line(ended.survivor.err)) << ended.survivor.err;
  }
};

constexpr double kDeath = 5;  // seconds; usually a tenth of a second, but the machine may be loaded

TEST_F(ShoalWaits, EndWhenTheRankThatPreparesIsKilled) {
  expect_ended(run(1, 1, SIGKILL, {}), 1, kDeath);
}
TEST_F(ShoalWaits, EndWhenRankZeroIsKilledWhileItPrepares) {
  expect_ended(run(0, 0, SIGKILL, {}), 0, kDeath);
}
TEST_F(ShoalWaits, EndWhenRankZeroIsKilledAndTheStoreIsFiles) {
  const std::string variable = "SHOAL_STORE_DIR=" + (mine_ / "store");
  expect_ended(run(0, 0, SIGKILL, {variable, "TORCHELASTIC_RUN_ID=waits"}), 0, kDeath);
}
TEST_F(ShoalWaits, EndTheRankThatPreparesWhenTheOneThatWaitsIsKilled) {
  expect_ended(run(0, 1, SIGKILL, {}), 1, kDeath);
}
TEST_F(ShoalWaits, EndAtTheDeadlineWhenTheRankThatPreparesIsStopped) {
  const Ended ended = run(1, 1, SIGSTOP, {"SHOAL_DEADLINE_S=2"});
  expect_ended(ended, 1, 10);
  EXPECT_THAT(ended.survivor.err, HasSubstr("no heartbeat of rank 1"));
}
TEST_F(ShoalWaits, EndAtTheDeadlineWhenTheRankThatPreparesDoesNothing) {
  // The rank is alive but makes no progress.
  const Ended ended = run(1, 1, SIGWINCH, {"SHOAL_DEADLINE_S=2"});
  EXPECT_EQ(ended.survivor.status, 5);
  EXPECT_LT(ended.seconds, 10);
}

// Ranks on one host that run a long evaluation before the first step.
class ShoalEvaluates : public Shoal {
 protected:
  // Returns rank 0's output and the seconds from the signal to its end. `victim` -1: both
  // ranks get the signal.
  std::pair<ProgramResult, double> run(int victim, int signal,
                                       const std::vector<std::string>& variables = {}) {
    std::ofstream(mine_ / "long.txt") << sentences(20000);
    auto words = train_words({"--validation_file", mine_ / "long.txt", "--eval_on_start", "true",
                              "--per_device_eval_batch_size", "1", "--config_overrides",
                              "n_layer=4,n_head=2,n_embd=128,n_positions=64"});
    words.insert(words.begin(), SHOAL_PROGRAM);
    ProgramOptions options;
    options.environment = variables;
    options.signal = signal;
    options.signal_only = victim;
    std::optional<Clock::time_point> evaluates;
    options.signal_when = [&] {
      if (!evaluates && fs::exists(out() + "/metrics.jsonl")) evaluates = Clock::now();
      return evaluates && seconds_since(*evaluates) > 0.5;
    };
    const int port = testing::free_port();
    std::vector<std::vector<std::string>> ranks;
    for (int rank = 0; rank < 2; ++rank)
      ranks.push_back({fmt::format("RANK={}", rank), fmt::format("LOCAL_RANK={}", rank),
                       "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
                       fmt::format("MASTER_PORT={}", port), "SHOAL_THREADS=1"});
    const auto results = test::run_programs(words, ranks, options);
    const auto& signalled = results[static_cast<std::size_t>(std::max(victim, 0))].signalled;
    EXPECT_GT(signalled, 0) << results[0].err;
    return {results[0], results[0].ended - signalled};
  }
};

TEST_F(ShoalEvaluates, EndWhenARankIsKilled) {
  const auto [survivor, seconds] = run(1, SIGKILL);
  EXPECT_EQ(survivor.status, 5);
  EXPECT_LT(seconds, kDeath);
  EXPECT_THAT(survivor.err, HasSubstr("rank 1 died"));
  EXPECT_TRUE(is_one_line(survivor.err)) << survivor.err;
}
TEST_F(ShoalEvaluates, EndAtTheDeadlineWhenARankIsStopped) {
  const auto [survivor, seconds] = run(1, SIGSTOP, {"SHOAL_DEADLINE_S=2"});
  EXPECT_EQ(survivor.status, 5);
  EXPECT_LT(seconds, 2 + kDeath);
  EXPECT_THAT(survivor.err, HasSubstr("missing: rank 1"));
  EXPECT_TRUE(is_one_line(survivor.err)) << survivor.err;
}
TEST_F(ShoalEvaluates, SavesAndEndsOnASignal) {
  const auto [rank, seconds] = run(-1, SIGTERM);
  EXPECT_EQ(rank.status, 128 + SIGTERM) << rank.err;
  EXPECT_LT(seconds, kDeath);
  EXPECT_TRUE(fs::exists(out() + "/checkpoint-0/COMPLETE"));
}

// libfabric's libraries install their own signal handlers when they are loaded.
TEST_F(Shoal, EndsByASignalBeforeItTrains) {
  std::ofstream(mine_ / "long.txt") << sentences(100000);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    const std::string cache = fmt::format("{}{}", mine_ / "cache", signal);
    ProgramOptions options;
    options.signal = signal;
    options.signal_when = [&] { return fs::exists(cache); };
    const auto ended = train({"--train_file", mine_ / "long.txt", "--data_cache_dir", cache,
                              "--do_eval", "false", "--validation_file", ""},
                             options);
    EXPECT_EQ(ended.signal, signal) << ended.status << ended.err;
    EXPECT_EQ(ended.err, "");
  }
}

// The program restarts itself if GOMP_SPINCOUNT is not set, and so loads its libraries twice.
TEST_F(Shoal, EndsByASignalAtAnyMomentOfItsStart) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's start-up gets the signal first";
#endif
  std::vector<std::string> words = {"env", "-u", "GOMP_SPINCOUNT", SHOAL_PROGRAM};
  for (const std::string& word : train_words({"--max_steps", "100000", "--save_strategy", "no"}))
    words.push_back(word);
  for (int start = 1; start <= 12; ++start) {
    const int signal = start % 2 == 0 ? SIGTERM : SIGINT;
    const auto ended = test::run_program(words, {.signal_after = 0.04 * start, .signal = signal});
    EXPECT_TRUE(ended.signal == signal || ended.status == 128 + signal)
        << start << ": " << ended.status << ended.err;
    std::filesystem::remove_all(out());
  }
}

}  // namespace
}  // namespace shoal
