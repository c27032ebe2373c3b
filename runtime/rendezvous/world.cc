#include "shoal/runtime/rendezvous/world.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/host_lists.h"
#include "shoal/runtime/rendezvous/job_token.h"

namespace shoal {
namespace {

constexpr int kDefaultPort = 29500;  // the default of torch's launchers

// Strict access to the variables. Every error names the variable and its value.
class Variables {
 public:
  explicit Variables(const EnvironmentReader& read) : read_(read) {}

  std::optional<std::string> text(std::string_view name) const {
    auto value = read_(name);
    if (value && value->empty()) value.reset();  // an empty variable is an unset one
    return value;
  }
  bool has(std::string_view name) const { return text(name).has_value(); }

  std::optional<int> integer(std::string_view name) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    const auto number = parse_number<int>(*value);
    SHOAL_CHECK(number.has_value(), "{}='{}' is not an integer", name, shortened(*value));
    return number;
  }

  int required(std::string_view name, std::string_view because) const {
    const auto value = integer(name);
    SHOAL_CHECK(value.has_value(), "{} is set, but {} is not", because, name);
    return *value;
  }

  int port(std::string_view name, int otherwise) const {
    const int value = integer(name).value_or(otherwise);
    SHOAL_CHECK(value >= 1 && value <= 65535, "{}={} is not a port from 1 to 65535", name, value);
    return value;
  }

 private:
  const EnvironmentReader& read_;
};

void check_index(std::string_view index_name, int index, std::string_view size_name, int size) {
  SHOAL_CHECK(size >= 1, "{}={}: there is at least one rank", size_name, size);
  SHOAL_CHECK(index >= 0 && index < size, "{}={} does not lie within {}={}", index_name, index,
              size_name, size);
}

// Assumes that each host has local_size ranks; settle_nodes() corrects it.
void assume_nodes(World& world) {
  if (world.local_size >= world.size) {
    world.node = 0;
    world.nodes = 1;
    return;
  }
  world.nodes = 1 + (world.size - 1) / world.local_size;
  const bool by_slot = world.rank % world.local_size == world.local_rank;
  const bool by_node = world.rank / world.nodes == world.local_rank;
  world.node = !by_slot && by_node ? world.rank % world.nodes : world.rank / world.local_size;
}

struct SageMakerHosts {
  std::vector<std::string> hosts;
  std::string current;
  int index = 0;
};

std::optional<SageMakerHosts> read_sagemaker(const Variables& variables,
                                             const DiscoveryPaths& paths) {
  const std::string file = paths.sagemaker_root + "/input/config/resourceconfig.json";
  SageMakerHosts found;
  std::string where;
  const auto strings = [&where](const nlohmann::json& value) {
    SHOAL_CHECK(value.is_array() && !value.empty(), "{} is not a list of hosts: {}", where,
                shortened(value.dump()));
    std::vector<std::string> list;
    for (const auto& item : value) {
      SHOAL_CHECK(item.is_string(), "{} holds {}, which is not a host name", where,
                  shortened(item.dump()));
      list.push_back(item.get<std::string>());
    }
    return list;
  };
  if (const auto text = variables.text("SM_HOSTS")) {
    where = "SM_HOSTS";
    found.hosts = strings(parse_json(*text, "SM_HOSTS"));
    const auto current = variables.text("SM_CURRENT_HOST");
    SHOAL_CHECK(current.has_value(), "SM_HOSTS is set, but SM_CURRENT_HOST is not");
    found.current = *current;
  } else if (path_exists(file)) {
    const nlohmann::json config = read_json_file(file);
    SHOAL_CHECK(config.is_object() && config.contains("hosts") && config.contains("current_host") &&
                    config["current_host"].is_string(),
                "{} has no hosts or no current_host", file);
    where = "hosts in " + file;
    found.hosts = strings(config["hosts"]);
    found.current = config["current_host"].get<std::string>();
  } else {
    SHOAL_CHECK(!variables.has("SM_CURRENT_HOST"), "SM_CURRENT_HOST is set, but SM_HOSTS is not");
    return std::nullopt;
  }
  const auto place = std::ranges::find(found.hosts, found.current);
  SHOAL_CHECK(place != found.hosts.end(),
              "SageMaker's current host '{}' (SM_CURRENT_HOST) is not in {}",
              shortened(found.current), where);
  found.index = static_cast<int>(place - found.hosts.begin());
  return found;
}

void read_torchrun(World& world, const Variables& variables) {
  world.launcher = Launcher::torchrun;
  const std::string_view because = variables.has("RANK") ? "RANK" : "WORLD_SIZE";
  world.rank = variables.required("RANK", because);
  world.size = variables.required("WORLD_SIZE", because);
  check_index("RANK", world.rank, "WORLD_SIZE", world.size);
  if (world.size > 1) {
    const auto address = variables.text("MASTER_ADDR");
    SHOAL_CHECK(address.has_value(), "WORLD_SIZE={}, but MASTER_ADDR is not set", world.size);
    SHOAL_CHECK(variables.has("MASTER_PORT"), "WORLD_SIZE={}, but MASTER_PORT is not set",
                world.size);
    world.master_addr = *address;
    world.master_port = variables.port("MASTER_PORT", kDefaultPort);
    // torchrun's agent listens on MASTER_PORT itself, with its own protocol.
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True")
      world.master_port = world.master_port == 65535 ? 1024 : world.master_port + 1;
  }
  const bool one_host = world.size == 1 || is_loopback(world.master_addr);
  const auto local_rank = variables.integer("LOCAL_RANK");
  const auto local_size = variables.integer("LOCAL_WORLD_SIZE");
  if (one_host && !local_size) {
    world.local_size = world.size;
    world.local_rank = local_rank.value_or(world.rank);
  } else if (!local_rank && !local_size) {
    world.local_rank = 0;  // assumes one rank per host; settle_nodes() corrects it
    world.local_size = 1;
  } else {
    world.local_rank = variables.required("LOCAL_RANK", "LOCAL_WORLD_SIZE");
    world.local_size = variables.required("LOCAL_WORLD_SIZE", "LOCAL_RANK");
  }
  SHOAL_CHECK(world.local_size <= world.size, "LOCAL_WORLD_SIZE={} is larger than WORLD_SIZE={}",
              world.local_size, world.size);
  check_index("LOCAL_RANK", world.local_rank, "LOCAL_WORLD_SIZE", world.local_size);
  assume_nodes(world);
  if (const auto node = variables.integer("GROUP_RANK"); node && world.nodes > 1) {
    check_index("GROUP_RANK", *node, "number of hosts", world.nodes);
    world.node = *node;
  }
  world.job_id =
      fmt::format("torchrun-{}-{}-{}-{}", variables.text("TORCHELASTIC_RUN_ID").value_or("none"),
                  variables.text("TORCHELASTIC_RESTART_COUNT").value_or("0"), world.master_addr,
                  world.master_port);
}

// "1279197184.0;tcp://10.0.0.1,192.168.0.1:44217;tcp6://[fd00::2]:34037" -> 10.0.0.1
std::string host_of_uri(const std::string& uri) {
  const auto start = uri.find("tcp://");
  if (start == uri.npos) return {};
  const std::string rest = uri.substr(start + 6);
  const std::string host = rest.substr(0, rest.find_first_of(",:;"));
  return is_loopback(host) ? std::string() : host;
}

int port_from(const std::string& job_id) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : job_id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return 20000 + static_cast<int>(hash % 12000);  // below the ephemeral ports
}

void read_open_mpi(World& world, const Variables& variables, const DiscoveryPaths& paths) {
  world.launcher = Launcher::open_mpi;
  const std::string_view because =
      variables.has("OMPI_COMM_WORLD_RANK") ? "OMPI_COMM_WORLD_RANK" : "OMPI_COMM_WORLD_SIZE";
  world.rank = variables.required("OMPI_COMM_WORLD_RANK", because);
  world.size = variables.required("OMPI_COMM_WORLD_SIZE", because);
  world.local_rank = variables.required("OMPI_COMM_WORLD_LOCAL_RANK", because);
  world.local_size = variables.required("OMPI_COMM_WORLD_LOCAL_SIZE", because);
  check_index("OMPI_COMM_WORLD_RANK", world.rank, "OMPI_COMM_WORLD_SIZE", world.size);
  check_index("OMPI_COMM_WORLD_LOCAL_RANK", world.local_rank, "OMPI_COMM_WORLD_LOCAL_SIZE",
              world.local_size);
  SHOAL_CHECK(world.local_size <= world.size,
              "OMPI_COMM_WORLD_LOCAL_SIZE={} is larger than OMPI_COMM_WORLD_SIZE={}",
              world.local_size, world.size);
  for (const auto& [other, mine, name] :
       {std::tuple{"RANK", world.rank, "OMPI_COMM_WORLD_RANK"},
        std::tuple{"WORLD_SIZE", world.size, "OMPI_COMM_WORLD_SIZE"}})
    if (const auto value = variables.integer(other); value && *value != mine)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}={} contradicts {}={}", other, *value, name, mine),
                  fmt::format("unset {} under mpirun", other));
  assume_nodes(world);

  std::string id = variables.text("PMIX_NAMESPACE")
                       .value_or(variables.text("OMPI_MCA_ess_base_jobid").value_or("job"));
  // This value is random for each mpirun, while the ids above repeat.
  if (const auto random = variables.text("OMPI_MCA_orte_precondition_transports"))
    id += "-" + *random;
  world.job_id = "ompi-" + id;

  if (const auto address = variables.text("MASTER_ADDR")) {
    world.master_addr = *address;
    world.master_port = variables.port("MASTER_PORT", kDefaultPort);
  } else if (const auto sagemaker = read_sagemaker(variables, paths);
             sagemaker && sagemaker->hosts.size() > 1) {
    world.host = sagemaker->current;
    world.master_addr = sagemaker->hosts.front();
    world.master_port = variables.port("MASTER_PORT", kDefaultPort);
  } else if (world.nodes > 1) {
    for (const char* name : {"OMPI_MCA_orte_hnp_uri", "PMIX_SERVER_URI", "PMIX_SERVER_URI2"})
      if (const auto uri = variables.text(name); uri && world.master_addr.empty())
        world.master_addr = host_of_uri(*uri);
    if (!world.master_addr.empty()) {
      world.master_assumed = true;
      world.master_port = variables.port("MASTER_PORT", port_from(world.job_id));
    }
  }
}

// SLURM also runs the script of sbatch and the shell of an interactive salloc as steps of the job.
// It gives them reserved ids, which begin at 0xfffffffa (interactive).
bool is_shell_step(const Variables& variables) {
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"})
    if (const auto id = variables.text(name))
      return id->size() == 10 && *id >= "4294967290" && *id <= "4294967295";
  return false;
}

// True if srun started this process. The shells of sbatch (where SLURM_PROCID is 0) and salloc have
// the job's variables, but no step's variables, or those of a shell step.
bool is_slurm_step(const Variables& variables) {
  if (is_shell_step(variables)) return false;
  for (const char* name :
       {"SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST"})
    if (variables.has(name)) return true;
  return false;
}

// Variables by which launchers mark one of several processes, and the largest value of each in a
// process that is alone: 0 for ranks, 1 for sizes.
constexpr std::array<std::pair<const char*, int>, 16> kOneOfSeveral = {{
    {"SLURM_NTASKS", 1},
    {"SLURM_NPROCS", 1},
    {"SLURM_STEP_NUM_TASKS", 1},
    {"SLURM_NTASKS_PER_NODE", 1},
    {"SLURM_JOB_NUM_NODES", 1},
    {"SLURM_NNODES", 1},
    {"SLURM_PROCID", 0},
    {"LOCAL_WORLD_SIZE", 1},
    {"LOCAL_RANK", 0},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", 1},
    {"OMPI_COMM_WORLD_LOCAL_RANK", 0},
    {"PMIX_RANK", 0},
    {"PMI_SIZE", 1},  // MPICH, Intel MPI
    {"PMI_RANK", 0},
    {"MV2_COMM_WORLD_SIZE", 1},  // MVAPICH
    {"MV2_COMM_WORLD_RANK", 0},
}};

// Why discover_world() recognised no launcher, and the remedy.
std::pair<std::string, std::string> why_alone(std::string_view name, const Variables& variables) {
  const auto lacks = [](const char* other) { return fmt::format("{} is not set", other); };
  const std::string unset = fmt::format("; unset {} to train with one rank", name);
  if (name.starts_with("SLURM_") && !is_slurm_step(variables))
    return {fmt::format("srun did not start this process ({})",
                        is_shell_step(variables) ? "SLURM_STEP_ID is that of a shell"
                                                 : "there is no SLURM_STEP_ID"),
            "put srun before the command in the batch script, which starts every rank; srun -n 1 "
            "-N 1 trains with one"};
  if (name.starts_with("SLURM_"))
    return {lacks("SLURM_PROCID"), "start it with srun, and keep srun's variables" + unset};
  if (name.starts_with("LOCAL_"))
    return {lacks("RANK"), "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, too" + unset};
  if (name.starts_with("OMPI_") || name.starts_with("PMIX_"))
    return {lacks("OMPI_COMM_WORLD_RANK"), "start it with Open MPI's mpirun" + unset};
  return {"Shoal does not know the launcher that sets it",
          "start the ranks with Open MPI's mpirun, with torchrun's variables or with srun" + unset};
}

// No launcher gave this process a rank. Throws if a variable says that there are several processes.
void check_alone(const Variables& variables) {
  for (const auto& [name, most] : kOneOfSeveral) {
    const int value = variables.integer(name).value_or(most);
    if (value <= most) continue;
    auto [why, remedy] = why_alone(name, variables);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}={}, but {}: it would train alone", name, value, why),
                std::move(remedy));
  }
}

void read_slurm(World& world, const Variables& variables) {
  world.launcher = Launcher::slurm;
  world.rank = variables.required("SLURM_PROCID", "SLURM_PROCID");
  const std::string_view tasks =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  world.size = variables.required(tasks, "SLURM_PROCID");
  check_index("SLURM_PROCID", world.rank, tasks, world.size);
  world.local_rank = variables.required("SLURM_LOCALID", "SLURM_PROCID");

  std::vector<std::string> hosts;
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"})
    if (const auto list = variables.text(name); list && hosts.empty())
      hosts = expand_host_list(*list);
  SHOAL_CHECK(!hosts.empty() || world.size == 1,
              "SLURM_PROCID is set with {} tasks, but SLURM_NODELIST is not", world.size);
  world.nodes = std::max(1, std::min(static_cast<int>(hosts.size()), world.size));

  std::vector<int> per_node;
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto text = variables.text(name);
    if (!text || !per_node.empty()) continue;
    per_node = expand_tasks_per_node(*text);
    std::int64_t sum = 0;
    for (const int count : per_node) sum += count;
    // This list may describe the allocation instead of the step; then assume evenly spread ranks.
    if (sum != world.size || std::ssize(per_node) != world.nodes) per_node.clear();
  }
  if (per_node.empty())
    for (int i = 0; i < world.nodes; ++i)
      per_node.push_back(world.size / world.nodes + (i < world.size % world.nodes));
  if (const auto node = variables.integer("SLURM_NODEID")) {
    check_index("SLURM_NODEID", *node, "number of hosts in SLURM_NODELIST", world.nodes);
    world.node = *node;
  } else {
    int first = 0;
    while (world.node + 1 < world.nodes &&
           world.rank >= first + per_node[static_cast<std::size_t>(world.node)])
      first += per_node[static_cast<std::size_t>(world.node++)];
  }
  world.local_size = per_node[static_cast<std::size_t>(world.node)];
  check_index("SLURM_LOCALID", world.local_rank, "ranks on this host", world.local_size);

  const std::string job = variables.text("SLURM_JOB_ID").value_or("0");
  world.job_id = fmt::format("slurm-{}.{}-{}", job, variables.text("SLURM_STEP_ID").value_or("0"),
                             variables.text("SLURM_RESTART_COUNT").value_or("0"));
  if (world.size > 1) {
    world.master_addr = variables.text("MASTER_ADDR").value_or(hosts.front());
    world.master_port = variables.port("MASTER_PORT", port_from(world.job_id));
  }
}

// RANK set by hand under srun must agree with srun, unless another launcher runs in between.
void check_torchrun_against_slurm(const World& world, const Variables& variables) {
  if (variables.has("TORCHELASTIC_RUN_ID") || !is_slurm_step(variables)) return;
  const auto rank = variables.integer("SLURM_PROCID"), size = variables.integer("SLURM_NTASKS");
  if (rank && size == world.size && rank != world.rank)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("RANK={} contradicts SLURM_PROCID={} (both of {} ranks)", world.rank,
                            *rank, world.size),
                "unset RANK and WORLD_SIZE under srun");
}

// Ranks are about to meet over the network without a job token: throws, or warns if the user
// accepts that.
void check_open_door(const World& world) {
  if (!env::get_boolean(env::kInsecure))
    throw Error(ErrorCode::unavailable,
                fmt::format("{} ranks would meet at {}, port {}, without a job token: any process "
                            "that reaches that port could read, join or stop the job",
                            world.size, world.master_addr, world.master_port),
                "write a token with `shoal token FILE`, copy it to every host, and set "
                "SHOAL_JOB_TOKEN_FILE=FILE for every rank (mpirun -x SHOAL_JOB_TOKEN_FILE); on a "
                "network of your own, SHOAL_INSECURE=1 goes without");
  if (world.rank == 0)
    log::warn(
        "SHOAL_INSECURE=1: any process that reaches {}, port {}, can read, join or stop this job",
        world.master_addr, world.master_port);
}

std::string scratch_directory() {
  const char* directory = std::getenv("TMPDIR");
  return directory && *directory ? directory : "/tmp";
}

}  // namespace

std::string_view to_string(Launcher launcher) {
  switch (launcher) {
    case Launcher::single:
      return "single process";
    case Launcher::open_mpi:
      return "Open MPI";
    case Launcher::torchrun:
      return "torchrun";
    case Launcher::slurm:
      return "SLURM";
    case Launcher::sagemaker:
      return "SageMaker";
  }
  return "unknown";
}

EnvironmentReader process_environment() {
  return [](std::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (!value) return std::nullopt;
    return value;
  };
}

World discover_world(const EnvironmentReader& environment, const DiscoveryPaths& paths) {
  const Variables variables(environment);
  World world;
  world.host = host_name();

  const bool mpi = variables.has("OMPI_COMM_WORLD_RANK") || variables.has("OMPI_COMM_WORLD_SIZE");
  const bool torchrun = variables.has("RANK") || variables.has("WORLD_SIZE");
  // mpirun may start one torchrun agent per host; workers inherit their agent's MPI variables.
  if (torchrun && (!mpi || variables.has("TORCHELASTIC_RUN_ID"))) {
    read_torchrun(world, variables);
    check_torchrun_against_slurm(world, variables);
  } else if (mpi) {
    read_open_mpi(world, variables, paths);
  } else if (variables.has("SLURM_PROCID") && is_slurm_step(variables)) {
    read_slurm(world, variables);
  } else if (const auto sagemaker = read_sagemaker(variables, paths)) {
    world.launcher = Launcher::sagemaker;
    world.rank = world.node = sagemaker->index;
    world.size = world.nodes = static_cast<int>(sagemaker->hosts.size());
    world.host = sagemaker->current;
    world.master_addr = sagemaker->hosts.front();
    world.master_port = variables.port("MASTER_PORT", kDefaultPort);
    world.job_id = "sagemaker-" + variables.text("TRAINING_JOB_NAME").value_or("job");
  } else {
    check_alone(variables);
    world.job_id = fmt::format("single-{}", ::getpid());
  }
  world.store_dir = variables.text(env::kStoreDir.name).value_or("");
  world.host = variables.text(env::kHostName.name).value_or(world.host);
  if (const int port = variables.integer(env::kStorePort.name).value_or(0); port != 0)
    world.master_port = variables.port(env::kStorePort.name, port);
  return world;
}

std::shared_ptr<Store> make_store(const World& world, Deadline deadline) {
  if (world.size == 1) return make_hash_store();
  if (!world.store_dir.empty()) return make_file_store(world.store_dir, world.job_id, world.size);
  if (world.launcher == Launcher::open_mpi && world.is_single_host() &&
      (world.master_addr.empty() || world.master_assumed))
    return make_temporary_file_store(scratch_directory(), world.job_id, world.rank, world.size);
  const std::string remedy =
      "set MASTER_ADDR (mpirun -x MASTER_ADDR=host) to the host of rank 0, or SHOAL_STORE_DIR to a "
      "directory that every host sees";
  if (world.master_addr.empty())
    throw Error(ErrorCode::unavailable,
                fmt::format("{} ranks on {} hosts, and {} does not say where rank 0 is", world.size,
                            world.nodes, to_string(world.launcher)),
                remedy);
  if (world.master_assumed && world.rank == 0 && !is_local_address(world.master_addr))
    throw Error(ErrorCode::unavailable,
                fmt::format("rank 0 runs on {}, but mpirun on {}, where the others look for it",
                            world.host, world.master_addr),
                remedy);
  // Ranks that share a host need no network, so none of it can reach them.
  const bool shares_host = world.is_single_host() && is_local_address(world.master_addr);
  const std::string address = shares_host ? "127.0.0.1" : world.master_addr;
  const JobToken token = JobToken::of_environment();
  if (!is_loopback(address) && !token.is_secret()) check_open_door(world);
  return make_tcp_store(address, world.master_port, world.rank == 0, world.size, deadline,
                        world.rank, token);
}

void settle_nodes(World& world, Store& store, Deadline deadline) {
  auto hosts = exchange_cards(store, "__shoal/hosts", world.rank, world.size, world.host, deadline,
                              "hosts", card_name_or_none);
  hosts[static_cast<std::size_t>(world.rank)] = world.host;
  std::map<std::string, std::pair<int, int>> seen;  // host -> (node, ranks so far)
  for (int rank = 0; rank < world.size; ++rank) {
    const auto place =
        seen.try_emplace(hosts[static_cast<std::size_t>(rank)], static_cast<int>(seen.size()), 0)
            .first;
    if (rank == world.rank) {
      world.node = place->second.first;
      world.local_rank = place->second.second;
    }
    ++place->second.second;
  }
  world.nodes = static_cast<int>(seen.size());
  world.local_size = seen.at(world.host).second;
}

}  // namespace shoal
