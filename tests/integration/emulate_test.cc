// bench/cluster/emulate: hosts with their own names, a network for each rail, and a complete
// clean-up.
#include <algorithm>
#include <sstream>

#include "apps/program.h"
#include "support/source_tree.h"
#include <gmock/gmock.h>

namespace shoal {
namespace {

using test::ProgramResult;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> sorted_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

ProgramResult emulate(std::vector<std::string> words, const test::ProgramOptions& options = {}) {
  words.insert(words.begin(), testing::source_path("bench/cluster/emulate"));
  return test::run_program(words, options);
}

class Emulate : public ::testing::Test {
 protected:
  void SetUp() override {
    // True if this machine allows namespaces and shaped links at all.
    const auto tried = test::run_program(
        {"bash", "-c",
         "n=shoal-probe-$$; ip netns add $n && ip -n $n link add v0 type veth peer name v1 && "
         "ip netns exec $n tc qdisc add dev v0 root tbf rate 1gbit burst 512kb latency 100ms; "
         "s=$?; "
         "ip netns del $n; exit $s"},
        {});
    if (tried.status != 0) GTEST_SKIP() << "needs root and network namespaces: " << tried.err;
  }
};

TEST_F(Emulate, RunsTheCommandOnEveryRankOfEveryHost) {
  const std::string says =
      "echo $(hostname) $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $(ls /sys/class/net | grep "
      "-c eth) $(getent hosts node1 | cut -d' ' -f1)";
  const auto result = emulate({"--hosts", "2", "--ranks-per-host", "2,1", "--rails", "2",
                               "--launcher", "plain", "--", "bash", "-c", says});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(sorted_lines(result.out),
              ElementsAre("node0 0/3 0/2 2 10.77.0.11", "node0 1/3 1/2 2 10.77.0.11",
                          "node1 2/3 0/1 2 10.77.0.11"));
}

TEST_F(Emulate, HandsOnTheExitStatusAndLeavesNothing) {
  const auto failed = emulate({"--hosts", "2", "--ranks-per-host", "1", "--launcher", "plain", "--",
                               "bash", "-c", "exit $((RANK * 7))"});
  EXPECT_EQ(failed.status, 7);
  // After a signal everything is cleaned up too. Names contain the process number, so other
  // clusters do not matter.
  test::ProgramOptions stopped;
  stopped.signal_when_out_has = "here";
  const auto result = emulate({"--hosts", "2", "--ranks-per-host", "1", "--launcher", "plain", "--",
                               "bash", "-c", "ip netns identify $$; echo here; sleep 30"},
                              stopped);
  EXPECT_EQ(result.status, 143);
  const std::string name = sorted_lines(result.out).back();
  ASSERT_THAT(name, HasSubstr("shoal-"));
  const auto left = test::run_program({"ip", "netns", "list"}, {});
  EXPECT_THAT(left.out, ::testing::Not(HasSubstr(name)));
}

TEST(EmulateArguments, AreCheckedBeforeAnythingIsMade) {
  EXPECT_THAT(emulate({"--hosts", "none", "--", "true"}).err, HasSubstr("--hosts none"));
  EXPECT_THAT(emulate({"--rate", "fast", "--", "true"}).err, HasSubstr("--rate fast"));
  EXPECT_THAT(emulate({"--ranks-per-host", "1,2", "--", "true"}).err, HasSubstr("names 2 hosts"));
  EXPECT_THAT(emulate({}).err, HasSubstr("no command"));
}

}  // namespace
}  // namespace shoal
