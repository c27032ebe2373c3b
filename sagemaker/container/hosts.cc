#include "shoal/sagemaker/container/hosts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <sstream>
#include <string_view>
#include <thread>

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/sagemaker/container/ssh_keys.h"
#include "shoal/sagemaker/process/process.h"

namespace shoal::sagemaker {
namespace {

void pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

struct Socket {
  explicit Socket(const addrinfo& address)
      : number(::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  }
  ~Socket() {
    if (number >= 0) ::close(number);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  bool is_ready(short events) const {
    pollfd watched{number, events, 0};
    return ::poll(&watched, 1, static_cast<int>(deadlines::kGreeting * 1000)) == 1;
  }
  int number;
};

// Quotes a text as one word of a shell command.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char letter : text)
    if (letter == '\'')
      word += "'\\''";
    else
      word += letter;
  return word + "'";
}

std::optional<Ending> read_ending(const std::string& path) {
  errno = 0;
  std::ifstream file(path);
  if (!file.is_open() && errno != ENOENT)
    throw_error(ErrorCode::io, "cannot open {}: {}", path, std::strerror(errno));
  Ending ending;
  if (!(file >> ending.status)) return std::nullopt;
  file.ignore();
  std::ostringstream rest;
  rest << file.rdbuf();
  ending.reason = rest.str();
  return ending;
}

}  // namespace

bool serves_ssh(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, &::freeaddrinfo);
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const Socket socket(*one);
    if (socket.number < 0) continue;
    const int connected = ::connect(socket.number, one->ai_addr, one->ai_addrlen);
    if (connected != 0 && (errno != EINPROGRESS || !socket.is_ready(POLLOUT))) continue;
    std::array<char, 4> greeting{};  // RFC 4253: "SSH-2.0-..."
    if (!socket.is_ready(POLLIN)) continue;
    const ssize_t got = ::recv(socket.number, greeting.data(), greeting.size(), 0);
    if (got == 4 && std::string_view(greeting.data(), 4) == "SSH-") return true;
  }
  return false;
}

void wait_for_hosts(const std::vector<std::string>& hosts, const HostRules& rules,
                    const std::atomic<int>& stop) {
  const Deadline deadline = Deadline::in_seconds(rules.connect_seconds);
  for (const std::string& host : hosts)
    while (!serves_ssh(host, rules.ssh_port)) {
      if (stop != 0) return;
      if (deadline.passed())
        throw Error(
            ErrorCode::timeout,
            fmt::format("host {} does not serve ssh on port {} after {:.0f} s", host,
                        rules.ssh_port, rules.connect_seconds),
            "look at the log of that host; in a VPC, the security group must let its members "
            "reach each other");
      pause(rules.poll_seconds);
    }
}

bool process_runs(const std::string& name) {
  for (const DirectoryEntry& entry : list_directory("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(entry.name[0])) == 0) continue;
    std::string running;
    std::getline(std::ifstream(entry.path + "/comm"), running);
    if (running != name.substr(0, 15)) continue;  // the kernel truncates names
    // A zombie process is not running.
    std::string stat;
    std::getline(std::ifstream(entry.path + "/stat"), stat);
    const auto end_of_name = stat.rfind(") ");
    if (end_of_name != std::string::npos && stat[end_of_name + 2] != 'Z') return true;
  }
  return false;
}

std::vector<std::string> send_file(const std::vector<std::string>& hosts,
                                   const std::string& contents, const std::string& to,
                                   const HostRules& rules) {
  // Renamed at the end, so that a waiting host reads the complete file. Other users can read a
  // command line, but not a process's variables, so the contents go to ssh from a variable. They do
  // not go through a file here, because a full disk may be what the hosts are told.
  const std::string command =
      fmt::format("umask 077 && cat > {0}.new && mv {0}.new {0}", quoted(to));
  std::vector<std::future<bool>> sent;
  for (const std::string& host : hosts)
    sent.push_back(std::async(std::launch::async, [&] {
      try {
        std::vector<std::string> words = ssh_options(rules);
        words.insert(words.begin(), {"/bin/sh", "-c", "printf %s \"$FILE_CONTENTS\" | \"$@\"", "sh",
                                     rules.ssh, "-x", "-p", std::to_string(rules.ssh_port)});
        words.insert(words.end(), {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o",
                                   "ServerAliveInterval=5", host, command});
        return run_process(words, {.environment = {"FILE_CONTENTS=" + contents}}).status == 0;
      } catch (const Error&) {
        return false;  // there is no shell
      }
    }));
  std::vector<std::string> missed;
  for (std::size_t i = 0; i < hosts.size(); ++i)
    if (!sent[i].get()) missed.push_back(hosts[i]);
  return missed;
}

std::vector<std::string> tell_ending(const std::vector<std::string>& hosts, const std::string& path,
                                     const Ending& ending, const HostRules& rules) {
  return send_file(hosts, fmt::format("{}\n{}", ending.status, ending.reason), path, rules);
}

std::optional<Ending> wait_for_mpirun_to_end(const HostRules& rules, const std::string& path,
                                             const std::atomic<int>& stop, double grace_seconds,
                                             const std::function<bool()>& gives_up) {
  const Deadline start = Deadline::in_seconds(rules.start_seconds);
  std::optional<Clock::time_point> seen, stopped;  // when orted was last seen; when the signal came
  for (;; pause(rules.poll_seconds)) {
    if (auto ending = read_ending(path)) return ending;
    if (stop != 0 && !stopped) stopped = Clock::now();
    if (!stopped && gives_up && gives_up()) return std::nullopt;
    if (process_runs(rules.orted)) seen = Clock::now();
    if (seen && seconds_since(*seen) >= rules.quiet_seconds) return std::nullopt;
    if (stopped && seconds_since(*stopped) >=
                       (seen ? grace_seconds : std::min(grace_seconds, rules.quiet_seconds)))
      return std::nullopt;
    if (!seen && !stopped && start.passed())
      throw Error(
          ErrorCode::timeout,
          fmt::format("mpirun did not come to this host within {:.0f} s", rules.start_seconds),
          "look at the log of the first host, which starts it");
  }
}

}  // namespace shoal::sagemaker
