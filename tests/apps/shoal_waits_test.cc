// Ranks of several hosts while one prepares text: no death and no hang of one keeps the others.
#include <csignal>
#include <filesystem>
#include <fstream>

#include "apps/shoal_fixture.h"
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

namespace shoal {
namespace {

namespace fs = std::filesystem;

class ShoalWaits : public Shoal {
 protected:
  struct Ended {
    ProgramResult victim, survivor;
    double seconds = 0;  // from the signal to the survivor's end
  };

  // Rank `busy` of two, each on a host of its own, cannot get on with its text: this process holds
  // the lock that whoever prepares it takes. Then `signal` is sent to rank `victim`.
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
    // The other one has its tokens: it waits, or will at once.
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
  // The key in the names of what a run of train_words() prepares.
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
    EXPECT_EQ(ended.survivor.status, 1) << ended.survivor.err;
    EXPECT_LT(ended.seconds, at_most) << ended.survivor.err;
    const auto by_link = HasSubstr(fmt::format("rank {} (host host{})", victim, victim));
    // Rank 0 serves the store: the survivor may learn of its death there first.
    const auto by_store = HasSubstr("rank 0, which serves it, has ended");
    if (victim == 0)
      EXPECT_THAT(ended.survivor.err, ::testing::AnyOf(by_link, by_store));
    else
      EXPECT_THAT(ended.survivor.err, by_link);
    EXPECT_TRUE(is_one_line(ended.survivor.err)) << ended.survivor.err;
  }
};

constexpr double kDeath = 5;  // seconds; it takes a tenth of one, and this machine may be loaded

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
  // Alive, but without progress.
  const Ended ended = run(1, 1, SIGWINCH, {"SHOAL_DEADLINE_S=2"});
  EXPECT_EQ(ended.survivor.status, 1);
  EXPECT_LT(ended.seconds, 10);
}

}  // namespace
}  // namespace shoal
