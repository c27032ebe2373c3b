// Tests of logging, environment variables, deadlines, parallel_for and names.
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(Error, ControlBytesNeverReachTheTerminal) {
  const Error error(ErrorCode::corrupt_data, std::string("name \0\x1b[31m", 10));
  EXPECT_STREQ(error.what(), "name \\x00\\x1b[31");
}

TEST(Log, FiltersLevelsAndTagsTheRank) {
  CaptureStderr();
  log::set_level(log::Level::warn);
  log::info("hidden {}", 1);
  log::warn("shown {}", 2);
  log::set_rank(2, 4);
  log::error("tagged");
  log::set_rank(0, 1);
  log::warn("one process has no rank");
  log::set_level(log::Level::off);
  log::error("silent");
  log::set_level(log::Level::info);
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, Not(HasSubstr("hidden")));
  EXPECT_THAT(text, HasSubstr("shown 2"));
  EXPECT_THAT(text, HasSubstr("[rank 2] tagged"));
  EXPECT_THAT(text, HasSubstr(" one process has no rank"));
  EXPECT_THAT(text, Not(HasSubstr("] one process")));
  EXPECT_THAT(text, Not(HasSubstr("silent")));
  EXPECT_EQ(log::parse_level("warning"), log::Level::warn);
  EXPECT_THROW((void)log::parse_level("loud"), Error);
}

TEST(Log, OnceLogsOnlyOnRankZeroForEachKey) {
  CaptureStderr();
  log::set_rank(1, 2);
  log::once(log::Level::warn, "fallback a", "from rank 1");
  log::set_rank(0, 2);
  log::once(log::Level::warn, "fallback a", "first");
  log::once(log::Level::warn, "fallback a", "second");
  log::once(log::Level::warn, "fallback b", "third");
  log::set_rank(0, 1);
  const std::string text = GetCapturedStderr();
  EXPECT_THAT(text, Not(HasSubstr("from rank 1")));
  EXPECT_THAT(text, HasSubstr("first"));
  EXPECT_THAT(text, Not(HasSubstr("second")));
  EXPECT_THAT(text, HasSubstr("third"));
}

TEST(Log, NoticesRecordOnceOnEveryRank) {
  const std::size_t before = log::notices().size();
  log::set_rank(3, 4);
  log::once(log::Level::debug, "fallback c", "quietly");
  log::once(log::Level::debug, "fallback c", "again");
  log::set_rank(0, 1);
  const auto notices = log::notices();
  ASSERT_EQ(notices.size(), before + 1);
  EXPECT_EQ(notices.back().key, "fallback c");
  EXPECT_EQ(notices.back().text, "quietly");
  EXPECT_EQ(notices.back().level, log::Level::debug);
}

class Environment : public ::testing::Test {
 protected:
  void set(const char* value) { ::setenv("SHOAL_TEST_ONLY", value, 1); }
  void TearDown() override { ::unsetenv("SHOAL_TEST_ONLY"); }
  template <typename Body>
  std::string refusal(Body body) {
    try {
      (void)body();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      return error.what();
    }
    return "accepted";
  }
  env::Variable integer{"SHOAL_TEST_ONLY", env::Kind::integer, "7", "a count"};
  env::Variable real{"SHOAL_TEST_ONLY", env::Kind::real, "0.5", "a share"};
  env::Variable boolean{"SHOAL_TEST_ONLY", env::Kind::boolean, "0", "a switch"};
};

TEST_F(Environment, ReadsDefaultsAndValues) {
  EXPECT_FALSE(env::is_set(integer));
  EXPECT_EQ(env::get_integer(integer), 7);
  EXPECT_EQ(env::get_real(real), 0.5);
  EXPECT_FALSE(env::get_boolean(boolean));
  set("-12");
  EXPECT_TRUE(env::is_set(integer));
  EXPECT_EQ(env::get_integer(integer), -12);
  EXPECT_EQ(env::get_string(integer), "-12");
  set("1e-3");
  EXPECT_EQ(env::get_real(real), 1e-3);
  for (const char* yes : {"1", "true", "yes", "on"}) {
    set(yes);
    EXPECT_TRUE(env::get_boolean(boolean)) << yes;
  }
}

TEST_F(Environment, BadValuesNameTheVariable) {
  for (const char* bad : {"x", "1.5", "", " 1", "99999999999999999999"}) {
    set(bad);
    EXPECT_THAT(refusal([&] { return env::get_integer(integer); }),
                HasSubstr("SHOAL_TEST_ONLY='" + std::string(bad) + "' is not an integer; a count"));
  }
  set("nan");
  EXPECT_THAT(refusal([&] { return env::get_real(real); }), HasSubstr("SHOAL_TEST_ONLY='nan'"));
  set("maybe");
  EXPECT_THAT(refusal([&] { return env::get_boolean(boolean); }), HasSubstr("true or false"));
}

TEST_F(Environment, ChecksWordsAndRanges) {
  const env::Variable word{"SHOAL_TEST_ONLY", env::Kind::string, "auto", "a way", "auto on off"};
  const env::Variable count{"SHOAL_TEST_ONLY", env::Kind::integer, "0", "a count", {}, 0, 4096};
  const auto check = [&](const env::Variable& variable) {
    return refusal([&] { return env::check(variable), 0; });
  };
  EXPECT_EQ(check(word), "accepted");
  set("on");
  EXPECT_EQ(check(word), "accepted");
  for (const char* bad : {"o", "auto on", "aut", "on "}) {
    set(bad);
    EXPECT_THAT(check(word), HasSubstr("SHOAL_TEST_ONLY='" + std::string(bad) + "' is not one of"));
  }
  set("4097");
  EXPECT_EQ(check(count), "SHOAL_TEST_ONLY='4097' is outside 0 to 4096; a count");
}

TEST(EnvironmentRegistry, NamesEveryBadValue) {
  EXPECT_TRUE(env::problems().empty());
  ::setenv("SHOAL_STORE_PORT", "many", 1);
  ::setenv("SHOAL_BACKEND", "gloo", 1);
  const std::vector<std::string> problems = env::problems();
  ::unsetenv("SHOAL_STORE_PORT");
  ::unsetenv("SHOAL_BACKEND");
  ASSERT_EQ(problems.size(), 2U);
  EXPECT_THAT(problems[0], HasSubstr("SHOAL_BACKEND='gloo'"));
  EXPECT_THAT(problems[1], HasSubstr("SHOAL_STORE_PORT='many' is not an integer"));
}

TEST(EnvironmentRegistry, RefusesDeadlinesThatNoWaitCanHave) {
  for (const char* bad : {"-1", "0", "1e-9", "1e20", "inf", "-inf", "nan", "abc", "1e999"}) {
    ::setenv("SHOAL_DEADLINE_S", bad, 1);
    const std::vector<std::string> problems = env::problems();
    ASSERT_EQ(problems.size(), 1U) << bad;
    EXPECT_THAT(problems[0], HasSubstr(fmt::format("SHOAL_DEADLINE_S='{}' is ", bad)));
  }
  ::setenv("SHOAL_DEADLINE_S", "inf", 1);
  EXPECT_THAT(env::problems().at(0), HasSubstr("is outside 0.1 to 100000000; "));
  for (const char* good : {"0.1", "3", "86400"}) {
    ::setenv("SHOAL_DEADLINE_S", good, 1);
    EXPECT_TRUE(env::problems().empty()) << good;
  }
  ::unsetenv("SHOAL_DEADLINE_S");
}

TEST(EnvironmentRegistry, IsDocumentedAndUnique) {
  std::vector<std::string> names;
  for (const env::Variable& variable : env::variables()) {
    EXPECT_TRUE(variable.name.starts_with("SHOAL_")) << variable.name;
    EXPECT_GT(variable.help.size(), 10u) << variable.name;
    EXPECT_THAT(names, Not(::testing::Contains(std::string(variable.name))));
    names.emplace_back(variable.name);
    if (variable.kind == env::Kind::integer) {
      EXPECT_NO_THROW((void)std::stoll(std::string(variable.default_value))) << variable.name;
    }
  }
  EXPECT_THAT(names, ::testing::Contains("SHOAL_STORE_DIR"));
}

TEST(Deadline, CountsSecondsLeftAndSupportsExtremes) {
  EXPECT_TRUE(Deadline::in_seconds(0).passed());
  EXPECT_TRUE(Deadline::in_seconds(-5).passed());
  EXPECT_TRUE(Deadline::in_seconds(-std::numeric_limits<double>::infinity()).passed());
  const Deadline minute = Deadline::in_seconds(60);
  EXPECT_FALSE(minute.passed());
  EXPECT_NEAR(minute.seconds_left(), 60, 5);
  for (const double endless : {1e9, 1e300, std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_FALSE(Deadline::in_seconds(endless).passed()) << endless;
    EXPECT_EQ(Deadline::in_seconds(endless).time(), Deadline::never().time());
  }
}

using Pieces = std::vector<std::pair<std::int64_t, std::int64_t>>;

Pieces pieces_of(int threads, std::int64_t count, std::int64_t grain) {
  std::mutex mutex;
  Pieces pieces;
  parallel_for(threads, count, grain, [&](std::int64_t begin, std::int64_t end) {
    const std::scoped_lock lock(mutex);
    pieces.emplace_back(begin, end);
  });
  std::ranges::sort(pieces);
  return pieces;
}

TEST(ParallelFor, PiecesTileTheRangeAndHoldTheGrain) {
  for (const int threads : {1, 2, 3, 7, 64})
    for (const std::int64_t count : {0, 1, 2, 3, 5, 17, 64, 1001})
      for (const std::int64_t grain : {0, 1, 4, 100}) {
        const Pieces pieces = pieces_of(threads, count, grain);
        EXPECT_LE(std::ssize(pieces), threads);
        std::int64_t next = 0;
        for (const auto& [begin, end] : pieces) {
          EXPECT_EQ(begin, next);
          if (pieces.size() > 1) {
            EXPECT_GE(end - begin, std::max<std::int64_t>(grain, 1));
          }
          EXPECT_GT(end, begin);
          next = end;
        }
        EXPECT_EQ(next, count) << threads << " threads, grain " << grain;
        EXPECT_EQ(pieces, pieces_of(threads, count, grain));
      }
  EXPECT_TRUE(pieces_of(4, -3, 1).empty());
  EXPECT_EQ(pieces_of(4, INT64_MAX, INT64_MAX / 4).size(), 4u)
      << "the last piece must not overflow";
}

TEST(ParallelFor, SumsByPieceAreTheSameInEveryRun) {
  std::vector<float> values(10'007);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = std::sin(static_cast<float>(i)) * 1e3f;
  const auto sum = [&] {
    std::vector<float> partial(values.size(), 0.0f);
    parallel_for(4, std::ssize(values), 100, [&](std::int64_t begin, std::int64_t end) {
      float s = 0;
      for (std::int64_t i = begin; i < end; ++i) s += values[static_cast<std::size_t>(i)];
      partial[static_cast<std::size_t>(begin)] = s;
    });
    return std::accumulate(partial.begin(), partial.end(), 0.0f);
  };
  const float first = sum();
  for (int run = 0; run < 20; ++run) EXPECT_EQ(sum(), first);
}

TEST(ParallelFor, ThrowsTheExceptionOfTheFirstPiece) {
  for (int run = 0; run < 20; ++run) {
    std::atomic<int> ran{0};
    try {
      parallel_for(4, 4, 1, [&](std::int64_t begin, std::int64_t) {
        ++ran;
        if (begin >= 1) throw_error(ErrorCode::corrupt_data, "piece {}", begin);
      });
      FAIL() << "no exception arrived";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "piece 1");
    }
    EXPECT_GE(ran, 2);
  }
}

TEST(ParallelFor, NestedCallsRunInTheCaller) {
  std::atomic<int> foreign{0}, items{0};
  parallel_for(2, 2, 1, [&](std::int64_t, std::int64_t) {
    const auto self = std::this_thread::get_id();
    parallel_for(4, 100, 1, [&](std::int64_t begin, std::int64_t end) {
      if (std::this_thread::get_id() != self) ++foreign;
      items += static_cast<int>(end - begin);
    });
  });
  EXPECT_EQ(items, 200);
#ifndef SHOAL_SERIAL_PARALLEL_FOR
  EXPECT_EQ(foreign, 0);
#endif
  EXPECT_GE(available_cores(), 1);
}

// The child starts this test again with the variable set.
TEST(Threads, AProgramRestartsOnceToSpinShortly) {
  if (std::getenv("SHOAL_TEST_RESTARTED") != nullptr) {
    restart_with_short_spins(nullptr);  // without the guard it would start again and again
    const char* spins = std::getenv("GOMP_SPINCOUNT");
    std::string shown;  // the name in ps and top: the file's name, at most 15 characters
    std::getline(std::ifstream("/proc/self/comm"), shown);
    const std::string file = std::filesystem::read_symlink("/proc/self/exe").filename().string();
    if (shown != file.substr(0, 15)) std::_Exit(45);
    std::_Exit(spins != nullptr && std::string(spins) == "10000" && !threads_spin_long() ? 42 : 43);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("SHOAL_TEST_RESTARTED", "1", 1);
    ::unsetenv("OMP_WAIT_POLICY");
    ::unsetenv("GOMP_SPINCOUNT");
    char name[] = "runtime_base_test", filter[] = "--gtest_filter=Threads.*";
    char* arguments[] = {name, filter, nullptr};
    restart_with_short_spins(arguments);
    std::_Exit(44);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 42);
}

TEST(Shortened, IsOneLineOfWholeCharacters) {
  EXPECT_EQ(shortened("as it is"), "as it is");
  EXPECT_EQ(shortened("a\nb\r"), "a\\nb\\r");
  EXPECT_EQ(shortened(std::string(1'000'000, 'x')), std::string(200, 'x') + "...");
  EXPECT_EQ(shortened("ab\xC3\xA9", 3), "ab...");
  EXPECT_EQ(shortened("ab\xC3\xA9", 4), "ab\xC3\xA9");
  EXPECT_EQ(shortened("", 0), "");
}

// Returns how a program ends whose standard output is `path`.
std::string output_ends(const char* path, const std::function<void()>& print) {
  const int kept = ::dup(STDOUT_FILENO), full = ::open(path, O_WRONLY);
  std::fflush(stdout);
  ::dup2(full, STDOUT_FILENO);
  std::string why = "written";
  try {
    print();
    terminal::finish_output();
  } catch (const Error& error) {
    why = error.what();
  }
  ::dup2(kept, STDOUT_FILENO);
  std::clearerr(stdout);
  ::close(kept);
  ::close(full);
  return why;
}

TEST(Terminal, LostOutputIsAnError) {
  if (::access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full";
  const auto line = [] { terminal::print("a line\n"); };
  const auto flushed = [] {
    terminal::write_result(stdout, "text");
    std::fflush(stdout);  // now only the error flag tells
  };
  const auto much = [] { terminal::print("{}\n", std::string(1 << 20, 'x')); };
  EXPECT_EQ(output_ends("/dev/null", much), "written");
  EXPECT_THAT(output_ends("/dev/full", line),
              ::testing::HasSubstr("standard output: No space left"));
  EXPECT_THAT(output_ends("/dev/full", flushed),
              ::testing::HasSubstr("cannot write to standard output"));
  EXPECT_THAT(output_ends("/dev/full", much),
              ::testing::HasSubstr("standard output: No space left"));
}

TEST(NearestName, CountsEditsAndSwaps) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("trian", "train"), 1);
  const std::vector<std::string> names{"learning_rate", "max_steps", "warmup_steps"};
  EXPECT_EQ(nearest_name("max_step", names), "max_steps");
  EXPECT_EQ(nearest_name("LR", {}), "");
  EXPECT_EQ(nearest_name(std::string(1'000'000, 'x'), names), "")
      << "a long name must not take quadratic time";
}

TEST(NearestName, CorrectsSlipsButNotOtherNames) {
  const std::vector<std::string> options{"local_rank",         "use_cpu",
                                         "model_type",         "num_train_epochs",
                                         "learning_rate",      "lr_scheduler_type",
                                         "use_fast_tokenizer", "eval_strategy",
                                         "--region",           "--job"};
  for (const char* far : {"lora_r", "lora_rank", "use_peft", "torchdtype", "use_mps_device",
                          "--verbos", "rank", "xy", ""})
    EXPECT_EQ(nearest_name(far, options), "") << far;
  for (const auto& [slip, meant] : {std::pair{"learning_rte", "learning_rate"},
                                    {"learningrate", "learning_rate"},
                                    {"num_epochs", "num_train_epochs"},
                                    {"evaluation_strategy", "eval_strategy"},
                                    {"use_gpu", "use_cpu"},
                                    {"learning", "learning_rate"},
                                    {"locla_rank", "local_rank"},
                                    {"--regoin", "--region"}})
    EXPECT_EQ(nearest_name(slip, options), meant) << slip;
}

TEST(Nearest, IgnoresCaseAndDistantNames) {
  const std::vector<std::string> lines{"MPI", "GPU", "oneDNN"};
  EXPECT_EQ(nearest_name("gpu", lines), "GPU");
  EXPECT_EQ(nearest_name("ONEDN", lines), "oneDNN");
  EXPECT_EQ(nearest_name("tpus", lines), "");
  EXPECT_EQ(nearest_name("disk", lines), "");
  EXPECT_EQ(did_you_mean("gpu", lines), "did you mean GPU?");
  EXPECT_EQ(did_you_mean("disk", lines, "look"), "look");
  EXPECT_EQ(names_there_are("mpi", lines), "did you mean MPI? There are MPI, GPU, oneDNN");
  EXPECT_EQ(names_there_are("disk", lines), "there are MPI, GPU, oneDNN");
  EXPECT_THAT(names_there_are("zz", std::vector<std::string>(300'000, "name")),
              ::testing::EndsWith(" and 299976 more"));
}

TEST(Terminal, ShowsControlCharactersEscaped) {
  using terminal::visible;
  EXPECT_EQ(visible("plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x9f\n\tx"),
            "plain \xc3\xa9 \xe2\x82\xac \xf0\x9f\x90\x9f\n\tx");
  EXPECT_EQ(visible(std::string("a\0b\x1b[31m\r\x7f", 10)), "a\\x00b\\x1b[31m\\x0d\\u007f");
  EXPECT_EQ(visible("\xc2\x9b"
                    "2J"),
            "\\u009b2J")
      << "a C1 control in UTF-8";
  EXPECT_EQ(visible("\x9b"
                    "2J"),
            "\\x9b2J")
      << "a C1 control as a byte";
  EXPECT_EQ(visible("\xe2\x80\xae"
                    "cod\xe2\x81\xa6"),
            "\\u202ecod\\u2066")
      << "controls that reorder text";
  EXPECT_EQ(visible("\xc0\x9b \xed\xa0\x80 \xf5\x80\x80\x80 \xe2\x82"),
            "\\xc0\\x9b \\xed\\xa0\\x80 \\xf5\\x80\\x80\\x80 \\xe2\\x82")
      << "overlong, surrogate, beyond Unicode, truncated";
}

TEST(Terminal, GetsNoControlsFromTheLog) {
  CaptureStderr();
  log::warn("{}", "tensor \x1b]0;x\x07 \xc2\x9b");
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("tensor \\x1b]0;x\\x07 \\u009b"));
}

}  // namespace
}  // namespace shoal
