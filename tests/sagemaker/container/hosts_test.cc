#include "shoal/sagemaker/container/hosts.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "sagemaker/container/greeter.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

HostRules quick() {
  HostRules rules;
  rules.poll_seconds = 0.02;
  rules.connect_seconds = rules.start_seconds = 0.3;
  rules.quiet_seconds = 0.1;
  return rules;
}

TEST(Hosts, AreThereOnceTheySpeakSsh) {
  const Greeter ssh("SSH-2.0-test\r\n"), other("220 mail\r\n");
  EXPECT_TRUE(serves_ssh("127.0.0.1", ssh.port()));
  EXPECT_FALSE(serves_ssh("127.0.0.1", other.port()));
  EXPECT_FALSE(serves_ssh("no-such-host.invalid", ssh.port()));
  HostRules rules = quick();
  std::atomic<int> stop{0};
  rules.ssh_port = ssh.port();
  wait_for_hosts({"127.0.0.1"}, rules, stop);
  rules.ssh_port = other.port();
  try {
    wait_for_hosts({"127.0.0.1"}, rules, stop);
    FAIL() << "no timeout";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("host 127.0.0.1 does not serve ssh on port"));
  }
  stop = 15;
  wait_for_hosts({"127.0.0.1"}, rules, stop);  // returns
}

// A program of an own name, which runs as long as it is told.
class Orted {
 public:
  explicit Orted(const testing::TemporaryDirectory& root, const std::string& seconds) {
    name_ = "orted" + std::to_string(::getpid());
    std::filesystem::copy_file("/bin/sleep", root / name_,
                               std::filesystem::copy_options::overwrite_existing);
    thread_ = std::thread([path = root / name_, seconds] { run_process({path, seconds}); });
  }
  ~Orted() { thread_.join(); }
  Orted(const Orted&) = delete;
  Orted& operator=(const Orted&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_;
  std::thread thread_;
};

TEST(Hosts, ServeMpirunUntilItIsGone) {
  const testing::TemporaryDirectory root;
  const Orted orted(root, "0.5");
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 10;
  std::atomic<int> stop{0};
  const auto start = Clock::now();
  EXPECT_FALSE(wait_for_mpirun_to_end(rules, root / "ended", stop, 10));
  EXPECT_GE(seconds_since(start), 0.4);
  EXPECT_FALSE(process_runs(orted.name()));
}

TEST(Hosts, WaitForMpirunsGraceAfterASignal) {
  const testing::TemporaryDirectory root;
  const Orted orted(root, "1.5");
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 10;
  while (!process_runs(rules.orted)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::atomic<int> stop{15};
  EXPECT_FALSE(wait_for_mpirun_to_end(rules, root / "ended", stop, 0.2));
  EXPECT_TRUE(process_runs(rules.orted));  // the grace was shorter than it ran
}

// As what mpirun leaves on a host whose first process waits for nobody.
TEST(Hosts, DoNotTakeWhatHasEndedForRunning) {
  const testing::TemporaryDirectory root;
  const std::string name = "ended" + std::to_string(::getpid());
  std::filesystem::copy_file("/bin/true", root / name);
  const std::string path = root / name;
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(path.c_str(), path.c_str(), nullptr);
    ::_exit(127);
  }
  siginfo_t ended{};
  ASSERT_EQ(::waitid(P_PID, static_cast<id_t>(child), &ended, WEXITED | WNOWAIT), 0);
  EXPECT_EQ(ended.si_status, 0);
  EXPECT_FALSE(process_runs(name));
  ::waitpid(child, nullptr, 0);
}

// The first host starts mpirun when the last one has come.
TEST(Hosts, WaitForMpirunAsLongAsHostsMayTakeToCome) {
  const HostRules rules;
  EXPECT_GT(rules.start_seconds, rules.connect_seconds);
}

TEST(Hosts, SayThatMpirunNeverCame) {
  HostRules rules = quick();
  rules.orted = "no-such-program";
  std::atomic<int> stop{0};
  EXPECT_THROW(wait_for_mpirun_to_end(rules, "/nowhere", stop, 1), Error);
  stop = 15;
  rules.start_seconds = 60;
  EXPECT_FALSE(wait_for_mpirun_to_end(rules, "/nowhere", stop, 1));
}

// The first host may have started mpirun as the signal came.
TEST(Hosts, GiveMpirunAMomentAfterASignal) {
  const testing::TemporaryDirectory root;
  HostRules rules = quick();
  rules.orted = "no-such-program";
  rules.start_seconds = 10;
  rules.quiet_seconds = 5;
  std::atomic<int> stop{15};
  std::thread told([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ofstream(root / "new") << "143\n";
    std::filesystem::rename(root / "new", root / "ended");
  });
  const auto ending = wait_for_mpirun_to_end(rules, root / "ended", stop, 10);
  told.join();
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->status, 143);
}

// ssh as a script that runs the command here.
TEST(Hosts, AreToldHowItEnded) {
  const testing::TemporaryDirectory root;
  HostRules rules = quick();
  rules.ssh = root / "ssh";
  rules.ssh_port = 2222;
  std::ofstream(rules.ssh) << "#!/bin/sh\necho \"$*\" >> " << root / "words"
                           << "\nwhile [ $# -gt 2 ]; do shift; done\n"
                              "case \"$1\" in lost) exit 255 ;; esac\nexec sh -c \"$2\"\n";
  std::filesystem::permissions(rules.ssh, std::filesystem::perms::owner_all);
  const std::string reason = "shoal: rank 1's loss isn't finite; $HOME \"x\" (exit status 3)";
  EXPECT_THAT(
      tell_ending({"algo-2", "lost"}, root / "en ded", {.status = 3, .reason = reason}, rules),
      ::testing::ElementsAre("lost"));
  std::ostringstream words;
  words << std::ifstream(root / "words").rdbuf();
  EXPECT_THAT(words.str(), ::testing::AllOf(::testing::HasSubstr("-p 2222"),
                                            ::testing::HasSubstr("-i /run/shoal-ssh/key")));
  std::atomic<int> stop{0};
  const auto ending = wait_for_mpirun_to_end(rules, root / "en ded", stop, 10);
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->status, 3);
  EXPECT_EQ(ending->reason, reason);
  rules.ssh = root / "no-ssh";
  EXPECT_THAT(tell_ending({"algo-2"}, root / "ended", {}, rules), ::testing::ElementsAre("algo-2"));
}

}  // namespace
}  // namespace shoal::sagemaker
