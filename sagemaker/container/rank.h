// One rank of a Python script, as mpirun starts it on each host (`train rank COMMAND...`).
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/environment.h"

namespace shoal::sagemaker {

// The process's name, from the moment it handles SIGUSR1.
inline constexpr const char* kRankName = "shoal-rank";

// torchrun's variables for the rank that mpirun started; without mpirun, for a single rank:
// RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, and MASTER_ADDR and MASTER_PORT unless they are
// set.
Variables torchrun_variables(const VariableReader& variables);

// Runs the command with these variables until it ends. mpirun forwards SIGUSR1 but not SIGTERM, so
// each of SIGUSR1, SIGTERM and SIGINT reaches the command as SIGTERM. If this process is killed,
// the kernel kills the command too.
//
// Returns its exit status, or 128 + the signal that ended it, which a line on standard error names.
// Returns 0 after SIGUSR1, by which mpirun stops all ranks: any other status would make it kill
// those that still save.
int run_rank(const std::vector<std::string>& command, const VariableReader& variables);

}  // namespace shoal::sagemaker
