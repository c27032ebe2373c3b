// Communicates with the other hosts of a job: waits until they serve ssh, waits until mpirun's
// ranks on this host are done, and tells the hosts how mpirun ended.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/runtime/base/deadlines.h"

namespace shoal::sagemaker {

struct HostRules {
  std::string sshd = "/usr/sbin/sshd", ssh = "ssh";
  std::string ssh_keygen = "ssh-keygen", ssh_keyscan = "ssh-keyscan";
  std::string keys = "/run/shoal-ssh";  // a folder on this host, newly created (ssh_keys.h)
  int ssh_port = 22;
  std::string orted = "orted";  // mpirun's process on a worker
  double poll_seconds = 1;
  double connect_seconds = deadlines::kHostsCome;
  double start_seconds = deadlines::kOrtedComes;
  double quiet_seconds = deadlines::kOrtedGone;
};

// True if an ssh server answers at host:port now. False for a name that does not resolve.
bool serves_ssh(const std::string& host, int port);

// Returns once every host serves ssh. Throws timeout, naming the first host that does not. Returns
// at once if `stop` becomes non-zero.
void wait_for_hosts(const std::vector<std::string>& hosts, const HostRules& rules,
                    const std::atomic<int>& stop);

// True if a process of this name runs on this host.
bool process_runs(const std::string& name);

// Writes `contents` (text of at most 100 KiB) to the file `to` on each of `hosts` by ssh, in
// parallel. Only the owner may read the files. Returns the hosts that could not be reached.
std::vector<std::string> send_file(const std::vector<std::string>& hosts,
                                   const std::string& contents, const std::string& to,
                                   const HostRules& rules);

// How mpirun ended on the first host. Workers cannot observe it: they run only orted, which also
// ends after a failure.
struct Ending {
  int status = 0;           // exit status of the first host
  std::string reason = {};  // reason of a failure
};
// Writes the ending to `path` on each of `hosts` (send_file).
std::vector<std::string> tell_ending(const std::vector<std::string>& hosts, const std::string& path,
                                     const Ending& ending, const HostRules& rules);

// Returns the ending once the first host has sent it (tell_ending with this path). Returns nullopt
// once orted has run here and stopped without an ending. Throws timeout if orted never starts.
//
// After `stop` becomes non-zero, waits at most `grace_seconds` more, while ranks on this host save
// their checkpoint. If orted has not started, waits only `quiet_seconds`, since the first host may
// just have started it. Returns nullopt if `gives_up` returns true. After `stop`, `gives_up` is no
// longer called, since giving up would interrupt saving.
std::optional<Ending> wait_for_mpirun_to_end(const HostRules& rules, const std::string& path,
                                             const std::atomic<int>& stop, double grace_seconds,
                                             const std::function<bool()>& gives_up = {});

}  // namespace shoal::sagemaker
