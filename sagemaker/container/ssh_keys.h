// Keys by which the hosts of one job reach each other, made as it starts: an image has none.
//
// The first host has one key: its sshd answers with it, and it logs in to the others with it. Those
// learn it from that answer, where they have to look anyway: at the address that the job's hosts
// have for its name. So of all who can reach these hosts, or have the image, only the first host
// gets in, and into that one nobody. It rests on addresses: who could answer in the place of the
// first host (no neighbour in a VPC can) would be let in.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "shoal/sagemaker/container/hosts.h"

namespace shoal::sagemaker {

// Makes rules.keys, a folder, with this host's key in it, and lets nobody in. unavailable where
// that fails, or there is no ssh-keygen.
void make_ssh_key(const HostRules& rules);

// What sshd gives to whoever is let in, as words of authorized_keys. An sshd's sessions have none
// of its own variables.
struct LoginVariables {
  std::string options;                // ,environment="NAME=value",environment=...
  std::vector<std::string> left_out;  // names that it cannot give: a value with a line's end, or
                                      // with a backslash at its end
};
// Of these, NAME=value, all but the login's own (USER, SHELL, PWD ...). invalid_argument where they
// are longer than sshd takes.
LoginVariables login_variables(const std::vector<std::string>& variables);

// Lets in who has the key with which sshd on `host` answers, with these variables. Asks until it
// does; timeout after rules.connect_seconds. `stop` non-zero: returns at once.
void admit_host(const std::string& host, const LoginVariables& variables, const HostRules& rules,
                const std::atomic<int>& stop);

// Starts this host's sshd with these keys; it goes into the background. unavailable where there is
// none, or it fails.
void start_sshd(const HostRules& rules);

// Words for ssh: this host's key, and no question about the other's.
std::vector<std::string> ssh_options(const HostRules& rules);

}  // namespace shoal::sagemaker
