// The registry of environment variables. Every SHOAL_* variable is declared and documented here,
// and `shoal env` prints it.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::env {

enum class Kind { string, integer, real, boolean };

struct Variable {
  std::string_view name;
  Kind kind;
  std::string_view default_value;
  std::string_view help;
  std::string_view words = {};  // accepted values, if only some are: "auto on off"
  double min = std::numeric_limits<double>::lowest();  // accepted range of numbers, inclusive
  double max = std::numeric_limits<double>::max();
};

inline constexpr Variable kLog{"SHOAL_LOG", Kind::string, "info",
                               "lowest level logged: debug, info, warn, error or off",
                               "debug info warn warning error off"};
inline constexpr Variable kThreads{"SHOAL_THREADS",
                                   Kind::integer,
                                   "0",
                                   "threads inside kernels of each rank; 0: the cores this process "
                                   "may use, or the CPU quota of its "
                                   "control group, / the ranks that share them",
                                   {},
                                   0,
                                   4096};
inline constexpr Variable kDeadline{"SHOAL_DEADLINE_S",
                                    Kind::real,
                                    "600",
                                    "seconds any wait for another rank may last",
                                    {},
                                    0.1,
                                    1e8};
inline constexpr Variable kBackend{"SHOAL_BACKEND", Kind::string, "auto",
                                   "collective backend: auto, native, mpi or nccl",
                                   "auto native mpi nccl"};
inline constexpr Variable kFlightDir{
    "SHOAL_FLIGHT_DIR", Kind::string, "",
    "directory where each rank writes its last collectives down when one fails; empty: nowhere"};
inline constexpr Variable kStoreDir{
    "SHOAL_STORE_DIR", Kind::string, "",
    "directory that every rank sees, for a rendezvous through files instead of TCP"};
inline constexpr Variable kStorePort{
    "SHOAL_STORE_PORT",
    Kind::integer,
    "0",
    "TCP port of the rendezvous on rank 0's host; 0: MASTER_PORT, or what the launcher implies",
    {},
    0,
    65535};

inline constexpr Variable kJobToken{
    "SHOAL_JOB_TOKEN_FILE", Kind::string, "",
    "file with the job's secret (`shoal token FILE` writes one), by which its ranks admit each "
    "other over the network; the same secret on every host"};
inline constexpr Variable kInsecure{
    "SHOAL_INSECURE", Kind::boolean, "0",
    "1: ranks on several hosts meet without a job token, so any process that reaches rank 0's port "
    "can join or stop the job; 0: refused"};

inline constexpr Variable kFabricProvider{
    "SHOAL_FABRIC_PROVIDER", Kind::string, "",
    "libfabric provider between hosts: efa, tcp, udp or its own name; empty: the best there is"};
inline constexpr Variable kFabricInterfaces{
    "SHOAL_FABRIC_INTERFACES", Kind::string, "",
    "network interfaces (or networks) between hosts: eth0,eth1 or ^lo,docker0 (all but these)"};

inline constexpr Variable kGpuDirect{
    "SHOAL_GPUDIRECT", Kind::string, "auto",
    "messages between hosts straight from and into GPU memory (GPUDirect RDMA, libfabric's "
    "FI_HMEM): auto (where every rank of a group can) or off (through pinned host memory)",
    "auto off"};

inline constexpr Variable kHostName{
    "SHOAL_HOST_NAME", Kind::string, "",
    "this host's name, by which ranks find who shares memory with them; default: the system's. "
    "Several names on one machine make it look like several hosts"};

inline constexpr Variable kCollectives{
    "SHOAL_COLLECTIVES", Kind::string, "",
    "rules that choose algorithms, such as all_reduce:0-64k:@ring#^tree, or @FILE that holds some"};

inline constexpr Variable kGoodput{"SHOAL_GOODPUT",
                                   Kind::real,
                                   "0",
                                   "bytes per second that can leave a host; benchmarks print the "
                                   "bound that follows; 0: not known",
                                   {},
                                   0};

inline constexpr Variable kCudaAttention{
    "SHOAL_CUDA_ATTENTION", Kind::string, "auto",
    "who computes attention on a GPU: auto, cudnn (an error where it cannot), own (fused) or "
    "products (of whole score matrices)",
    "auto cudnn own products"};
inline constexpr Variable kCudaAttentionWorkspace{
    "SHOAL_CUDA_ATTENTION_WORKSPACE",
    Kind::integer,
    "1024",
    "MiB of scratch that attention's gradient, and attention by products, may take on a GPU: a "
    "batch "
    "that would need more goes in pieces; 0: never in pieces",
    {},
    0,
    1 << 30};

inline constexpr Variable kCudaBiasGradient{
    "SHOAL_CUDA_BIAS_GRADIENT", Kind::string, "auto",
    "who sums a bias's gradient on a GPU: auto (what is faster where algorithms are timed, else a "
    "pass), pass (of its own) or product (cuBLASLt, within the weight's gradient, where it can)",
    "auto pass product"};

inline constexpr Variable kStreamGates{
    "SHOAL_STREAM_GATES", Kind::boolean, "0",
    "1: GPU streams wait by themselves for collectives that hosts carry out (not yet tried on a "
    "GPU); 0: the calling thread does"};

inline constexpr Variable kCaptureBranches{
    "SHOAL_CAPTURE_BRANCHES", Kind::string, "auto",
    "captured steps of one GPU run the gradients of weights beside the rest of backward: auto "
    "(microbatches of at most 2048 positions), on or off",
    "auto on off"};

inline constexpr Variable kTorchSymmetric{
    "SHOAL_TORCH_SYMMETRIC", Kind::boolean, "0",
    "1: with PyTorch's backend shoal, PyTorch allocates large CPU tensors in memory that the ranks "
    "of a host share, so that collectives do not copy them; 0: in its own"};

// All variables above, in the order in which `shoal env` prints them.
std::span<const Variable> variables();

// Return the value from the environment, or the default. Throw invalid_argument, with the
// variable's name and the accepted values, if it cannot be parsed.
std::string get_string(const Variable& variable);
std::int64_t get_integer(const Variable& variable);
double get_real(const Variable& variable);
bool get_boolean(const Variable& variable);
bool is_set(const Variable& variable);
// Throws invalid_argument if get_*() would throw, or if the value is not one of `words`.
void check(const Variable& variable);
// The messages of check() for all variables with invalid values.
std::vector<std::string> problems();

// SHOAL_* names in this process's environment that are not declared; probably misspelt.
std::span<const std::string> unknown();

}  // namespace shoal::env
