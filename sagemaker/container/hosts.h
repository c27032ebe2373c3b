// The other hosts of a job: who serves ssh already, when mpirun is done with this one, and how it
// ended.
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
  std::string keys = "/run/shoal-ssh";  // a folder of this host alone, made anew (ssh_keys.h)
  int ssh_port = 22;
  std::string orted = "orted";  // mpirun's process on a worker
  double poll_seconds = 1;
  double connect_seconds = deadlines::kHostsCome;
  double start_seconds = deadlines::kOrtedComes;
  double quiet_seconds = deadlines::kOrtedGone;
};

// Whether something that speaks ssh answers at host:port now. A name that does not resolve: false.
bool serves_ssh(const std::string& host, int port);

// Returns once every host serves ssh; timeout naming the first that does not. `stop` non-zero:
// returns at once.
void wait_for_hosts(const std::vector<std::string>& hosts, const HostRules& rules,
                    const std::atomic<int>& stop);

// Whether a process of this name runs on this host.
bool process_runs(const std::string& name);

// How the first host's mpirun ended. Its workers cannot see that: of mpirun they have a process
// that ends in any case.
struct Ending {
  int status = 0;           // what the first host ends with
  std::string reason = {};  // of a failure
};
// Writes it to `path` on each of `hosts`, by ssh, all at once. Returns those that it did not reach.
std::vector<std::string> tell_ending(const std::vector<std::string>& hosts, const std::string& path,
                                     const Ending& ending, const HostRules& rules);

// Returns once the first host has told how it ended (tell_ending with this path), or mpirun has
// been here and gone without a word: nothing. timeout when it never came. After `stop` is non-zero
// it waits `grace_seconds` more at most, while ranks on this host save their checkpoint; for mpirun
// that has not come, `quiet_seconds`: the first host may have started it as the signal came.
// `gives_up`: once true, it returns nothing at the next look; a host that is stopped does not ask
// it, for that would cut short what ranks save.
std::optional<Ending> wait_for_mpirun_to_end(const HostRules& rules, const std::string& path,
                                             const std::atomic<int>& stop, double grace_seconds,
                                             const std::function<bool()>& gives_up = {});

}  // namespace shoal::sagemaker
