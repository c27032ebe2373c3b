// World discovery from fake environments.
#include "shoal/runtime/rendezvous/world.h"

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>
#include <tuple>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Fake = std::map<std::string, std::string, std::less<>>;

const DiscoveryPaths kNoSageMaker{"/nonexistent"};

World discover(const Fake& fake, const DiscoveryPaths& paths = kNoSageMaker) {
  return discover_world(
      [fake](std::string_view name) -> std::optional<std::string> {
        const auto found = fake.find(name);
        if (found == fake.end()) return std::nullopt;
        return found->second;
      },
      paths);
}

std::string refusal(const Fake& fake, const DiscoveryPaths& paths = kNoSageMaker) {
  try {
    (void)discover(fake, paths);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

Fake with(Fake fake, const Fake& more) {
  for (const auto& [name, value] : more) fake[name] = value;
  return fake;
}
Fake without(Fake fake, const std::string& name) {
  fake.erase(name);
  return fake;
}

const Fake kMpi{{"OMPI_COMM_WORLD_RANK", "5"},
                {"OMPI_COMM_WORLD_SIZE", "8"},
                {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                {"PMIX_NAMESPACE", "12345.1"}};
const Fake kTorchrun{{"RANK", "3"},
                     {"WORLD_SIZE", "4"},
                     {"LOCAL_RANK", "1"},
                     {"LOCAL_WORLD_SIZE", "2"},
                     {"MASTER_ADDR", "node-a"},
                     {"MASTER_PORT", "1234"}};
const Fake kSlurm{{"SLURM_PROCID", "4"},           {"SLURM_NTASKS", "6"},  {"SLURM_LOCALID", "1"},
                  {"SLURM_NODELIST", "node[1-3]"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "77"}};

TEST(World, IsASingleProcessByDefault) {
  const World world = discover({});
  EXPECT_EQ(world.launcher, Launcher::single);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.size, 1);
  EXPECT_EQ(world.local_size, 1);
  EXPECT_EQ(world.nodes, 1);
  EXPECT_FALSE(world.host.empty());
  const auto store = make_store(world, Deadline::in_seconds(1));
  store->set("k", "v");
  EXPECT_EQ(store->name(), "in-process store");
}

TEST(World, IsReadFromOpenMpi) {
  const World world = discover(kMpi);
  EXPECT_EQ(world.launcher, Launcher::open_mpi);
  EXPECT_EQ(world.rank, 5);
  EXPECT_EQ(world.size, 8);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 4);
  EXPECT_EQ(world.node, 1);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_THAT(world.job_id, HasSubstr("12345.1"));
  EXPECT_TRUE(world.master_addr.empty());
  // If ranks are mapped by node, they alternate between hosts.
  const World by_node = discover(with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "2"}}));
  EXPECT_EQ(by_node.node, 1);
  const World master = discover(with(kMpi, {{"MASTER_ADDR", "10.0.0.9"}}));
  EXPECT_EQ(master.master_addr, "10.0.0.9");
  EXPECT_EQ(master.master_port, 29500);
}

TEST(World, RefusesInvalidOpenMpiVariables) {
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}) {
    EXPECT_THAT(refusal(without(kMpi, name)), HasSubstr(std::string(name) + " is not"));
    EXPECT_THAT(refusal(with(kMpi, {{name, "two"}})), HasSubstr(std::string(name) + "='two'"));
  }
  EXPECT_THAT(refusal(with(kMpi, {{"OMPI_COMM_WORLD_RANK", "8"}})),
              HasSubstr("OMPI_COMM_WORLD_RANK=8 does not lie within OMPI_COMM_WORLD_SIZE=8"));
  EXPECT_THAT(refusal(with(kMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "9"}})),
              HasSubstr("OMPI_COMM_WORLD_LOCAL_SIZE=9"));
  EXPECT_THAT(refusal(with(kMpi, {{"RANK", "2"}})),
              HasSubstr("RANK=2 contradicts OMPI_COMM_WORLD_RANK=5"));
  EXPECT_THAT(refusal(with(kMpi, {{"WORLD_SIZE", "2"}})), HasSubstr("WORLD_SIZE=2 contradicts"));
  EXPECT_EQ(refusal(with(kMpi, {{"RANK", "5"}, {"WORLD_SIZE", "8"}})), "accepted");
  EXPECT_THAT(refusal(with(kMpi, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "70000"}})),
              HasSubstr("MASTER_PORT=70000"));
}

TEST(World, RanksOnSeveralHostsDoNotMeetWithoutAJobToken) {
  World world = discover(kTorchrun);
  ASSERT_FALSE(world.is_single_host());
  world.master_addr = "192.0.2.1";
  const auto why = [&world] {
    try {
      (void)make_store(world, Deadline::in_seconds(0.1));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("a store");
  };
  EXPECT_THAT(why(), HasSubstr("without a job token"));
  EXPECT_THAT(why(), HasSubstr("shoal token FILE"));
  ::setenv("SHOAL_INSECURE", "1", 1);
  EXPECT_THAT(why(), HasSubstr("no Shoal store at"));
  ::unsetenv("SHOAL_INSECURE");
  world.nodes = 1;  // ranks of one host
  world.master_addr = host_name();
  world.master_port = 1;
  EXPECT_THAT(why(), HasSubstr("no Shoal store at 127.0.0.1:1"));
}

TEST(World, OpenMpiOnSeveralHostsFallsBackToMpirunsAddress) {
  const World world = discover(with(
      kMpi,
      {{"OMPI_MCA_orte_hnp_uri", "1279197184.0;tcp://10.1.2.3,172.17.0.1:44217;tcp6://[::2]:1"}}));
  EXPECT_EQ(world.master_addr, "10.1.2.3");
  EXPECT_TRUE(world.master_assumed);
  EXPECT_GT(world.master_port, 1024);
  // Rank 0 notices that it runs on another host.
  World zero = world;
  zero.rank = zero.local_rank = 0;
  zero.master_addr = "192.0.2.1";
  try {
    (void)make_store(zero, Deadline::in_seconds(0.1));
    FAIL() << "a store was made at another host's address";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("MASTER_ADDR"));
    EXPECT_THAT(error.what(), HasSubstr("SHOAL_STORE_DIR"));
  }
  // Without an address the error comes at once.
  try {
    (void)make_store(discover(kMpi), Deadline::in_seconds(0.1));
    FAIL() << "a store was made without a master";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("8 ranks on 2 hosts"));
  }
}

TEST(World, IsReadFromTorchrun) {
  const World world = discover(kTorchrun);
  EXPECT_EQ(world.launcher, Launcher::torchrun);
  EXPECT_EQ(world.rank, 3);
  EXPECT_EQ(world.size, 4);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.node, 1);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_EQ(world.master_addr, "node-a");
  EXPECT_EQ(world.master_port, 1234);
  // torchrun's agent uses the port itself.
  EXPECT_EQ(discover(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).master_port,
            1235);
  EXPECT_EQ(discover(with(kTorchrun, {{"SHOAL_STORE_PORT", "4321"}})).master_port, 4321);
  // Started by hand on one host, with only the four variables of PyTorch's env://.
  const World hand = discover(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", "29500"}});
  EXPECT_EQ(hand.local_rank, 1);
  EXPECT_EQ(hand.local_size, 2);
  EXPECT_EQ(hand.nodes, 1);
}

TEST(World, RefusesInvalidTorchrunVariables) {
  EXPECT_THAT(refusal({{"RANK", "0"}}), HasSubstr("RANK is set, but WORLD_SIZE is not"));
  EXPECT_THAT(refusal({{"WORLD_SIZE", "2"}}), HasSubstr("WORLD_SIZE is set, but RANK is not"));
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_PORT")), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(refusal(without(kTorchrun, "LOCAL_WORLD_SIZE")),
              HasSubstr("LOCAL_WORLD_SIZE is not"));
  EXPECT_THAT(refusal(without(kTorchrun, "LOCAL_RANK")), HasSubstr("LOCAL_RANK is not"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"RANK", "-1"}})), HasSubstr("RANK=-1"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"RANK", "1e3"}})), HasSubstr("RANK='1e3'"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"LOCAL_RANK", "2"}})), HasSubstr("LOCAL_RANK=2"));
  EXPECT_THAT(refusal(with(kTorchrun, {{"WORLD_SIZE", "99999999999"}})), HasSubstr("WORLD_SIZE="));
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "accepted");
  const Fake other_rank{{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}};
  EXPECT_THAT(refusal(with(kTorchrun, with(other_rank, {{"SLURM_STEP_ID", "0"}}))),
              HasSubstr("RANK=3 contradicts SLURM_PROCID=2"));
  // The batch script's SLURM_PROCID belongs to no rank.
  EXPECT_EQ(refusal(with(kTorchrun, other_rank)), "accepted");
  // One torchrun agent for each host, started by mpirun or srun. The inner launcher decides.
  const Fake elastic = with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "x"}});
  EXPECT_EQ(discover(with(elastic, kMpi)).launcher, Launcher::torchrun);
  EXPECT_EQ(discover(with(elastic, {{"SLURM_PROCID", "2"}, {"SLURM_NTASKS", "4"}})).rank, 3);
}

TEST(World, IsReadFromSlurm) {
  const World world = discover(kSlurm);
  EXPECT_EQ(world.launcher, Launcher::slurm);
  EXPECT_EQ(world.rank, 4);
  EXPECT_EQ(world.size, 6);
  EXPECT_EQ(world.local_rank, 1);
  EXPECT_EQ(world.local_size, 2);
  EXPECT_EQ(world.node, 2);
  EXPECT_EQ(world.nodes, 3);
  EXPECT_EQ(world.master_addr, "node1");
  EXPECT_EQ(world.master_port,
            discover(with(kSlurm, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).master_port)
      << "every rank must find the same port";
  const World uneven = discover(with(kSlurm, {{"SLURM_TASKS_PER_NODE", "3,2,1"}}));
  EXPECT_EQ(uneven.node, 1);
  EXPECT_EQ(uneven.local_size, 2);
  EXPECT_EQ(discover(with(kSlurm, {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "5"}})).master_addr,
            "head");
  // mpirun inside an allocation: all its ranks inherit the shell's SLURM variables.
  EXPECT_EQ(discover(with(kMpi, kSlurm)).launcher, Launcher::open_mpi);
}

TEST(World, RefusesInvalidSlurmVariables) {
  EXPECT_THAT(refusal(without(kSlurm, "SLURM_NTASKS")), HasSubstr("SLURM_NTASKS is not"));
  EXPECT_THAT(refusal(without(kSlurm, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID is not"));
  EXPECT_THAT(refusal(without(kSlurm, "SLURM_NODELIST")), HasSubstr("SLURM_NODELIST is not"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_PROCID", "6"}})), HasSubstr("SLURM_PROCID=6"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_LOCALID", "2"}})), HasSubstr("SLURM_LOCALID=2"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_NODELIST", "node[1-"}})), HasSubstr("node[1-"));
  EXPECT_THAT(refusal(with(kSlurm, {{"SLURM_NODEID", "3"}})), HasSubstr("SLURM_NODEID=3"));
}

// The script of sbatch, which srun has not started.
const Fake kBatch{{"SLURM_JOB_ID", "77"},          {"SLURM_NTASKS", "4"},
                  {"SLURM_PROCID", "0"},           {"SLURM_LOCALID", "0"},
                  {"SLURM_NODEID", "0"},           {"SLURM_JOB_NUM_NODES", "2"},
                  {"SLURM_NODELIST", "node[1-2]"}, {"SLURM_TASKS_PER_NODE", "2(x2)"}};

TEST(World, RefusesASlurmBatchScriptWithoutSrun) {
  const auto says_srun = [](const Fake& fake, const std::string& name) {
    const std::string text = refusal(fake);
    EXPECT_THAT(text, HasSubstr(name));
    EXPECT_THAT(text, HasSubstr("put srun before the command"));
    EXPECT_EQ(text.find('\n'), text.npos);
  };
  says_srun(kBatch, "SLURM_NTASKS=4");
  says_srun(without(kBatch, "SLURM_PROCID"), "SLURM_NTASKS=4");  // the shell of salloc
  says_srun(without(kBatch, "SLURM_NTASKS"), "SLURM_JOB_NUM_NODES=2");
  says_srun({{"SLURM_JOB_ID", "77"}, {"SLURM_NPROCS", "4"}}, "SLURM_NPROCS=4");
  says_srun({{"SLURM_JOBID", "77"}, {"SLURM_NTASKS", "4"}}, "SLURM_NTASKS=4");
  // The shell of an interactive salloc and a batch script each have their own step id.
  for (const char* shell : {"4294967290", "4294967291"})
    says_srun(with(kBatch, {{"SLURM_STEP_ID", shell}, {"SLURM_STEP_NUM_TASKS", "1"}}),
              "SLURM_STEP_ID is that of a shell");
  // One task needs no srun.
  const Fake one = with(kBatch, {{"SLURM_NTASKS", "1"}, {"SLURM_JOB_NUM_NODES", "1"}});
  EXPECT_EQ(discover(one).launcher, Launcher::single);
  EXPECT_EQ(discover(without(one, "SLURM_NTASKS")).size, 1);
  // A launcher inside the script works.
  EXPECT_EQ(discover(with(kMpi, kBatch)).launcher, Launcher::open_mpi);
  EXPECT_EQ(discover(with(kTorchrun, kBatch)).launcher, Launcher::torchrun);
  EXPECT_EQ(discover(with(kBatch, {{"SLURM_STEP_ID", "0"}})).launcher, Launcher::slurm);
}

// A size or a rank alone: the process would train alone, although it is one of several.
TEST(World, RefusesALaunchersVariablesWithoutItsRank) {
  for (const auto& [name, alone, several, remedy] :
       {std::tuple{"SLURM_NTASKS", "1", "4", "put srun before the command"},
        {"SLURM_NPROCS", "1", "4", "put srun before the command"},
        {"SLURM_JOB_NUM_NODES", "1", "2", "put srun before the command"},
        {"SLURM_PROCID", "0", "3", "put srun before the command"},
        {"SLURM_STEP_NUM_TASKS", "1", "4", "start it with srun"},
        {"LOCAL_WORLD_SIZE", "1", "2", "set RANK, WORLD_SIZE"},
        {"LOCAL_RANK", "0", "1", "set RANK, WORLD_SIZE"},
        {"OMPI_COMM_WORLD_LOCAL_SIZE", "1", "2", "Open MPI's mpirun"},
        {"OMPI_COMM_WORLD_LOCAL_RANK", "0", "1", "Open MPI's mpirun"},
        {"PMIX_RANK", "0", "1", "Open MPI's mpirun"},
        {"PMI_SIZE", "1", "4", "Open MPI's mpirun"},
        {"PMI_RANK", "0", "3", "Open MPI's mpirun"},
        {"MV2_COMM_WORLD_SIZE", "1", "4", "Open MPI's mpirun"}}) {
    EXPECT_EQ(discover({{name, alone}}).size, 1) << name;
    EXPECT_EQ(discover({{name, ""}}).size, 1) << name;
    const std::string text = refusal({{name, several}});
    EXPECT_THAT(text, HasSubstr(std::string(name) + "=" + several + ", but "));
    EXPECT_THAT(text, HasSubstr(remedy)) << name;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
  }
  // A step of srun whose SLURM_PROCID was lost, for example in a container.
  EXPECT_THAT(refusal({{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "4"}}),
              HasSubstr("SLURM_NTASKS=4, but SLURM_PROCID is not set"));
  const Fake pmi = {{"PMI_SIZE", "6"}, {"PMI_RANK", "4"}, {"PMIX_RANK", "4"}};
  EXPECT_EQ(discover(with(kSlurm, pmi)).launcher, Launcher::slurm);  // srun --mpi=pmi2
  EXPECT_EQ(discover(with(kMpi, pmi)).launcher, Launcher::open_mpi);
  EXPECT_EQ(discover(with(kTorchrun, pmi)).launcher, Launcher::torchrun);
}

TEST(World, IsReadFromSageMakersVariables) {
  const Fake fake{{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}};
  const World world = discover(fake);
  EXPECT_EQ(world.launcher, Launcher::sagemaker);
  EXPECT_EQ(world.rank, 1);
  EXPECT_EQ(world.size, 2);
  EXPECT_EQ(world.nodes, 2);
  EXPECT_EQ(world.host, "algo-2");
  EXPECT_EQ(world.master_addr, "algo-1");
  EXPECT_THAT(refusal(without(fake, "SM_CURRENT_HOST")), HasSubstr("SM_CURRENT_HOST is not"));
  EXPECT_THAT(refusal(without(fake, "SM_HOSTS")), HasSubstr("SM_HOSTS is not"));
  EXPECT_THAT(refusal(with(fake, {{"SM_CURRENT_HOST", "algo-3"}})), HasSubstr("algo-3"));
  EXPECT_THAT(refusal(with(fake, {{"SM_HOSTS", "algo-1"}})), HasSubstr("SM_HOSTS"));
  EXPECT_THAT(refusal(with(fake, {{"SM_HOSTS", "[1]"}})), HasSubstr("SM_HOSTS"));
  EXPECT_THAT(refusal(with(fake, {{"SM_HOSTS", "[]"}})), HasSubstr("SM_HOSTS"));
  // MPI inside SageMaker: MPI decides the ranks, and SageMaker the master.
  const World inside = discover(with(fake, kMpi));
  EXPECT_EQ(inside.launcher, Launcher::open_mpi);
  EXPECT_EQ(inside.rank, 5);
  EXPECT_EQ(inside.master_addr, "algo-1");
  EXPECT_FALSE(inside.master_assumed);
}

TEST(World, IsReadFromSageMakersResourceConfig) {
  const std::string root = ::testing::TempDir() + "/opt-ml-" + std::to_string(::getpid());
  std::filesystem::create_directories(root + "/input/config");
  const std::string file = root + "/input/config/resourceconfig.json";
  const auto write = [&file](const std::string& text) { std::ofstream(file) << text; };
  write(R"({"current_host":"algo-1","hosts":["algo-1","algo-2","algo-3"]})");
  const World world = discover({}, {root});
  EXPECT_EQ(world.launcher, Launcher::sagemaker);
  EXPECT_EQ(world.rank, 0);
  EXPECT_EQ(world.size, 3);
  write(R"({"current_host":"algo-9","hosts":["algo-1"]})");
  EXPECT_THAT(refusal({}, {root}), HasSubstr("algo-9"));
  write(R"({"hosts":["algo-1"]})");
  EXPECT_THAT(refusal({}, {root}), HasSubstr("current_host"));
  write("{");
  EXPECT_THAT(refusal({}, {root}), HasSubstr("resourceconfig.json"));
  std::filesystem::remove_all(root);
}

TEST(World, OpenMpiOnOneHostMeetsThroughFiles) {
  const std::string directory = ::testing::TempDir() + "/mpi-" + std::to_string(::getpid());
  std::filesystem::create_directories(directory);
  ASSERT_EQ(::setenv("TMPDIR", directory.c_str(), 1), 0);
  std::vector<std::thread> ranks;
  std::vector<World> worlds(2);
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      World& world = worlds[static_cast<std::size_t>(rank)];
      world = discover({{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                        {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"PMIX_NAMESPACE", "job"}});
      const auto deadline = Deadline::in_seconds(20);
      const auto store = make_store(world, deadline);
      EXPECT_THAT(store->name(), HasSubstr("file store"));
      world.host = "host " + std::to_string(1 - rank);  // pretend that they are two hosts
      settle_nodes(world, *store, deadline);
    });
  for (auto& rank : ranks) rank.join();
  ::unsetenv("TMPDIR");
  EXPECT_EQ(worlds[0].nodes, 2);
  EXPECT_EQ(worlds[0].node, 0) << "hosts are numbered by their lowest rank";
  EXPECT_EQ(worlds[1].node, 1);
  EXPECT_EQ(worlds[1].local_rank, 0);
  EXPECT_EQ(worlds[1].local_size, 1);
  EXPECT_TRUE(std::filesystem::is_empty(directory)) << "the last rank cleans up";
  std::filesystem::remove_all(directory);
}

// Makes the store of two ranks under mpirun on this host, in a process that is then killed.
void leave_store(const std::string& name, const std::string& store_dir = "") {
  const ::pid_t child = ::fork();
  if (child == 0) {
    try {
      for (const char* rank : {"0", "1"}) {
        const World world = discover({{"OMPI_COMM_WORLD_RANK", rank},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                      {"PMIX_NAMESPACE", name},
                                      {"SHOAL_STORE_DIR", store_dir}});
        auto* const store = new std::shared_ptr<Store>(make_store(world, Deadline::in_seconds(20)));
        (*store)->set("key", rank);
      }
      ::raise(SIGKILL);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status));
}

TEST(World, TheNextRunRemovesTheFilesOfAKilledOne) {
  const testing::TemporaryDirectory temporary;
  ASSERT_EQ(::setenv("TMPDIR", temporary.path().c_str(), 1), 0);
  leave_store("named", temporary.path());
  leave_store("first");
  EXPECT_TRUE(std::filesystem::exists(temporary / "shoal-ompi-first"));
  leave_store("second");
  ::unsetenv("TMPDIR");
  EXPECT_FALSE(std::filesystem::exists(temporary / "shoal-ompi-first"));
  EXPECT_TRUE(std::filesystem::exists(temporary / "shoal-ompi-second"));
  EXPECT_TRUE(std::filesystem::exists(temporary / "shoal-ompi-named"))
      << "the user chose the directory";
}

TEST(World, AStoreDirectoryIsPreferredToTcp) {
  const std::string directory = ::testing::TempDir() + "/dir-" + std::to_string(::getpid());
  const World world = discover(with(kTorchrun, {{"SHOAL_STORE_DIR", directory}}));
  EXPECT_THAT(make_store(world, Deadline::in_seconds(1))->name(), HasSubstr(directory));
  std::filesystem::remove_all(directory);
}

TEST(HostList, ExpandsRanges) {
  EXPECT_THAT(expand_host_list("node[1-3,7],gpu-a"),
              ElementsAre("node1", "node2", "node3", "node7", "gpu-a"));
  EXPECT_THAT(expand_host_list("n[08-11]"), ElementsAre("n08", "n09", "n10", "n11"));
  EXPECT_THAT(expand_host_list("r[1-2]n[5,07]-ib"),
              ElementsAre("r1n5-ib", "r1n07-ib", "r2n5-ib", "r2n07-ib"));
  EXPECT_THAT(expand_host_list("one"), ElementsAre("one"));
  EXPECT_THAT(expand_host_list("[1-2]"), ElementsAre("1", "2"));
}

TEST(HostList, RefusesMalformedLists) {
  for (const char* list :
       {"", ",", "a,,b", "a,", "n[", "n]", "n[]", "n[1", "n[1-]", "n[3-1]", "n[a-b]", "n[1-2",
        "n[[1]]", "n[-1]", "n[1-2-3]", "n[0-99999999999]", "n[0-999999999]", "a[0-9999]b[0-9999]"})
    EXPECT_THROW((void)expand_host_list(list), Error) << list;
}

TEST(TasksPerNode, ExpandsRepetitions) {
  EXPECT_THAT(expand_tasks_per_node("4(x2),3"), ElementsAre(4, 4, 3));
  EXPECT_THAT(expand_tasks_per_node("8"), ElementsAre(8));
  for (const char* text : {"", "x", "4(x", "4(x2", "4(x-2)", "4(x999999999)", "4,"})
    EXPECT_THROW((void)expand_tasks_per_node(text), Error) << text;
}

}  // namespace
}  // namespace shoal
