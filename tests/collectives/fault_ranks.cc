// A rank that fails on command: fault_ranks DIRECTORY SCENARIO... with torchrun's variables. Each
// SCENARIO "what:victim" runs in its own process, and all ranks run the scenarios in step.
// DIRECTORY/SCENARIO.RANK then holds the exit status, the signal, the seconds since the fault and
// the rank's output. tests/collectives/cluster_faults_test.cc starts it, on emulated hosts or on
// one.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "fault_deadlines.h"
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/collectives/communicator.h"
#include "shoal/collectives/communicator_options.h"
#include "shoal/collectives/transport/fabric/fabric.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::collectives {
namespace {

constexpr double kPatience = 30, kStop = 1;  // seconds

double now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }
void sleep_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void write_whole(const std::string& path, const std::string& text) {
  std::ofstream(path + ".part") << text;
  std::filesystem::rename(path + ".part", path);
}

std::string read_whole(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

struct Scenario {
  std::string directory, name, what;
  int victim = 0, ordinal = 0;

  std::string file(const std::string& of) const { return directory + "/" + name + "." + of; }
  bool is_cut() const { return what == "cut"; }
};

void link(const char* state) {
  const std::string command = fmt::format("ip link set eth0 {}", state);
  if (std::system(command.c_str()) != 0) throw_error(ErrorCode::io, "{}", command);
}

// Runs only on the victim. It first writes down the time of the fault.
void go_wrong(const Scenario& scenario, Communicator& c, std::vector<float>& x) {
  const auto n = static_cast<std::int64_t>(x.size());
  write_whole(scenario.file("fault"), fmt::format("{:.6f}", now()));
  if (scenario.what == "kill") std::raise(SIGKILL);
  if (scenario.what == "stall" || scenario.what == "resume") std::raise(SIGSTOP);
  if (scenario.is_cut()) link("down");
  if (scenario.what == "count")
    c.all_reduce(x.data(), x.data(), n - 1, DType::f32, ReduceOp::max)->wait();
  if (scenario.what == "dtype")
    c.all_reduce(x.data(), x.data(), n, DType::i32, ReduceOp::max)->wait();
  if (scenario.what == "reduce")
    c.all_reduce(x.data(), x.data(), n, DType::f32, ReduceOp::avg)->wait();
  std::vector<float> part(7);
  if (scenario.what == "operation")
    c.reduce_scatter(x.data(), part.data(), 7, DType::f32, ReduceOp::sum)->wait();
  // A rank that only waits for another rank's data sends nothing itself.
  if (scenario.what == "waiting") c.broadcast(x.data(), n, DType::f32, 0)->wait();
  if (scenario.what == "order") c.barrier()->wait();
}

void run_rank(const Scenario& scenario) {
  World world = discover_world();
  const auto store = make_store(world, Deadline::in_seconds(kPatience));
  CommunicatorOptions options;
  options.deadline_seconds = deadline_of(scenario.what);
  options.flight_directory = scenario.file("flight");
  if (const char* transport = std::getenv("FAULT_TRANSPORT")) options.transport = transport;
  if (const char* backend = std::getenv("FAULT_BACKEND")) options.backend = backend;
  const auto c = make_communicator(world, *store, options);
  std::vector<float> x(200000, 1.0f);
  for (int i = 0; i < 10; ++i) {
    if (i == 5 && world.rank == scenario.victim) go_wrong(scenario, *c, x);
    c->all_reduce(x.data(), x.data(), 200000, DType::f32, ReduceOp::max)->wait();
    if (i >= 5) sleep_seconds(0.01);
    if (i == 5) c->barrier()->wait();
  }
}

// Runs the rank in a child process, because a killed rank cannot report.
pid_t start_rank(const Scenario& scenario, int rank) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int port = std::atoi(std::getenv("MASTER_PORT")) + 2 * scenario.ordinal;
  setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  int status = 0;
  try {
    run_rank(scenario);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "%s, rank %d: %s\n", scenario.name.c_str(), rank, problem.what());
    write_whole(scenario.file(fmt::format("{}.said", rank)), problem.what());
    status = 1;
  }
  std::fflush(nullptr);
  _exit(status);
}

bool all_others_ended(const Scenario& scenario, int rank, int size) {
  for (int other = 0; other < size; ++other)
    if (other != rank && !std::filesystem::exists(scenario.file(std::to_string(other))))
      return false;
  return true;
}

// Waits for the child. A stopped child is continued, or killed after the other ranks have ended, as
// a person would do.
int wait_for(const Scenario& scenario, pid_t pid, int rank, int size) {
  const double start = now();
  double stopped = 0;
  for (int status = 0;;) {
    if (waitpid(pid, &status, WNOHANG | WUNTRACED) == pid) {
      if (!WIFSTOPPED(status)) return status;
      stopped = now();
    }
    const bool late = now() - start > kPatience;
    if (stopped > 0 && scenario.what == "resume" && now() - stopped > kStop) {
      kill(pid, SIGCONT);
      stopped = 0;
    } else if (late || (stopped > 0 && all_others_ended(scenario, rank, size))) {
      kill(pid, SIGKILL);
    }
    sleep_seconds(0.005);
  }
}

void play(const Scenario& scenario, int rank, int size) {
  const int status = wait_for(scenario, start_rank(scenario, rank), rank, size);
  const double end = now();
  const std::string fault = read_whole(scenario.file("fault"));
  write_whole(scenario.file(std::to_string(rank)),
              fmt::format("{} {} {:.3f}\n{}", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                          WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                          end - (fault.empty() ? end : std::stod(fault)),
                          read_whole(scenario.file(fmt::format("{}.said", rank)))));
  const double start = now();
  while (!all_others_ended(scenario, rank, size) && now() - start < kPatience) sleep_seconds(0.005);
  if (scenario.is_cut() && rank == scenario.victim) link("up");
}

int run(int argc, char** argv) {
  const int rank = std::atoi(std::getenv("RANK")), size = std::atoi(std::getenv("WORLD_SIZE"));
  // Look for libfabric's devices once. In every child, the search would keep two cores busy for a
  // second.
  (void)fabric::fabric_providers();
  for (int i = 2; i < argc; ++i) {
    const std::string name = argv[i];
    const auto colon = name.find(':');
    if (colon == std::string::npos) throw_error(ErrorCode::invalid_argument, "{}", name);
    play({argv[1], name, name.substr(0, colon), std::stoi(name.substr(colon + 1)), i - 2}, rank,
         size);
  }
  return 0;
}

}  // namespace
}  // namespace shoal::collectives

int main(int argc, char** argv) {
  try {
    return shoal::collectives::run(argc, argv);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "fault_ranks: %s\n", problem.what());
    return 2;
  }
}
