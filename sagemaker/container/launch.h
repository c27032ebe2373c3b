// Decides which host starts which program. Pure functions of the contract.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/environment.h"

namespace shoal::sagemaker {

enum class HostRole {
  single,      // starts the command itself; several such hosts find each other through SM_HOSTS
  mpi_master,  // starts mpirun for all hosts of the distribution
  mpi_worker,  // runs sshd for the master until mpirun is done
  idle,        // its instance group takes no part
};
std::string_view to_string(HostRole role);

struct Launch {
  HostRole role = HostRole::single;
  std::vector<std::string> hosts;  // hosts of the distribution, the master first
  int ranks_per_host = 1;
  std::vector<std::string> words;  // command of this host; empty for workers and idle hosts
  bool is_rank_0 = false;          // rank 0 runs here, so this host has the finished model
};

// True if the job has a distribution, so that it has ranks.
bool has_distribution(const Contract& contract);

// Ranks that mpirun starts per host; 1 if the job has no distribution.
int ranks_of_a_host(const Contract& contract);

// For images that train on GPUs. Throws invalid_argument if this host shows a different number of
// GPUs than its instance type has: ranks would be too few, on the wrong hosts, or on the CPU.
// Accepts jobs that ask for the CPU, and types with an unknown number of GPUs. Also accepts fewer
// GPUs if each requested rank still has one (processes_per_host, or a single process without a
// distribution).
void check_gpus(const Contract& contract, const TrainCommand& command);

struct MpirunWords {
  std::string mpirun = "mpirun";  // the program
  // Names of variables that all ranks get with their values on this host.
  std::vector<std::string> forwarded = {};
  std::vector<std::string> ssh = {};  // ssh options for reaching other hosts
};

// mpirun's command line is the toolkit's, with four differences. FI_PROVIDER=efa is set only with
// EFA. The plugin chooses NCCL's protocol. MASTER_ADDR gives rank 0's address instead of a
// preloaded gethostname(). A variable set by the job overrides the default.
Launch plan_launch(const Contract& contract, const TrainCommand& command,
                   const MpirunWords& mpirun);

// Selects the variables that mpirun forwards: SM_ and SAGEMAKER_ except those of one host, SHOAL_,
// NCCL_, FI_, OMP_, GOMP_, CUDA_, AWS_ (credentials, region, endpoints) and TRAINING_JOB_; PATH,
// PYTHONPATH, LD_LIBRARY_PATH, TMPDIR, proxies and ACCELERATE_TORCH_DEVICE. Values do not appear on
// the command line.
std::vector<std::string> names_to_forward(const std::vector<std::string>& names);

}  // namespace shoal::sagemaker
