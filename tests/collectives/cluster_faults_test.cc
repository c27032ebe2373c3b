// Faults of a job on an emulated cluster (bench/cluster/emulate), and on one host. Every survivor
// must end within its deadline plus 2 s with a nonzero status, and name the rank and the operation.
// No process or file may remain. tests/collectives/fault_ranks.cc causes the faults.
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "apps/program.h"
#include "fault_deadlines.h"
#include "support/efa.h"
#include "support/free_port.h"
#include "support/source_tree.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/collectives/transport/fabric/fabric.h"

namespace shoal::collectives {
namespace {

using test::ProgramOptions;
using test::ProgramResult;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kSigkill = 9;

struct Ending {
  int exit_status = -1, signal = 0;
  double seconds = 0;  // since the fault
  std::string said;
};

// One run of fault_ranks through several scenarios.
class FaultRun {
 public:
  const std::string& directory() const { return directory_.path(); }
  std::vector<std::string> words(const std::vector<std::string>& scenarios) const {
    std::vector<std::string> words{SHOAL_FAULT_RANKS, directory_.path()};
    words.insert(words.end(), scenarios.begin(), scenarios.end());
    return words;
  }
  Ending ending(const std::string& scenario, int rank) const {
    std::ifstream file(directory_.path() + "/" + scenario + "." + std::to_string(rank));
    Ending ending;
    EXPECT_TRUE(file >> ending.exit_status >> ending.signal >> ending.seconds) << scenario << rank;
    std::ostringstream rest;
    rest << file.rdbuf();
    ending.said = rest.str();
    return ending;
  }
  std::string of_any_rank(const std::string& scenario, int size) const {
    std::string all;
    for (int rank = 0; rank < size; ++rank) all += ending(scenario, rank).said + "\n";
    return all;
  }
  GroupDiagnosis diagnosis(const std::string& scenario) const {
    std::vector<FlightDump> dumps;
    for (const auto& entry :
         std::filesystem::directory_iterator(directory_.path() + "/" + scenario + ".flight"))
      dumps.push_back(read_flight_dump(entry.path()));
    const auto found = diagnose(dumps);
    EXPECT_FALSE(found.empty()) << scenario;
    return found.empty() ? GroupDiagnosis{} : found.front();
  }

 private:
  testing::TemporaryDirectory directory_;
};

void expect_in_time(const Ending& ending, const std::string& what, int rank) {
  const bool waits = what == "stall" || what == "cut";
  EXPECT_EQ(ending.exit_status, 1) << what << ", rank " << rank << ": " << ending.said;
  EXPECT_LT(ending.seconds, waits ? deadline_of(what) + 2 : deadline_of(what) / 2)
      << what << ", rank " << rank << ": " << ending.said;
}

// Processes of a run that are still alive, and any memfds and sockets that remain.
std::vector<std::string> living(const FaultRun& run) {
  std::vector<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ostringstream words;
    words << std::ifstream(entry.path() / "cmdline").rdbuf();
    if (words.str().find(run.directory()) != std::string::npos) found.push_back(entry.path());
  }
  return found;
}
std::vector<std::string> shared_files() {
  std::vector<std::string> names;
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", absent))
    if (entry.path().filename().string().find("shoal") != std::string::npos)
      names.push_back(entry.path());
  return names;
}

void expect_mismatches_named(const FaultRun& run, const std::vector<std::string>& what, int size,
                             int victim) {
  const std::map<std::string, std::string> called{
      {"count", "all_reduce of 199999 f32, max"},     {"dtype", "all_reduce of 200000 i32, max"},
      {"reduce", "all_reduce of 200000 f32, avg"},    {"operation", "reduce_scatter of 7 f32, sum"},
      {"waiting", "broadcast of 200000 f32, root 0"}, {"order", "barrier"}};
  for (const std::string& kind : what) {
    const std::string scenario = kind + ":" + std::to_string(victim);
    for (int rank = 0; rank < size; ++rank) {
      const Ending ending = run.ending(scenario, rank);
      expect_in_time(ending, kind, rank);
      EXPECT_THAT(ending.said,
                  AllOf(HasSubstr("ranks called different operations"),
                        HasSubstr("rank " + std::to_string(victim) + " called " + called.at(kind)),
                        HasSubstr(" called all_reduce of 200000 f32, max")))
          << scenario << ", rank " << rank;
    }
    const GroupDiagnosis found = run.diagnosis(scenario);
    EXPECT_EQ(found.verdict, Verdict::mismatch) << scenario << ": " << found.summary;
    // The call may have failed before a third rank entered it. Then both ranks are named.
    EXPECT_THAT(found.culprits, AnyOf(ElementsAre(victim), AllOf(SizeIs(2), Contains(victim))))
        << scenario << ": " << found.summary;
  }
}

class ClusterFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto tried = test::run_program(
        {"bash", "-c",
         "n=shoal-probe-$$; ip netns add $n && ip -n $n link add v0 type veth peer name v1 && "
         "ip netns exec $n tc qdisc add dev v0 root tbf rate 1gbit burst 512kb latency 100ms; "
         "s=$?; ip netns del $n; exit $s"},
        {});
    if (tried.status != 0) GTEST_SKIP() << "needs root and network namespaces: " << tried.err;
  }

  void play(const FaultRun& run, int hosts, const std::string& ranks_per_host,
            const std::vector<std::string>& scenarios) {
    auto words = run.words(scenarios);
    const auto before = shared_files();
    const std::vector<std::string> emulate{testing::source_path("bench/cluster/emulate"),
                                           "--hosts",
                                           std::to_string(hosts),
                                           "--ranks-per-host",
                                           ranks_per_host,
                                           "--launcher",
                                           "plain",
                                           "--",
                                           "bash",
                                           "-c",
                                           "ip netns identify $$; exec \"$@\"",
                                           "bash"};
    words.insert(words.begin(), emulate.begin(), emulate.end());
    ProgramOptions options;
    options.seconds = 90;
    const ProgramResult result = test::run_program(words, options);
    ASSERT_EQ(result.status, 0) << result.err;
    EXPECT_THAT(living(run), IsEmpty());
    EXPECT_EQ(shared_files(), before);
    const std::string space = result.out.substr(0, result.out.find('\n'));
    ASSERT_THAT(space, HasSubstr("shoal-"));
    EXPECT_THAT(test::run_program({"ip", "netns", "list"}, {}).out,
                ::testing::Not(HasSubstr(space)));
  }
};

TEST_F(ClusterFaults, OnTwoHostsAreNamedInTimeAndCleanUp) {
  const FaultRun run;
  play(run, 2, "2", {"kill:3", "kill:0", "stall:3", "resume:3"});
  for (const int victim : {3, 0}) {
    const std::string scenario = "kill:" + std::to_string(victim);
    for (int rank = 0; rank < 4; ++rank) {
      const Ending ending = run.ending(scenario, rank);
      if (rank == victim) {
        EXPECT_EQ(ending.signal, kSigkill);
        continue;
      }
      expect_in_time(ending, "kill", rank);
      EXPECT_THAT(ending.said, AllOf(HasSubstr("rank " + std::to_string(victim) + " (host node" +
                                               std::to_string(victim / 2) + ") died"),
                                     HasSubstr("all_reduce of 200000 f32, max")))
          << rank;
    }
    const GroupDiagnosis found = run.diagnosis(scenario);
    EXPECT_EQ(found.verdict, Verdict::lost) << found.summary;
    EXPECT_THAT(found.culprits, ElementsAre(victim)) << found.summary;
    EXPECT_THAT(found.summary, HasSubstr("rank " + std::to_string(victim) + " died"));
  }

  for (const int rank : {0, 1, 2}) {
    const Ending ending = run.ending("stall:3", rank);
    expect_in_time(ending, "stall", rank);
    EXPECT_THAT(ending.said, AllOf(HasSubstr("no heartbeat of rank 3 (host node1) for "),
                                   HasSubstr("all_reduce of 200000 f32, max")))
        << rank;
  }
  EXPECT_EQ(run.ending("stall:3", 3).signal, kSigkill);
  EXPECT_THAT(run.diagnosis("stall:3").culprits, ElementsAre(3));
  EXPECT_THAT(run.diagnosis("stall:3").summary, HasSubstr("rank 3 did nothing"));

  // It was stopped for less than the deadline, so the job succeeds.
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_EQ(run.ending("resume:3", rank).exit_status, 0) << run.ending("resume:3", rank).said;
}

// Rank 0's host is the centre of the control links, so the other hosts cannot reach each other
// either. All ranks survive, and each reports the ranks it lost.
TEST_F(ClusterFaults, OfRankZerosLinkEndTheRanksOfEveryHost) {
  const FaultRun run;
  play(run, 3, "2,1,1", {"cut:0"});
  for (int rank = 0; rank < 4; ++rank) {
    const Ending ending = run.ending("cut:0", rank);
    expect_in_time(ending, "cut", rank);
    EXPECT_THAT(ending.said, AllOf(HasSubstr(rank < 2 ? "cannot be reached"
                                                      : "ranks 0, 1 on host node0 cannot be "
                                                        "reached: nothing has come from there"),
                                   HasSubstr("all_reduce of 200000 f32, max")))
        << rank;
  }
  const GroupDiagnosis found = run.diagnosis("cut:0");
  EXPECT_EQ(found.verdict, Verdict::cut);
  EXPECT_THAT(found.culprits, ElementsAre(0, 1)) << found.summary;
  EXPECT_THAT(found.summary, HasSubstr("lost ranks 0, 1"));
}

// One host, without root: over shared memory (faults_test.cc tests more of it), over the network
// only, and over both as on two hosts. The transports are tcp and a simulated EFA, whose closed
// endpoints send no notice.
struct Place {
  std::string name, transport;
  bool two_hosts = false;
  std::vector<std::string> mismatches;
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }
class HostFaults : public ::testing::TestWithParam<Place> {};

TEST_P(HostFaults, AreNamedInTimeAndCleanUp) {
  const Place& place = GetParam();
  constexpr int kSize = 4, kVictim = 3;
  if (!place.transport.empty() && fabric::fabric_providers().empty())
    GTEST_SKIP() << "built without libfabric";
  test::use_efa_provider();
  const FaultRun run;
  const auto before = shared_files();
  const int port = testing::free_ports(32);  // two for each scenario
  std::vector<std::vector<std::string>> environments;
  for (int rank = 0; rank < kSize; ++rank) {
    environments.push_back({"RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(kSize),
                            "MASTER_ADDR=127.0.0.1", "MASTER_PORT=" + std::to_string(port),
                            "FAULT_TRANSPORT=" + place.transport});
    if (place.two_hosts)
      environments.back().push_back("SHOAL_HOST_NAME=host" + std::to_string(rank / 2));
  }
  std::vector<std::string> scenarios{"kill:0", "kill:3"};
  for (const std::string& what : place.mismatches) scenarios.push_back(what + ":3");
  for (const ProgramResult& result : test::run_programs(run.words(scenarios), environments))
    EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_THAT(living(run), IsEmpty());
  EXPECT_EQ(shared_files(), before);
  for (const int victim : {0, kVictim}) {
    const std::string scenario = "kill:" + std::to_string(victim);
    for (int rank = 0; rank < kSize; ++rank) {
      const Ending ending = run.ending(scenario, rank);
      if (rank == victim) {
        EXPECT_EQ(ending.signal, kSigkill);
        continue;
      }
      expect_in_time(ending, "kill", rank);
      EXPECT_THAT(ending.said, AllOf(HasSubstr("rank " + std::to_string(victim)),
                                     HasSubstr(" died"), HasSubstr("all_reduce of 200000")))
          << rank;
    }
  }
  expect_mismatches_named(run, place.mismatches, kSize, kVictim);
}

INSTANTIATE_TEST_SUITE_P(
    Places, HostFaults,
    ::testing::Values(Place{"shm", "", false, {"operation"}}, Place{"tcp", "tcp", false, {"order"}},
                      Place{"hosts", "tcp", true, {"count", "dtype", "operation", "waiting"}},
                      Place{"efa", "efa", true, {"reduce", "order"}}),
    [](const auto& place) { return place.param.name; });

}  // namespace
}  // namespace shoal::collectives
