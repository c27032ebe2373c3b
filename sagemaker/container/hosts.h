// The other hosts of a job: who serves ssh already, and when mpirun is done with this one.
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace shoal::sagemaker {

struct HostRules {
  std::string sshd = "/usr/sbin/sshd";
  int ssh_port = 22;
  std::string orted = "orted";  // mpirun's process on a worker
  double poll_seconds = 1;
  double connect_seconds = 3600;  // for all hosts to come
  double start_seconds = 4200;    // for orted to come: not before the first host has seen all
  double quiet_seconds = 5;       // without orted: mpirun is done
};

// Whether something that speaks ssh answers at host:port now. A name that does not resolve: false.
bool serves_ssh(const std::string& host, int port);

// Starts this host's sshd, which goes into the background. unavailable where there is none, or it
// fails.
void start_sshd(const HostRules& rules);

// Returns once every host serves ssh; timeout naming the first that does not. `stop` non-zero:
// returns at once.
void wait_for_hosts(const std::vector<std::string>& hosts, const HostRules& rules,
                    const std::atomic<int>& stop);

// Whether a process of this name runs on this host.
bool process_runs(const std::string& name);

// Returns once mpirun has been here and gone. timeout when it never came. After `stop` is non-zero
// it waits `grace_seconds` more at most: ranks on this host save their checkpoint meanwhile.
void wait_for_mpirun_to_end(const HostRules& rules, const std::atomic<int>& stop,
                            double grace_seconds);

}  // namespace shoal::sagemaker
