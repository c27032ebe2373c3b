#include "shoal/sagemaker/container/hosts.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "sagemaker/container/greeter.h"
#include "support/temporary_directory.h"
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
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

// A program with a name of its own that runs until end().
class Orted {
 public:
  explicit Orted(const testing::TemporaryDirectory& root)
      : name_("orted" + std::to_string(::getpid())) {
    std::filesystem::copy_file("/bin/sleep", root / name_,
                               std::filesystem::copy_options::overwrite_existing);
    thread_ =
        std::thread([this, path = root / name_] { run_process({path, "1000"}, {.stop = &stop_}); });
    while (!process_runs(name_)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ~Orted() { end(); }
  Orted(const Orted&) = delete;
  Orted& operator=(const Orted&) = delete;
  const std::string& name() const { return name_; }
  void end() {
    stop_ = SIGTERM;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::string name_;
  std::atomic<int> stop_{0};
  std::thread thread_;
};

// A named pipe in place of the file that announces the end. A reader of that file blocks until the
// test lets it continue.
class HeldLook {
 public:
  explicit HeldLook(std::string path) : path_(std::move(path)) { make(); }
  // Returns when a reader opens the pipe.
  void wait() { descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC); }
  // Lets that reader find nothing, and returns when the next one opens. (Each reader has its own
  // pipe.)
  void wait_for_next() {
    const int last = descriptor_;
    ::unlink(path_.c_str());
    make();
    ::close(last);
    wait();
  }
  // Lets this and later readers find nothing.
  void let_go() {
    ::unlink(path_.c_str());
    ::close(descriptor_);
  }

 private:
  void make() { ::mkfifo(path_.c_str(), 0600); }
  std::string path_;
  int descriptor_ = -1;
};

TEST(Hosts, ServeMpirunUntilItIsGone) {
  const testing::TemporaryDirectory root;
  Orted orted(root);
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 600;
  const std::atomic<int> stop{0};
  HeldLook look(root / "ended");
  auto serves = std::async(std::launch::async,
                           [&] { return wait_for_mpirun_to_end(rules, root / "ended", stop, 10); });
  look.wait();
  look.wait_for_next();  // the previous reader saw that mpirun runs
  EXPECT_EQ(serves.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  orted.end();
  look.let_go();
  EXPECT_FALSE(serves.get());
}

TEST(Hosts, WaitForMpirunsGraceAfterASignal) {
  const testing::TemporaryDirectory root;
  const Orted orted(root);
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 600;
  const std::atomic<int> stop{15};
  const auto start = Clock::now();
  EXPECT_FALSE(wait_for_mpirun_to_end(rules, root / "ended", stop, 0.2));
  EXPECT_GE(seconds_since(start), 0.2);
  EXPECT_TRUE(process_runs(rules.orted));
}

TEST(Hosts, ServeNoLongerThanTheyCan) {
  const testing::TemporaryDirectory root;
  const Orted orted(root);
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 600;
  const std::atomic<int> stop{0};
  EXPECT_FALSE(wait_for_mpirun_to_end(rules, root / "ended", stop, 10, [] { return true; }));
  EXPECT_TRUE(process_runs(rules.orted));
}

// A channel that fails while the job is stopping does not cut off what the ranks save.
TEST(Hosts, ServeToTheEndOnceStopped) {
  const testing::TemporaryDirectory root;
  const Orted orted(root);
  HostRules rules = quick();
  rules.orted = orted.name();
  rules.start_seconds = 600;
  const std::atomic<int> stop{15};
  std::thread told([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ofstream(root / "new") << "143\n";
    std::filesystem::rename(root / "new", root / "ended");
  });
  const auto ending = wait_for_mpirun_to_end(rules, root / "ended", stop, 600, [] { return true; });
  told.join();
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->status, 143);
}

// mpirun leaves such a process on a host if its first process does not wait for children.
TEST(Hosts, DoNotTakeEndedProcessesForRunning) {
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

// The first host starts mpirun when the last one has arrived.
TEST(Hosts, WaitForMpirunAsLongAsHostsMayTakeToArrive) {
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

// The first host may have started mpirun just as the signal came.
TEST(Hosts, GiveMpirunAMomentAfterASignal) {
  const testing::TemporaryDirectory root;
  HostRules rules = quick();
  rules.orted = "no-such-program";
  rules.start_seconds = rules.quiet_seconds = 600;
  std::atomic<int> stop{15};
  std::thread told([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ofstream(root / "new") << "143\n";
    std::filesystem::rename(root / "new", root / "ended");
  });
  const auto ending = wait_for_mpirun_to_end(rules, root / "ended", stop, 600);
  told.join();
  ASSERT_TRUE(ending);
  EXPECT_EQ(ending->status, 143);
}

// ssh is a script that runs the command on this machine.
TEST(Hosts, LearnHowTheJobEnded) {
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
