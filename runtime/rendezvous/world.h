// Finds a rank's world: its launcher, its rank, and where the other ranks are.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal {

enum class Launcher { single, open_mpi, torchrun, slurm, sagemaker };
std::string_view to_string(Launcher launcher);  // "Open MPI"

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;  // within this host
  int node = 0, nodes = 1;             // index of this host; number of hosts
  Launcher launcher = Launcher::single;
  std::string host;         // this machine's name
  std::string master_addr;  // where rank 0 serves the store; empty: not known
  int master_port = 0;      // 0: not known
  // True if the launcher did not say where rank 0 is. master_addr is then mpirun's host, which is
  // rank 0's host unless the user chose otherwise. make_store() checks it.
  bool master_assumed = false;
  std::string job_id;     // the same on every rank; new for each launch if the launcher gives one
  std::string store_dir;  // directory for a file store; empty: no file store

  bool is_single_host() const { return nodes == 1; }
};

// Returns a variable's value, if it is set. Tests pass a fake.
using EnvironmentReader = std::function<std::optional<std::string>(std::string_view name)>;
EnvironmentReader process_environment();

struct DiscoveryPaths {
  // A SageMaker container's directory that holds input/config/resourceconfig.json.
  std::string sagemaker_root = "/opt/ml";
};

// Reads the variables of a launcher. The first launcher in this list whose variables are present is
// used. The order prefers the innermost launcher:
//   torchrun    RANK WORLD_SIZE [LOCAL_RANK LOCAL_WORLD_SIZE GROUP_RANK] MASTER_ADDR MASTER_PORT
//   Open MPI    OMPI_COMM_WORLD_RANK/SIZE/LOCAL_RANK/LOCAL_SIZE, PMIX_NAMESPACE; several hosts:
//               MASTER_ADDR, else SageMaker's first host, else mpirun's address
//   SLURM       SLURM_PROCID SLURM_NTASKS SLURM_LOCALID SLURM_NODELIST SLURM_TASKS_PER_NODE, in a
//               step that srun started
//   SageMaker   SM_HOSTS SM_CURRENT_HOST, else resourceconfig.json: one process a host
//   otherwise   one process; invalid_argument if a launcher's variable says that there are several
//               (a SLURM job without srun, MPICH)
//
// With torchrun, rank 0 serves on the port after MASTER_PORT, since torchrun's agent uses
// MASTER_PORT. Throws invalid_argument, naming the variable, if variables are partial or contradict
// each other. Does not use the network. If the launcher does not say which host each rank is on,
// assumes hosts of local_size ranks until settle_nodes().
World discover_world(const EnvironmentReader& environment = process_environment(),
                     const DiscoveryPaths& paths = {});

// Makes the store for this launcher, without MPI calls. A single rank gets a hash store. Otherwise
// the store is a file store with SHOAL_STORE_DIR, a TCP store if rank 0's address is known, or a
// file store in TMPDIR for Open MPI on one host. Throws unavailable, with the remedy, for Open MPI
// on several hosts if rank 0's address is unknown or the assumed one is wrong. Throws it for ranks
// that would meet over the network without a job token (SHOAL_JOB_TOKEN_FILE), unless
// SHOAL_INSECURE=1. Waits for all ranks until `deadline`.
std::shared_ptr<Store> make_store(const World& world, Deadline deadline);

// Exchanges host names through the store and sets local_rank, local_size, node (hosts in order of
// their lowest rank) and nodes from them. Every rank must call it.
void settle_nodes(World& world, Store& store, Deadline deadline);

// Expands SLURM's compressed host lists: "node[1-3,07],gpu-a" -> node1 node2 node3 node07 gpu-a.
// Leading zeros are kept, and a name may have several brackets. Throws invalid_argument for a
// malformed or absurdly long list.
std::vector<std::string> expand_host_list(std::string_view list);
// "4(x2),3" -> 4 4 3.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace shoal
