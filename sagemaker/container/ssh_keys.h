// The ssh keys with which the hosts of one job reach each other. They are created when the job
// starts; the image has none.
//
// The first host has one key: its sshd presents it, and the first host logs in to the others with
// it. The other hosts get the public key from that sshd, at the address to which the first host's
// name resolves in the job. So only the first host can log in to the others, and no host can log in
// to the first.
//
// This relies on addresses: a machine that could answer in place of the first host would be
// admitted. In a VPC, no other machine can do that.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "shoal/sagemaker/container/hosts.h"

namespace shoal::sagemaker {

// Creates the folder rules.keys with this host's key, and admits no host. Throws unavailable on
// failure or without ssh-keygen.
void make_ssh_key(const HostRules& rules);

// Variables that sshd sets for an admitted host, as options of authorized_keys. Sessions do not
// inherit sshd's own variables.
struct LoginVariables {
  std::string options;  // ,environment="NAME=value",environment=...
  // Names that sshd cannot set: the value contains a line break or ends with a backslash.
  std::vector<std::string> left_out;
};
// Takes NAME=value entries, except those of the login itself (USER, SHELL, PWD ...). Throws
// invalid_argument if they exceed sshd's limit.
LoginVariables login_variables(const std::vector<std::string>& variables);

// Admits the holder of the key that sshd on `host` presents, with these variables. Retries; throws
// timeout after rules.connect_seconds. Returns at once if `stop` is non-zero.
void admit_host(const std::string& host, const LoginVariables& variables, const HostRules& rules,
                const std::atomic<int>& stop);

// Starts this host's sshd with these keys, in the background. Throws unavailable if it is missing
// or fails.
void start_sshd(const HostRules& rules);

// Options for ssh: use this host's key, and do not check the other host's key.
std::vector<std::string> ssh_options(const HostRules& rules);

}  // namespace shoal::sagemaker
