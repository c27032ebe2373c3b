// Who starts what on which host: arithmetic on the contract.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/environment.h"

namespace shoal::sagemaker {

enum class HostRole {
  single,      // starts `shoal train` itself; several such hosts find each other by SM_HOSTS
  mpi_master,  // starts mpirun for all hosts of the distribution
  mpi_worker,  // serves the master until it is done
  idle,        // its instance group takes no part
};
std::string_view to_string(HostRole role);

struct Launch {
  HostRole role = HostRole::single;
  std::vector<std::string> hosts;  // of the distribution, the master first
  int ranks_per_host = 1;
  std::vector<std::string> words;  // what this host runs; empty for workers and idle hosts
  bool is_rank_0 = false;          // rank 0 runs here, so this host has the finished model
};

// That mpirun starts; 1 where the job has no distribution.
int ranks_of_a_host(const Contract& contract);

// For an image that trains on GPUs: invalid_argument where this host shows another number of them
// than its instance type has, and so ranks would be too few, on the wrong hosts, or on the CPU.
// Accepted: the CPU, where the job asks for it; types whose GPUs are not known; fewer GPUs than
// the type has, where the ranks that the job asks for (processes_per_host, or one process without a
// distribution) have one each.
void check_gpus(const Contract& contract, const TrainCommand& command);

struct MpirunWords {
  std::string mpirun = "mpirun";  // the program
  std::vector<std::string> forwarded =
      {};                             // names of variables that all ranks get as they are here
  std::vector<std::string> ssh = {};  // options of ssh, by which it reaches other hosts
};

// mpirun's command line is the toolkit's, but: FI_PROVIDER=efa is said only where there is EFA,
// NCCL's protocol is left to the plugin, the address of rank 0 (MASTER_ADDR) is said instead of
// preloading gethostname(), and what the job itself says of a variable goes before what is usual.
Launch plan_launch(const Contract& contract, const TrainCommand& command,
                   const MpirunWords& mpirun);

// Of all names: SM_ and SAGEMAKER_ but those of one host, SHOAL_, NCCL_, FI_, OMP_, GOMP_, CUDA_
// and AWS_ variables (credentials, region, endpoints), PATH, LD_LIBRARY_PATH, TMPDIR and the
// proxies'. Values stand in no command line.
std::vector<std::string> names_to_forward(const std::vector<std::string>& names);

}  // namespace shoal::sagemaker
