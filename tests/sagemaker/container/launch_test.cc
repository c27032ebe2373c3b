#include "shoal/sagemaker/container/launch.h"

#include "sagemaker/container/opt_ml.h"
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Launch launch_of(const OptMl& ml, int gpus, const std::vector<std::string>& forwarded = {}) {
  const Contract c =
      read_contract(ml.root(), {.gpus = gpus, .cpus = 2},
                    [](std::string_view) -> std::optional<std::string> { return std::nullopt; });
  TrainCommand command;
  command.words = {"shoal", "train"};
  return plan_launch(c, command, {.forwarded = forwarded, .ssh = {"-i", "/keys/key"}});
}

std::string text(const Launch& launch) { return fmt::format("{}", fmt::join(launch.words, " ")); }

const OptMl::Json kDataParallel = {{"sagemaker_distributed_dataparallel_enabled", "true"}};

TEST(Launch, IsOneProcessWithoutADistribution) {
  const OptMl one;
  const Launch launch = launch_of(one, 8);
  EXPECT_EQ(launch.role, HostRole::single);
  EXPECT_TRUE(launch.is_rank_0);
  EXPECT_THAT(launch.words, ElementsAre("shoal", "train"));
  const OptMl second({"algo-1", "algo-2"}, "algo-2");
  EXPECT_EQ(launch_of(second, 0).role, HostRole::single);
  EXPECT_FALSE(launch_of(second, 0).is_rank_0);
}

TEST(Launch, IsMpirunOnTheFirstHost) {
  OptMl first({"algo-1", "algo-2"}, "algo-1", "ml.p4d.24xlarge");
  first.hyperparameters(kDataParallel);
  const Launch master = launch_of(first, 8, {"SM_HOSTS", "AWS_ROLE_ARN"});
  EXPECT_EQ(master.role, HostRole::mpi_master);
  EXPECT_TRUE(master.is_rank_0);
  EXPECT_EQ(
      text(master),
      "mpirun --host algo-1:8,algo-2:8 -np 16 --allow-run-as-root --tag-output --oversubscribe "
      "-mca btl_tcp_if_include lo -mca oob_tcp_if_include lo -mca plm_rsh_no_tree_spawn 1 "
      "-bind-to none -map-by slot -mca pml ob1 -mca btl ^openib "
      "-mca orte_abort_on_non_zero_status 1 -mca btl_vader_single_copy_mechanism none "
      "-mca plm_rsh_num_concurrent 2 -mca plm_rsh_args -i /keys/key -x NCCL_SOCKET_IFNAME=lo "
      "-x NCCL_DEBUG=INFO -x MASTER_ADDR=algo-1 -x FI_PROVIDER=efa "
      "-x FI_EFA_FORK_SAFE=1 -x FI_EFA_USE_DEVICE_RDMA=1 -x NCCL_NET=AWS Libfabric -x SM_HOSTS "
      "-x AWS_ROLE_ARN shoal train");
  OptMl second({"algo-1", "algo-2"}, "algo-2", "ml.p4d.24xlarge");
  second.hyperparameters(kDataParallel);
  EXPECT_EQ(launch_of(second, 8).role, HostRole::mpi_worker);
  EXPECT_THAT(launch_of(second, 8).words, ElementsAre());
}

TEST(Launch, SetsNothingForEfaWithoutIt) {
  OptMl ml({"algo-1", "algo-2"}, "algo-1", "ml.g5.xlarge");
  ml.hyperparameters(kDataParallel);
  EXPECT_THAT(text(launch_of(ml, 1)), Not(HasSubstr("FI_")));
  EXPECT_THAT(text(launch_of(ml, 1)), HasSubstr("--host algo-1,algo-2 -np 2"));
}

// NCCL_NET is set if the plugin must work or the job must end: several hosts whose GPU memory EFA
// can read. Elsewhere NCCL may fall back to sockets.
TEST(Launch, AllowsNcclOnlyEfaIfItReadsGpuMemory) {
  const auto words = [](const std::vector<std::string>& hosts, const char* type) {
    OptMl ml(hosts, hosts[0], type);
    ml.hyperparameters(kDataParallel);
    return text(launch_of(ml, 8));
  };
  for (const char* type : {"ml.p5.48xlarge", "ml.p5en.48xlarge", "ml.p6-b200.48xlarge"})
    EXPECT_THAT(words({"algo-1", "algo-2"}, type),
                AllOf(HasSubstr("-x NCCL_NET=AWS Libfabric "), HasSubstr("FI_PROVIDER=efa"),
                      Not(HasSubstr("NCCL_PROTO"))));
  EXPECT_THAT(words({"algo-1"}, "ml.p5.48xlarge"), Not(HasSubstr("NCCL_NET=")));
  for (const char* type :
       {"ml.p3dn.24xlarge", "ml.p5.4xlarge", "ml.g5.48xlarge", "ml.c5n.18xlarge"})
    EXPECT_THAT(words({"algo-1", "algo-2"}, type),
                AllOf(HasSubstr("FI_PROVIDER=efa"), Not(HasSubstr("NCCL_NET=")),
                      Not(HasSubstr("DEVICE_RDMA"))));
}

// The job's environment (`forwarded`) overrides the defaults, and its mpirun options
// override the environment.
TEST(Launch, LetsTheJobOverrideDefaults) {
  OptMl ml({"algo-1", "algo-2"}, "algo-1", "ml.p4d.24xlarge");
  ml.hyperparameters({{"sagemaker_mpi_enabled", "true"},
                      {"sagemaker_mpi_custom_mpi_options",
                       "\"-x NCCL_NET=Socket -x FI_PROVIDER --NCCL_DEBUG WARN\""}});
  const std::string words =
      text(launch_of(ml, 8, {"FI_EFA_FORK_SAFE", "FI_PROVIDER", "NCCL_DEBUG", "NCCL_PROTO"}));
  EXPECT_THAT(words, AllOf(HasSubstr("-x NCCL_NET=Socket "), Not(HasSubstr("Libfabric"))));
  EXPECT_THAT(words, AllOf(HasSubstr("-x FI_EFA_FORK_SAFE "), Not(HasSubstr("FORK_SAFE=1"))));
  EXPECT_THAT(words, HasSubstr("-x NCCL_PROTO "));
  EXPECT_THAT(words, AllOf(HasSubstr("-x NCCL_DEBUG=WARN"), Not(HasSubstr("-x NCCL_DEBUG "))));
  EXPECT_THAT(
      words, AllOf(Not(HasSubstr("FI_PROVIDER=")), Not(ContainsRegex("FI_PROVIDER.*FI_PROVIDER"))));
  ml.hyperparameters({{"sagemaker_mpi_enabled", "true"}});
  EXPECT_THAT(text(launch_of(ml, 8, {"NCCL_DEBUG"})),
              AllOf(HasSubstr("-x NCCL_DEBUG "), Not(HasSubstr("NCCL_DEBUG="))));
}

// The error of check_gpus for a host with `gpus` GPUs.
std::string gpus_refused(const OptMl& ml, int gpus, bool on_cpu = false,
                         const std::string& problem = "") {
  const Contract c =
      read_contract(ml.root(), {.gpus = gpus, .cpus = 2, .gpu_problem = problem},
                    [](std::string_view) -> std::optional<std::string> { return std::nullopt; });
  TrainCommand command;
  command.on_cpu = on_cpu;
  try {
    check_gpus(c, command);
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Launch, RefusesAHostWithFewerGpusThanItsType) {
  OptMl ml({"algo-1", "algo-2"}, "algo-1", "ml.p4d.24xlarge");
  ml.hyperparameters(kDataParallel);
  EXPECT_EQ(gpus_refused(ml, 8), "accepted");
  EXPECT_THAT(gpus_refused(ml, 7),
              HasSubstr("host algo-1 shows 7 GPUs, but its type, ml.p4d.24xlarge, has 8"));
  EXPECT_THAT(gpus_refused(ml, 9), HasSubstr("shows 9 GPUs"));
  EXPECT_THAT(gpus_refused(ml, 0, false, "nvidia-smi ended with status 9"),
              HasSubstr("shows 0 GPUs, but its type, ml.p4d.24xlarge, has 8 (nvidia-smi ended with "
                        "status 9)"));
  EXPECT_EQ(gpus_refused(ml, 0, true), "accepted");
  // A job that sets the number of ranks needs as many GPUs.
  ml.hyperparameters(
      {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "4"}});
  EXPECT_EQ(gpus_refused(ml, 7), "accepted");
  EXPECT_THAT(gpus_refused(ml, 3), HasSubstr("shows 3 GPUs"));
  ml.hyperparameters(
      {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "16"}});
  EXPECT_EQ(gpus_refused(ml, 8), "accepted");
  EXPECT_THAT(gpus_refused(ml, 7), HasSubstr("shows 7 GPUs"));
  // One process needs one GPU.
  ml.hyperparameters(OptMl::Json::object());
  EXPECT_EQ(gpus_refused(ml, 1), "accepted");
  EXPECT_THAT(gpus_refused(ml, 0), HasSubstr("shows 0 GPUs"));
  for (const char* type : {"ml.c5n.18xlarge", "ml.g7.48xlarge", "ml.x9.large", "local"}) {
    OptMl other({"algo-1"}, "algo-1", type);
    other.hyperparameters(kDataParallel);
    EXPECT_EQ(gpus_refused(other, 0), "accepted") << type;
    EXPECT_EQ(gpus_refused(other, 3), "accepted") << type;
  }
}

TEST(Launch, TakesRanksAndOptionsOfMpi) {
  OptMl ml;
  ml.hyperparameters({{"sagemaker_mpi_enabled", "true"},
                      {"sagemaker_mpi_num_of_processes_per_host", "4"},
                      {"sagemaker_mpi_custom_mpi_options", "\"--NCCL_DEBUG WARN -verbose\""}});
  const std::string words = text(launch_of(ml, 0));
  EXPECT_THAT(words, HasSubstr("--host algo-1:4 -np 4"));
  EXPECT_THAT(words, HasSubstr("-x NCCL_DEBUG=WARN"));
  EXPECT_THAT(words, HasSubstr(" -verbose "));
  EXPECT_THAT(words, Not(HasSubstr("MASTER_ADDR")));
  ml.hyperparameters(
      {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "0"}});
  EXPECT_THROW(launch_of(ml, 0), Error);
  // One rank needs no mpirun.
  ml.hyperparameters({{"sagemaker_mpi_enabled", "true"}});
  EXPECT_EQ(launch_of(ml, 1).role, HostRole::single);
}

TEST(Launch, LeavesOtherGroupsIdle) {
  const OptMl::Json groups = {{{"instance_group_name", "gpus"}, {"hosts", {"algo-2", "algo-3"}}},
                              {{"instance_group_name", "loaders"}, {"hosts", {"algo-1"}}}};
  const auto launch = [&](const char* host, const char* group) {
    OptMl ml;
    ml.resources({{"current_host", host},
                  {"current_group_name", group},
                  {"hosts", {"algo-1", "algo-2", "algo-3"}},
                  {"instance_groups", groups}});
    ml.hyperparameters({{"sagemaker_mpi_enabled", "true"},
                        {"sagemaker_distribution_instance_groups", "[\"gpus\"]"}});
    return launch_of(ml, 8);
  };
  EXPECT_EQ(launch("algo-1", "loaders").role, HostRole::idle);
  EXPECT_EQ(launch("algo-2", "gpus").role, HostRole::mpi_master);
  EXPECT_THAT(text(launch("algo-2", "gpus")), HasSubstr("--host algo-2:8,algo-3:8"));
  EXPECT_EQ(launch("algo-3", "gpus").role, HostRole::mpi_worker);
}

TEST(Forwarded, AreSettingsAndCredentialsButNotOneHosts) {
  EXPECT_THAT(
      names_to_forward({"SM_HOSTS", "SM_CURRENT_HOST", "HOME", "SHOAL_LOG", "SHOAL_HOST_NAME",
                        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SECRET_ACCESS_KEY",
                        "FI_PROVIDER", "PATH", "NCCL_ALGO", "OMPI_COMM_WORLD_RANK",
                        "AWS_ENDPOINT_URL_S3", "AWS_CA_BUNDLE", "https_proxy", "no_proxy"}),
      ElementsAre("AWS_CA_BUNDLE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_ENDPOINT_URL_S3",
                  "AWS_SECRET_ACCESS_KEY", "FI_PROVIDER", "NCCL_ALGO", "PATH", "SHOAL_LOG",
                  "SM_HOSTS", "https_proxy", "no_proxy"));
}

}  // namespace
}  // namespace shoal::sagemaker
