#include "shoal/sagemaker/container/ssh_keys.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>

#include <sys/stat.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

constexpr const char* kKind = "ssh-ed25519";
// Messages between sshd's processes are limited to 256 KiB; one contains all options of a key.
constexpr std::size_t kMostLoginBytes = 192 << 10;

std::string key_file(const HostRules& rules) { return rules.keys + "/key"; }
std::string admitted_file(const HostRules& rules) { return rules.keys + "/authorized_keys"; }

void run_or_throw(const std::vector<std::string>& words) {
  const ProcessResult result = run_process(words);
  if (result.status != 0)
    throw Error(ErrorCode::unavailable,
                fmt::format("{} ended with status {}: {}", words.front(), result.status,
                            result.error.substr(0, result.error.find('\n'))));
}

// Finds the key in ssh-keyscan's output, lines of "HOST ssh-ed25519 AAAA...".
std::optional<std::string> scanned_key(const std::string& path) {
  std::istringstream file(path_exists(path) ? read_text_file(path) : std::string());
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string host, kind, key;
    if (words >> host >> kind >> key && host[0] != '#' && kind == kKind) return key;
  }
  return std::nullopt;
}

// Variables that a login sets itself or that describe a shell. The login also sets HOME, but the
// container's HOME, which contains caches, overrides it.
bool is_of_login(const std::string& name) {
  constexpr std::array<std::string_view, 9> kNames = {"USER",   "LOGNAME", "SHELL", "MAIL", "PWD",
                                                      "OLDPWD", "SHLVL",   "_",     "TERM"};
  return name.starts_with("SSH_") || std::ranges::find(kNames, name) != kNames.end();
}

}  // namespace

void make_ssh_key(const HostRules& rules) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::unavailable,
                fmt::format("{} for keys of ssh cannot be made: {}", rules.keys, why),
                "hosts of one job reach each other as root");
  };
  // Removes files of an earlier job on this machine. A folder with other contents is kept and
  // refused.
  for (const char* name : {"key", "key.pub", "authorized_keys", "answer", "job-token"})
    remove_file(fmt::format("{}/{}", rules.keys, name));
  if (path_exists(rules.keys) && (!is_directory(rules.keys) || !list_directory(rules.keys).empty()))
    refuse("it is there, with other things in it");
  remove_file(rules.keys);
  if (::mkdir(rules.keys.c_str(), 0700) != 0) refuse(std::strerror(errno));
  run_or_throw(
      {rules.ssh_keygen, "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key_file(rules)});
  write_file(admitted_file(rules), "");
  // sshd ignores a file that others can write.
  if (::chmod(admitted_file(rules).c_str(), 0600) != 0)
    throw_error(ErrorCode::io, "cannot change the mode of {}: {}", admitted_file(rules),
                std::strerror(errno));
}

LoginVariables login_variables(const std::vector<std::string>& variables) {
  LoginVariables made;
  for (const std::string& entry : variables) {
    const auto equals = entry.find('=');
    if (equals == std::string::npos) continue;
    const std::string name = entry.substr(0, equals);
    if (is_of_login(name)) continue;
    // sshd supports one escape in a quoted word: a backslash before a quotation mark.
    const bool is_plain =
        std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
    if (name.empty() || !is_plain || entry.find_first_of("\r\n") != std::string::npos ||
        entry.ends_with('\\')) {
      made.left_out.push_back(name);
      continue;
    }
    made.options += ",environment=\"";
    for (const char letter : entry) {
      if (letter == '"') made.options += '\\';
      made.options += letter;
    }
    made.options += '"';
  }
  if (made.options.size() > kMostLoginBytes)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the environment of this container has {} bytes; sshd gives ranks at "
                            "most {}",
                            made.options.size(), kMostLoginBytes),
                "put long values into a file of the job's code, or a channel");
  return made;
}

void admit_host(const std::string& host, const LoginVariables& variables, const HostRules& rules,
                const std::atomic<int>& stop) {
  const Deadline deadline = Deadline::in_seconds(rules.connect_seconds);
  const std::string answer = rules.keys + "/answer";
  for (;;) {
    // Words are passed through "$@", so that the shell does not interpret them.
    const ProcessResult result =
        run_process({"/bin/sh", "-c", "answer=$1; shift; exec \"$@\" > \"$answer\"", "sh", answer,
                     rules.ssh_keyscan, "-T", "10", "-t", "ed25519", "-p",
                     std::to_string(rules.ssh_port), host});
    if (const auto key = scanned_key(answer)) {
      write_file(admitted_file(rules),
                 fmt::format("restrict{} {} {}\n", variables.options, kKind, *key));
      return;
    }
    if (stop != 0) return;
    if (deadline.passed())
      throw Error(
          ErrorCode::timeout,
          fmt::format("sshd on host {} shows no {} key after {:.0f} s: {}", host, kKind,
                      rules.connect_seconds, result.error.substr(0, result.error.find('\n'))),
          "look at the log of that host, which makes one as the job starts");
    std::this_thread::sleep_for(std::chrono::duration<double>(rules.poll_seconds));
  }
}

void start_sshd(const HostRules& rules) {
  if (!is_program(rules.sshd))
    throw Error(ErrorCode::unavailable,
                fmt::format("there is no {}, by which mpirun reaches hosts", rules.sshd),
                "install openssh-server in the image (docker/ has a Dockerfile)");
  // MaxStartups: all hosts of a large job connect to the first one at the same time, and by default
  // sshd would refuse some of them.
  run_or_throw({rules.sshd, "-h", key_file(rules), "-o",
                "AuthorizedKeysFile=" + admitted_file(rules), "-o", "PasswordAuthentication=no",
                "-o", "KbdInteractiveAuthentication=no", "-o", "PermitRootLogin=prohibit-password",
                "-o", "MaxStartups=4096", "-o", "PermitUserEnvironment=yes"});
}

std::vector<std::string> ssh_options(const HostRules& rules) {
  // A host's key is created at job start, so there is no known key to compare with.
  return {"-i", key_file(rules),
          "-o", "IdentitiesOnly=yes",
          "-o", "StrictHostKeyChecking=no",
          "-o", "UserKnownHostsFile=/dev/null",
          "-o", "LogLevel=ERROR"};
}

}  // namespace shoal::sagemaker
