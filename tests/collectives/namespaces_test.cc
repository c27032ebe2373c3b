// Ranks of one machine in separate namespaces, as in containers. The rank that notices first
// reports it.
#include <cstdlib>

#include "support/ranks.h"
#include "support/temporary_directory.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/control_connection.h"
#include "shoal/collectives/transport/control_links.h"
#include "shoal/collectives/transport/host_identity.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"

namespace shoal::collectives {
namespace {

using shoal::test::ProcessRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Whether a process of this user may create such a namespace.
bool may_unshare(int kind) {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(kind) == 0 ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

void enter(int kind) {
  if (unshare(kind) != 0) throw Error(ErrorCode::io, "unshare");
}

CommunicatorOptions within(double seconds) {
  CommunicatorOptions options;
  options.deadline_seconds = seconds;
  return options;
}

std::vector<std::string> errors_of(ProcessRanks& ranks, double seconds) {
  std::vector<std::string> errors;
  for (const auto& outcome : ranks.wait(seconds)) errors.push_back(outcome.error);
  return errors;
}

TEST(Namespaces, OfTheNetworkAreNamedIfRanksReportTheSameHost) {
  if (!may_unshare(CLONE_NEWNET)) GTEST_SKIP() << "unshare of the network is refused here";
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    if (world.rank == 1) enter(CLONE_NEWNET);
    (void)make_communicator(world, store, within(60));
  });
  const auto errors = errors_of(ranks, 20);
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("both say that their host is '"),
                                 HasSubstr("different network namespaces (containers), net:["),
                                 HasSubstr("--network host"))));
  EXPECT_THAT(errors[0], HasSubstr("ranks 0 and 1 "));
  EXPECT_THAT(errors[2], HasSubstr("ranks 2 and 1 "));
}

// Nothing listens on this rank's own loopback, and it has no other route.
TEST(Namespaces, OfTheNetworkAreNamedIfRankZeroIsUnreachable) {
  if (!may_unshare(CLONE_NEWNET)) GTEST_SKIP() << "unshare of the network is refused here";
  ProcessRanks ranks(3, [](const World& world, Store& store) {
    if (world.rank == 1) enter(CLONE_NEWNET);
    const transport::ControlLinks links(world.rank, 3, store, "c", Deadline::in_seconds(60), 0.3);
  });
  const auto errors = errors_of(ranks, 20);
  const std::string name = transport::own_identity().name;
  EXPECT_THAT(errors, Each(HasSubstr("ranks 0 and 1 live in different network namespaces")));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("rank 0 on '" + name + "'"), HasSubstr("--network host")));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 did not join: rank 0 on '" + name + "'"));
  const auto addresses = transport::control::own_addresses();
  if (addresses.size() <= std::size_t{transport::control::kLoopbacks}) return;  // no other to try
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("did not answer at " + addresses[0]),
                                 HasSubstr(", port "), Not(HasSubstr("127.0.0.1")))));
}

// They share memory, but cannot copy between processes by process id.
TEST(Namespaces, OfProcessesAreNamedInsteadOfPtrace) {
  if (!may_unshare(CLONE_NEWPID)) GTEST_SKIP() << "unshare of processes is refused here";
  const testing::TemporaryDirectory directory;
  const std::string log = directory.path() + "/log";
  ProcessRanks ranks(2, [&](const World& world, Store& store) {
    const auto body = [&] {
      const auto c = make_communicator(world, store, within(20));
      float one = 1;
      c->all_reduce(&one, &one, 1, DType::f32, ReduceOp::sum)->wait();
      if (one != 2) throw Error(ErrorCode::internal, "a wrong sum");
    };
    const int file = open(log.c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
    dup2(file, STDERR_FILENO);
    if (world.rank == 0) return body();
    enter(CLONE_NEWPID);  // takes effect for child processes
    const pid_t child = fork();
    if (child == 0) {
      try {
        body();
      } catch (const std::exception&) {
        _exit(1);
      }
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) throw Error(ErrorCode::internal, "the rank failed");
  });
  EXPECT_THAT(errors_of(ranks, 30), Each(IsEmpty()));
  EXPECT_THAT(read_text_file(log),
              AllOf(HasSubstr("ranks 0 and 1 live in different process namespaces (containers)"),
                    HasSubstr("--pid host"), Not(HasSubstr("ptrace"))));
}

TEST(Namespaces, OfUsersAreNamedToo) {
  transport::HostIdentity here = transport::own_identity(), there = here;
  EXPECT_THAT(transport::why_memory_is_apart({here, there}, {4, 6}), IsEmpty());
  there.users = "user:[1]";
  EXPECT_THAT(transport::why_memory_is_apart({here, here, there}, {4, 6, 7}),
              AllOf(HasSubstr("ranks 4 and 7 live in different user namespaces"),
                    HasSubstr("--userns host")));
}

TEST(Namespaces, ThatTheKernelHidesCountAsEqual) {
  transport::HostIdentity here = transport::own_identity(), there = here;
  EXPECT_TRUE(transport::share_loopback(here, there));
  there.name = "another name";  // such as a container's name, in the machine's network namespace
  EXPECT_TRUE(transport::share_loopback(here, there));
  there.network.clear();
  EXPECT_FALSE(transport::share_loopback(here, there));
  there.name = here.name;
  EXPECT_TRUE(transport::share_loopback(here, there));
  EXPECT_NO_THROW(transport::check_one_host({here, there}, {0, 1}, 0));
}

}  // namespace
}  // namespace shoal::collectives
