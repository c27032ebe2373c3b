#include "shoal/sagemaker/container/ssh_keys.h"

#include <filesystem>
#include <fstream>

#include "support/free_port.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

HostRules rules_in(const testing::TemporaryDirectory& root) {
  HostRules rules;
  rules.keys = root / "keys";
  rules.sshd = root / "sshd";
  rules.ssh_keyscan = root / "keyscan";
  rules.poll_seconds = 0.02;
  rules.connect_seconds = 0.2;
  return rules;
}

void script(const std::string& path, const std::string& text) {
  std::ofstream(path) << "#!/bin/sh\n" << text;
  fs::permissions(path, fs::perms::owner_all);
}

template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SshKeys, AreMadeForOneJobAndAdmitNoOtherKey) {
  const testing::TemporaryDirectory root;
  const HostRules rules = rules_in(root);
  make_ssh_key(rules);
  const std::string first = read_text_file(rules.keys + "/key.pub");
  EXPECT_THAT(first, ::testing::StartsWith("ssh-ed25519 AAAA"));
  EXPECT_EQ(read_text_file(rules.keys + "/authorized_keys"), "");
  EXPECT_EQ(fs::status(rules.keys).permissions(), fs::perms::owner_all);
  std::ofstream(rules.keys + "/authorized_keys") << "of the job before";
  make_ssh_key(rules);
  EXPECT_NE(read_text_file(rules.keys + "/key.pub"), first);
  EXPECT_EQ(read_text_file(rules.keys + "/authorized_keys"), "");
  EXPECT_EQ(fs::status(rules.keys + "/authorized_keys").permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  HostRules others = rules;  // keys of another user
  others.keys = root / "own";
  fs::create_directory(others.keys);
  std::ofstream(others.keys + "/id_rsa") << "theirs";
  EXPECT_THAT(refusal([&] { make_ssh_key(others); }), HasSubstr("with other things in it"));
  EXPECT_EQ(read_text_file(others.keys + "/id_rsa"), "theirs");
  HostRules nowhere = rules;
  nowhere.keys = root / "no/such";
  EXPECT_THAT(refusal([&] { make_ssh_key(nowhere); }), HasSubstr("no/such for keys of ssh"));
  HostRules without = rules;
  without.ssh_keygen = root / "no-keygen";
  EXPECT_THAT(refusal([&] { make_ssh_key(without); }), HasSubstr("no-keygen"));
}

TEST(SshKeys, KeysOfTheFirstHostAreItsAnswer) {
  const testing::TemporaryDirectory root;
  const HostRules rules = rules_in(root);
  make_ssh_key(rules);
  // Only the second answer has a key.
  script(rules.ssh_keyscan, "echo \"$*\" > " + (root / "words") + "\n[ -e " + (root / "asked") +
                                " ] || { touch " + (root / "asked") +
                                "; echo '# algo-1:22 SSH-2.0'; exit 1; }\n"
                                "echo '[algo-1]:22 ssh-rsa AAAArsa'\n"
                                "echo '[algo-1]:22 ssh-ed25519 AAAAed'\n");
  const std::atomic<int> stop{0};
  const LoginVariables login = login_variables({"HF_HOME=/cache"});
  admit_host("algo-1", login, rules, stop);
  EXPECT_EQ(read_text_file(rules.keys + "/authorized_keys"),
            "restrict,environment=\"HF_HOME=/cache\" ssh-ed25519 AAAAed\n");
  EXPECT_THAT(read_text_file(root / "words"), HasSubstr("-t ed25519 -p 22 algo-1"));
  script(rules.ssh_keyscan, "echo 'algo-1 ssh-rsa AAAA'; echo refused >&2\n");
  EXPECT_THAT(refusal([&] { admit_host("algo-1", login, rules, stop); }),
              HasSubstr("sshd on host algo-1 shows no ssh-ed25519 key after 0 s: refused"));
  const std::atomic<int> stopped{15};
  HostRules patient = rules;
  patient.connect_seconds = 600;
  admit_host("algo-1", login, patient, stopped);  // returns
}

TEST(SshKeys, ComeWithTheContainersVariables) {
  const LoginVariables made =
      login_variables({"NO_PROXY=10.0.0.0/8,.internal", "HOME=/of/it", "USER=x", "SSH_CLIENT=x",
                       "PATH=/opt/bin:/bin", "TEXT=say \"a\\\"", "LINES=one\ntwo", "FOLDER=C:\\",
                       "a-b=c", "EMPTY=", "no equals"});
  EXPECT_EQ(made.options,
            ",environment=\"NO_PROXY=10.0.0.0/8,.internal\",environment=\"HOME=/of/it\""
            ",environment=\"PATH=/opt/bin:/bin\""
            ",environment=\"TEXT=say \\\"a\\\\\"\",environment=\"EMPTY=\"");
  EXPECT_THAT(made.left_out, ::testing::ElementsAre("LINES", "FOLDER", "a-b"));
  EXPECT_THAT(refusal([] { login_variables({"A=" + std::string(300000, 'x')}); }),
              HasSubstr("has 300"));
}

TEST(SshKeys, AreWhatSshdStartsWith) {
  const testing::TemporaryDirectory root;
  const HostRules rules = rules_in(root);
  EXPECT_THAT(refusal([&] { start_sshd(rules); }), HasSubstr("sshd, by which mpirun reaches"));
  script(rules.sshd, "echo no privilege separation >&2\nexit 1\n");
  EXPECT_THAT(refusal([&] { start_sshd(rules); }),
              HasSubstr("ended with status 1: no privilege separation"));
  script(rules.sshd, "echo \"$*\" > " + (root / "words") + "\n");
  start_sshd(rules);
  EXPECT_THAT(
      read_text_file(root / "words"),
      AllOf(HasSubstr("-h " + rules.keys + "/key "),
            HasSubstr("AuthorizedKeysFile=" + rules.keys + "/authorized_keys"),
            HasSubstr("PasswordAuthentication=no"), HasSubstr("PermitUserEnvironment=yes")));
}

// sshd of two hosts, on loopback, as the test's user. Each has its own host keys.
class RealSshd : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!is_program("/usr/sbin/sshd")) GTEST_SKIP() << "no sshd; install openssh-server";
    // root's sshd separates its privileges in this directory. On other machines systemd creates it.
    std::error_code error;
    if (::geteuid() == 0) made_ = fs::create_directory("/run/sshd", error);
  }
  void TearDown() override {
    for (const std::string& file : process_files_) {
      std::ifstream stream(file);
      if (pid_t id = 0; stream >> id) ::kill(id, SIGTERM);
    }
    if (made_) fs::remove("/run/sshd");
  }
  HostRules host(const std::string& name, int port) {
    HostRules rules;
    rules.keys = root_ / name;
    rules.sshd = root_ / name + ".sshd";
    rules.ssh_port = port;
    rules.poll_seconds = 0.05;
    rules.connect_seconds = 5;
    const std::string id = root_ / name + ".pid";
    process_files_.push_back(id);
    // The configuration's files are in a temporary directory, which all users may write to.
    std::ofstream(root_ / name + ".conf")
        << "UsePAM no\nStrictModes no\nListenAddress 127.0.0.1\nPidFile " << id << "\nPort " << port
        << "\n";
    script(rules.sshd, "exec /usr/sbin/sshd -f " + (root_ / name + ".conf") + " -E " +
                           (root_ / name + ".log") + " \"$@\"\n");
    make_ssh_key(rules);
    return rules;
  }
  // The status of a command on the host at `port`, with the key of `rules`.
  static int login(const HostRules& rules, int port, const std::string& command = "exit 7") {
    std::vector<std::string> words = ssh_options(rules);
    words.insert(words.begin(), {"ssh", "-F", "none", "-x", "-p", std::to_string(port)});
    words.insert(words.end(), {"-o", "BatchMode=yes", "127.0.0.1", command});
    return run_process(words).status;
  }
  const testing::TemporaryDirectory root_;
  std::vector<std::string> process_files_;
  bool made_ = false;
};

TEST_F(RealSshd, LetsOnlyTheFirstHostIn) {
  const int port = testing::free_ports(3);
  const HostRules first = host("first", port), second = host("second", port + 1);
  const std::atomic<int> stop{0};
  start_sshd(first);
  wait_for_hosts({"127.0.0.1"}, first, stop);
  HostRules asks = second;
  asks.ssh_port = port;
  const std::string proxies = R"(a b,"c\"d'e$f)";
  admit_host("127.0.0.1",
             login_variables({"NO_PROXY=" + proxies, "LONG=" + std::string(100000, 'x'),
                              "HOME=" + (root_ / "home")}),
             asks, stop);
  start_sshd(second);
  wait_for_hosts({"127.0.0.1"}, second, stop);
  EXPECT_EQ(login(first, port + 1), 7);
  EXPECT_EQ(login(first, port + 1, "printf %s \"$NO_PROXY\" > " + (root_ / "seen")), 0);
  EXPECT_EQ(read_text_file(root_ / "seen"), proxies);
  EXPECT_EQ(login(first, port + 1, "[ ${#LONG} = 100000 ]"), 0);
  // HOME is not the account's home, because caches are below it.
  EXPECT_EQ(login(first, port + 1, "printf %s \"$HOME\" > " + (root_ / "seen")), 0);
  EXPECT_EQ(read_text_file(root_ / "seen"), root_ / "home");
  EXPECT_EQ(login(second, port), 255) << "the first host accepted the second host's key";
  EXPECT_EQ(login(host("stranger", port + 2), port + 1), 255)
      << "the second host accepted another key";
}

}  // namespace
}  // namespace shoal::sagemaker
