#include "shoal/sagemaker/container/launch.h"

#include <algorithm>
#include <array>
#include <set>
#include <sstream>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/job/instances.h"

namespace shoal::sagemaker {
namespace {

int integer_parameter(const Contract& c, const char* name, int otherwise) {
  const auto found = c.framework_parameters.find(name);
  if (found == c.framework_parameters.end() || found->is_null()) return otherwise;
  if (!found->is_number_integer() || found->get<std::int64_t>() < 1 ||
      found->get<std::int64_t>() > 4096)
    throw_error(ErrorCode::invalid_argument, "{} is {}; 1 to 4096 are allowed", name,
                shortened(found->dump(-1, ' ', false, Json::error_handler_t::replace)));
  return found->get<int>();
}

// --NCCL_DEBUG VALUE is the toolkit's own option; other words go to mpirun.
struct CustomOptions {
  std::optional<std::string> nccl_debug;
  std::vector<std::string> words;
};

CustomOptions custom_options(const Contract& c) {
  std::string text = c.framework_text("sagemaker_mpi_custom_mpi_options").value_or("");
  if (text.empty())
    text = c.framework_text("sagemaker_distributed_dataparallel_custom_mpi_options").value_or("");
  CustomOptions options;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    if (word == "--NCCL_DEBUG")
      stream >> options.nccl_debug.emplace();
    else if (word.starts_with("--NCCL_DEBUG="))
      options.nccl_debug = word.substr(13);
    else
      options.words.push_back(word);
  }
  return options;
}

// The variables on mpirun's command line, each set once. The job's mpirun options have priority
// over its environment, and that over our defaults. (With two -x of a name, mpirun would use the
// last.)
class MpirunVariables {
 public:
  MpirunVariables(std::vector<std::string>& words, const CustomOptions& custom,
                  const std::vector<std::string>& forwarded)
      : words_(words), forwarded_(forwarded) {
    for (std::size_t i = 0; i + 1 < custom.words.size(); ++i)
      if (custom.words[i] == "-x")
        said_.insert(custom.words[i + 1].substr(0, custom.words[i + 1].find('=')));
  }
  void set(const std::string& name, const std::string& value) {
    if (said_.insert(name).second) add(name + "=" + value);
  }
  void set_unless_forwarded(const std::string& name, const std::string& value) {
    if (std::ranges::find(forwarded_, name) == forwarded_.end()) set(name, value);
  }
  void forward() {
    for (const std::string& name : forwarded_)
      if (said_.insert(name).second) add(name);
  }

 private:
  void add(const std::string& word) { words_.insert(words_.end(), {"-x", word}); }
  std::vector<std::string>& words_;
  const std::vector<std::string>& forwarded_;
  std::set<std::string> said_;
};

// Sets FI_ variables for Shoal, MPI and the NCCL plugin, and NCCL_NET. Leaves NCCL_PROTO alone,
// since the plugin chooses the protocol for each instance type. Amazon's training toolkit sets it
// to simple, which was for plugins up to 1.5 and would disable LL128 with newer ones.
void set_fabric(const Contract& c, std::size_t hosts, MpirunVariables& variables) {
  const auto type = find_instance_type(c.instance_type);
  if (!type || !type->has_efa) return;
  variables.set_unless_forwarded("FI_PROVIDER", "efa");
  variables.set_unless_forwarded("FI_EFA_FORK_SAFE", "1");
  if (!has_device_rdma(c.instance_type)) return;
  // By default, libfabric enables RDMA only for programs with API 1.18 and on adapters newer than
  // p4d's.
  variables.set_unless_forwarded("FI_EFA_USE_DEVICE_RDMA", "1");
  // Without this, NCCL would fall back to sockets if the plugin fails. With it, NCCL fails with an
  // error.
  if (hosts > 1) variables.set_unless_forwarded("NCCL_NET", "AWS Libfabric");
}

std::vector<std::string> mpirun_words(const Contract& c, const Launch& launch,
                                      const MpirunWords& said) {
  std::vector<std::string> hosts;
  for (const std::string& host : launch.hosts)
    hosts.push_back(launch.ranks_per_host == 1 ? host
                                               : fmt::format("{}:{}", host, launch.ranks_per_host));
  const auto ranks = static_cast<int>(hosts.size()) * launch.ranks_per_host;
  const CustomOptions custom = custom_options(c);
  std::vector<std::string> words = {said.mpirun,
                                    "--host",
                                    fmt::format("{}", fmt::join(hosts, ",")),
                                    "-np",
                                    std::to_string(ranks),
                                    "--allow-run-as-root",
                                    "--tag-output",
                                    "--oversubscribe"};
  const auto add = [&words](std::initializer_list<std::string> more) {
    words.insert(words.end(), more);
  };
  const auto mca = [&add](const char* name, const std::string& value) {
    add({"-mca", name, value});
  };
  mca("btl_tcp_if_include", c.interface);
  mca("oob_tcp_if_include", c.interface);
  mca("plm_rsh_no_tree_spawn", "1");
  add({"-bind-to", "none", "-map-by", "slot"});
  mca("pml", "ob1");
  mca("btl", "^openib");
  mca("orte_abort_on_non_zero_status", "1");
  mca("btl_vader_single_copy_mechanism", "none");
  mca("plm_rsh_num_concurrent", std::to_string(hosts.size()));
  if (hosts.size() > 1 && !said.ssh.empty())
    mca("plm_rsh_args", fmt::format("{}", fmt::join(said.ssh, " ")));
  MpirunVariables variables(words, custom, said.forwarded);
  variables.set_unless_forwarded("NCCL_SOCKET_IFNAME", c.interface);
  if (custom.nccl_debug)
    variables.set("NCCL_DEBUG", *custom.nccl_debug);
  else
    variables.set_unless_forwarded("NCCL_DEBUG", "INFO");
  if (hosts.size() > 1) variables.set("MASTER_ADDR", launch.hosts.front());
  set_fabric(c, hosts.size(), variables);
  words.insert(words.end(), custom.words.begin(), custom.words.end());
  variables.forward();
  return words;
}

}  // namespace

std::string_view to_string(HostRole role) {
  switch (role) {
    case HostRole::single:
      return "single process";
    case HostRole::mpi_master:
      return "master of mpirun";
    case HostRole::mpi_worker:
      return "worker of mpirun";
    case HostRole::idle:
      return "idle";
  }
  return "unknown";
}

std::vector<std::string> names_to_forward(const std::vector<std::string>& names) {
  // AWS_: credentials (values, files, roles, addresses), region, endpoints, certificates.
  constexpr std::array<std::string_view, 10> kPrefixes = {"SM_",  "SAGEMAKER_",   "SHOAL_", "NCCL_",
                                                          "FI_",  "OMP_",         "GOMP_",  "CUDA_",
                                                          "AWS_", "TRAINING_JOB_"};
  // Search paths of programs, modules and libraries, proxies to S3, and a script's variables
  // (script_variables()).
  constexpr std::array<std::string_view, 11> kNames = {"PATH",
                                                       "PYTHONPATH",
                                                       "LD_LIBRARY_PATH",
                                                       "TMPDIR",
                                                       "http_proxy",
                                                       "https_proxy",
                                                       "HTTPS_PROXY",
                                                       "all_proxy",
                                                       "ALL_PROXY",
                                                       "no_proxy",
                                                       "ACCELERATE_TORCH_DEVICE"};
  std::vector<std::string> chosen;
  for (const std::string& name : names) {
    const bool has_prefix = std::ranges::any_of(
        kPrefixes, [&name](std::string_view prefix) { return name.starts_with(prefix); });
    const bool is_named = std::ranges::find(kNames, name) != kNames.end();
    if ((has_prefix || is_named) && name != "SHOAL_HOST_NAME" && !is_of_one_host(name))
      chosen.push_back(name);
  }
  std::ranges::sort(chosen);
  return chosen;
}

bool has_distribution(const Contract& c) {
  return std::ranges::any_of(
      std::array{"sagemaker_mpi_enabled", "sagemaker_distributed_dataparallel_enabled",
                 "sagemaker_torch_distributed_enabled", "sagemaker_pytorch_ddp_enabled",
                 "sagemaker_pytorch_xla_multi_worker_enabled"},
      [&c](const char* name) { return c.is_on(name); });
}

int ranks_of_a_host(const Contract& c) {
  const int asked =
      integer_parameter(c, "sagemaker_mpi_num_of_processes_per_host", std::max(1, c.hardware.gpus));
  return has_distribution(c) ? asked : 1;
}

void check_gpus(const Contract& c, const TrainCommand& command) {
  const auto type = find_instance_type(c.instance_type);
  if (command.on_cpu || !type || type->accelerator != Accelerator::cuda || type->gpus <= 0) return;
  const auto asked = c.framework_parameters.find("sagemaker_mpi_num_of_processes_per_host");
  const bool says_ranks =
      !has_distribution(c) || (asked != c.framework_parameters.end() && !asked->is_null());
  const int found = c.hardware.gpus;
  if (says_ranks ? found >= std::min(ranks_of_a_host(c), type->gpus) : found == type->gpus) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("host {} shows {} GPU{}, but its type, {}, has {}{}", c.current_host, found,
                  found == 1 ? "" : "s", c.instance_type, type->gpus,
                  c.hardware.gpu_problem.empty() ? "" : " (" + c.hardware.gpu_problem + ")"),
      "start the job again: another host will have them all; or set processes_per_host of "
      "mpi, or use_cpu");
}

Launch plan_launch(const Contract& c, const TrainCommand& command, const MpirunWords& mpirun) {
  Launch launch;
  const bool takes_part =
      std::ranges::find(c.distribution_groups, c.group) != c.distribution_groups.end();
  launch.ranks_per_host = ranks_of_a_host(c);
  if (!has_distribution(c)) {
    launch.hosts = c.hosts;
    launch.is_rank_0 = c.current_host == c.hosts.front();
    launch.words = command.words;
    return launch;
  }
  launch.hosts = c.distribution_hosts;
  if (!takes_part) {
    launch.role = HostRole::idle;
    return launch;
  }
  launch.is_rank_0 = c.is_master();
  if (launch.hosts.size() == 1 && launch.ranks_per_host == 1) {
    launch.words = command.words;
    return launch;
  }
  if (!c.is_master()) {
    launch.role = HostRole::mpi_worker;
    return launch;
  }
  launch.role = HostRole::mpi_master;
  launch.words = mpirun_words(c, launch, mpirun);
  launch.words.insert(launch.words.end(), command.words.begin(), command.words.end());
  return launch;
}

}  // namespace shoal::sagemaker
