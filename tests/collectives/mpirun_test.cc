// The mpi backend, and the native backend under mpirun. It starts mpi_ranks.cc with mpirun.
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/collectives/diagnosis/diagnose.h"

namespace {

using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Outcome {
  int status = -1;
  std::string output;
};

// An argument that identifies this test's processes.
std::string mark() { return fmt::format("of-test-{}", getpid()); }

std::vector<std::string> living_ranks() {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ostringstream words;
    words << std::ifstream(entry.path() / "cmdline").rdbuf();
    if (words.str().find(mark()) != std::string::npos) found.push_back(entry.path());
  }
  return found;
}

Outcome mpirun(int ranks, const std::string& what, const std::string& backend) {
  // Root shells (containers, CI) need the first two settings, and more ranks than cores need the
  // third. Open MPI's manual then advises to yield.
  const std::string command = fmt::format(
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 timeout -k 5 90 mpirun "
      "--oversubscribe --mca mpi_yield_when_idle 1 -n {} '{}' {} {} {} 2>&1",
      ranks, SHOAL_MPI_RANKS, what, backend, mark());
  Outcome outcome;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return outcome;
  std::array<char, 4096> buffer;
  while (const std::size_t got = fread(buffer.data(), 1, buffer.size(), pipe))
    outcome.output.append(buffer.data(), got);
  const int status = pclose(pipe);
  outcome.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return outcome;
}

class Mpirun : public ::testing::Test {
 protected:
  void SetUp() override {
    if (std::system("command -v mpirun > /dev/null 2>&1") != 0)
      GTEST_SKIP() << "mpirun is not installed";
  }
};

#if SHOAL_HAVE_MPI
TEST_F(Mpirun, MpiResultsAreExactAndTheSameOnAllRanks) {
  for (const int ranks : {2, 3, 4}) {
    const Outcome outcome = mpirun(ranks, "results", "mpi");
    EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome.output;
  }
}

TEST_F(Mpirun, MpiNamesAMismatch) {
  const Outcome outcome = mpirun(2, "mismatch", "mpi");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("rank 1 called all_reduce of 99 f32, sum"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 called all_reduce of 100 f32, sum"));
}

TEST_F(Mpirun, MpiNamesEveryDifferenceBeforeDataMoves) {
  const std::vector<std::pair<std::string, std::string>> differences{
      {"dtype", "all_reduce of 100 i32, sum"},
      {"reduce", "all_reduce of 100 f32, max"},
      {"operation", "broadcast of 100 f32, root 1"},
      {"order", "barrier"}};
  for (const auto& [what, called] : differences) {
    const Outcome outcome = mpirun(2, what, "mpi");
    EXPECT_NE(outcome.status, 0) << what;
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("rank 1 called {}", called))) << what;
    EXPECT_THAT(outcome.output, HasSubstr("rank 0 called all_reduce of 100 f32, sum")) << what;
  }
}

// MPI permits no more: mpirun names the process that died and ends the others.
TEST_F(Mpirun, MpiEndsWithAKilledRank) {
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = mpirun(3, "kill", "mpi");
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("signal 9"));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1"));
  EXPECT_THAT(living_ranks(), IsEmpty());
}

TEST_F(Mpirun, MpiDumpsItsLastCalls) {
  const shoal::testing::TemporaryDirectory directory;
  ::setenv("SHOAL_FLIGHT_DIR", directory.path().c_str(), 1);
  (void)mpirun(2, "mismatch", "mpi");
  ::unsetenv("SHOAL_FLIGHT_DIR");
  std::vector<shoal::collectives::FlightDump> dumps;
  for (const auto& job : std::filesystem::directory_iterator(directory.path()))
    for (const auto& entry : std::filesystem::directory_iterator(job.path()))
      dumps.push_back(shoal::collectives::read_flight_dump(entry.path()));
  EXPECT_EQ(dumps.size(), 2U);
  const auto found = shoal::collectives::diagnose(dumps);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].summary, HasSubstr("all_reduce of 99 f32, sum"));
}

TEST_F(Mpirun, MpiNamesUnequalCountsAndMessages) {
  EXPECT_THAT(mpirun(2, "pair", "mpi").output,
              HasSubstr("rank 1 sends 3 elements to rank 0, which expects 2"));
  EXPECT_THAT(mpirun(2, "message", "mpi").output,
              HasSubstr("rank 0 called send of 5 f32 to rank 1, rank 1 called recv of 4 f32 from "
                        "rank 0"));
  EXPECT_THAT(mpirun(2, "silent", "mpi").output,
              HasSubstr("recv of 4 f32 from rank 1 (message 1 between the two) did not finish"));
}

// AddressSanitizer detects whether MPI writes to the dropped receive's buffer.
TEST_F(Mpirun, MpiOutlivesASplitGroupThatWasDroppedWithAReceive) {
  const Outcome outcome = mpirun(2, "dropped", "mpi");
  EXPECT_THAT(outcome.output, HasSubstr("rank 0 lives on"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("AddressSanitizer")));
}

TEST_F(Mpirun, MpiRefusesCountsThatItCannotExchange) {
  const Outcome outcome = mpirun(3, "counts", "mpi");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("needs a buffer of 3000000000 elements"));
}

TEST_F(Mpirun, MpiRefusesOnEveryRankACountThatOneRankCannotExpress) {
  const Outcome outcome = mpirun(2, "refused", "mpi");
  for (const int rank : {0, 1})
    EXPECT_THAT(outcome.output,
                ContainsRegex(fmt::format("rank {} failed: .*all_to_all_v of u8 on rank 1 needs a "
                                          "buffer of 3000000001 elements, MPI counts to 2147483647",
                                          rank)));
}

TEST_F(Mpirun, MpiNamesRanksOfASplitGroupByTheirNumbersInTheJob) {
  const std::string output = mpirun(3, "part", "mpi").output;
  EXPECT_THAT(output, HasSubstr("mismatch: rank 1 failed: "));
  EXPECT_THAT(output, HasSubstr("rank 1 called all_reduce of 99 f32, sum"));
  EXPECT_THAT(output, HasSubstr("rank 2 called all_reduce of 100 f32, sum"));
  EXPECT_THAT(output, HasSubstr("rank 1 called broadcast of 99 f32, root 2"));
  EXPECT_THAT(output, HasSubstr("rank 1 sends 3 elements to rank 2, which expects 2"));
  EXPECT_THAT(output, HasSubstr("message: rank 1 failed: rank 2 called send of 5 f32 to rank 1, "
                                "rank 1 called recv of 4 f32 from rank 2 [rank 1, peer 2, recv of "
                                "4 f32 from rank 2]"));
  EXPECT_THAT(output, ContainsRegex("silent: rank 2 failed: recv of 4 f32 from rank 1 .*; rank 1 "
                                    "has not sent it \\[rank 2, peer 1"));
  EXPECT_THAT(output, ContainsRegex("missing: rank 2 failed: barrier .*missing: rank\\(s\\) 1 "
                                    "\\[rank 2, peer 1"));
  EXPECT_THAT(output, HasSubstr("abort: rank 2 failed: rank 1 aborted: enough [rank 2"));
}

// With 5 and 6 ranks MPI's own orders differ from the canonical tree.
TEST_F(Mpirun, MpiSumsInFixedOrder) {
  for (const int ranks : {5, 6}) {
    const Outcome outcome = mpirun(ranks, "fixed", "mpi");
    EXPECT_EQ(outcome.status, 0) << ranks << " ranks: " << outcome.output;
  }
}

TEST_F(Mpirun, MpiNoticesAnAbortHoweverItWaits) {
  const std::string output = mpirun(2, "abort", "mpi").output;
  for (const char* what : {"waits", "tests", "messages"})
    for (const int rank : {0, 1})
      EXPECT_THAT(output, HasSubstr(fmt::format("{}: rank {} failed: rank 1 aborted: enough "
                                                "[rank {}",
                                                what, rank, rank)));
}

TEST_F(Mpirun, MpiWaitsForNoRankWithoutADeadline) {
  EXPECT_THAT(mpirun(2, "unjoined", "mpi").output,
              HasSubstr("unjoined: rank 0 failed: mpi: rank(s) 1 did not join the group in time"));
  const std::string output = mpirun(2, "engine", "mpi").output;
  EXPECT_THAT(output, ContainsRegex("unsplit: rank 0 failed: split .*missing: rank\\(s\\) 1"));
  EXPECT_THAT(output, HasSubstr("cancelled: rank 0 failed: 0 kept"));
  EXPECT_THAT(output, HasSubstr("unmade: rank 0 failed: mpi: the group of ranks 0, 1 was not made "
                                "within 0.5 s"));
}

TEST_F(Mpirun, MpiNamesTheStalledRank) {
  const Outcome outcome = mpirun(2, "stall", "mpi");
  EXPECT_NE(outcome.status, 0);
  EXPECT_THAT(outcome.output, HasSubstr("missing: rank(s) 1"));
}
#else
TEST_F(Mpirun, MpiBackendIsBuilt) { GTEST_SKIP() << "built with SHOAL_MPI=OFF, or without MPI"; }
#endif

TEST_F(Mpirun, NativeEndsWithAKilledRank) {
  const Outcome outcome = mpirun(3, "kill", "native");
  EXPECT_NE(outcome.status, 0);
  // Either mpirun or a faster survivor reports it.
  EXPECT_THAT(outcome.output, AnyOf(HasSubstr("signal 9"), HasSubstr("rank 1 died")));
  EXPECT_THAT(outcome.output, HasSubstr("rank 1"));
  EXPECT_THAT(living_ranks(), IsEmpty());
}

TEST_F(Mpirun, NativeWorksUnderMpirun) {
  const Outcome outcome = mpirun(3, "results", "native");
  EXPECT_EQ(outcome.status, 0) << outcome.output;
}

}  // namespace
