#include "shoal/sagemaker/container/hosts.h"

#include <filesystem>
#include <fstream>
#include <thread>

#include "sagemaker/container/greeter.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
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

TEST(Hosts, StartTheirSshd) {
  const testing::TemporaryDirectory root;
  HostRules rules;
  rules.sshd = root / "sshd";
  EXPECT_THROW(start_sshd(rules), Error);
  std::ofstream(rules.sshd) << "#!/bin/sh\necho no host keys >&2\nexit 1\n";
  std::filesystem::permissions(rules.sshd, std::filesystem::perms::owner_all);
  try {
    start_sshd(rules);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("ended with status 1: no host keys"));
  }
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
  wait_for_mpirun_to_end(rules, stop, 10);
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
  // Before it was seen once: there is nothing to wait for only where mpirun never came.
  wait_for_mpirun_to_end(rules, stop, 0.2);
  EXPECT_TRUE(process_runs(rules.orted));  // the grace was shorter than it ran
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
  EXPECT_THROW(wait_for_mpirun_to_end(rules, stop, 1), Error);
  stop = 15;
  wait_for_mpirun_to_end(rules, stop, 1);  // returns
}

}  // namespace
}  // namespace shoal::sagemaker
