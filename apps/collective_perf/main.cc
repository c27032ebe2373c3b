// shoal-collective-perf: the equivalent of nccl-tests' *_perf programs. Exit status 1 if a result
// is wrong.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>
#include <thread>

#include "measure.h"
#include "options.h"
#include "print.h"
#include <CLI/CLI.hpp>
#include <unistd.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/free_memory.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/device/identity.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::perf {
namespace {

std::vector<std::int64_t> sizes_of(const Options& options) {
  if (!options.sizes.empty()) return options.sizes;
  if (options.operation == collectives::Operation::barrier) return {0};
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = options.min_bytes; bytes <= options.max_bytes;) {
    sizes.push_back(bytes);
    const double grown = static_cast<double>(bytes) * options.factor;
    const auto next = options.step_bytes > 0 ? bytes + options.step_bytes
                      : grown <= static_cast<double>(options.max_bytes)
                          ? static_cast<std::int64_t>(grown)
                          : options.max_bytes + 1;
    bytes = std::max(next, bytes + 1);
  }
  return sizes;
}

void print_note(const std::string& text) {
  terminal::print(stderr, "shoal-collective-perf: {}\n", text);
}

// Returns the exit status. Prints the problem if this rank, of all that have it, `speaks`. A
// launcher ends every rank when the first one fails, so each waits until another has spoken.
int fail(const std::exception& problem, bool speaks) {
  const bool of_words = dynamic_cast<const CLI::ParseError*>(&problem) != nullptr;
  const Error error =
      of_words ? Error(ErrorCode::invalid_argument, problem.what()) : error_of(problem);
  if (speaks) print_note(error.what());
  std::this_thread::sleep_for(std::chrono::duration<double>(deadlines::kTellOfDeath));
  return exit_status(error.code());
}

// True for one rank. If the store is gone, for each.
bool is_first_to_fail(Store& store) {
  try {
    return store.compare_set("shoal-collective-perf/failed", std::nullopt, "1");
  } catch (const std::exception&) {
    return true;
  }
}

// With -g, the rank's GPU. Without GPUs, its buffers are in host memory.
Device device_of_rank(const Options& options, const World& world) {
  if (options.gpus == 0) return Device::cpu();
  const int gpus = device_backend(DeviceType::cuda).count();
  if (gpus == 0) {
    if (world.rank == 0)
      print_note(
          fmt::format("-g {}: this machine or build has no GPU, so the {} rank(s) of each "
                      "process use host memory",
                      options.gpus, ranks_here(options)));
    return Device::cpu();
  }
  SHOAL_CHECK(world.local_size <= gpus,
              "-t {} -g {}: {} GPUs requested on {}, but only {} were found; start fewer ranks, or "
              "leave out -g to measure host memory",
              options.threads, options.gpus, world.local_size, world.host, gpus);
  return Device::cuda(world.local_rank);
}

struct Card {
  Seat seat;
  std::int64_t most_bytes = 0;  // of a buffer, for which this rank's host has memory
};

std::vector<Card> exchange_seats(const World& world, Store& store, Device device,
                                 Deadline deadline) {
  // Two buffers a rank, and a fifth is left free.
  const std::int64_t free = free_memory().free;
  const std::int64_t most = free < 0 ? std::int64_t{1} << 60 : free / 5 * 4 / 2 / world.local_size;
  const bool on_host = device.is_cpu();
  const std::string own =
      fmt::format("{}\n{}\n{}\n{}\n{}\n{}", ::getpid(), device.index, most, host_name(),
                  on_host ? "host" : device_identity(device),
                  on_host ? processor() : device_backend(device.type).describe(device));
  return exchange_cards(store, "shoal-collective-perf/seats", world.rank, world.size, own, deadline,
                        "processes", [](std::string_view card) {
                          CardFields fields(card, '\n');
                          Card read;
                          read.seat.pid = fields.number<int>("process");
                          read.seat.index = fields.number<int>("device");
                          read.most_bytes = fields.number<std::int64_t>("memory");
                          read.seat.host = fields.next("host");
                          read.seat.identity = fields.next("identity");
                          read.seat.device = fields.rest("name");
                          return read;
                        });
}

// As nccl-tests does. --sizes are as the user wrote them.
void limit_to_memory(Options& options, const std::vector<Card>& cards, bool prints) {
  std::int64_t most = options.max_bytes;
  for (const Card& card : cards) most = std::min(most, card.most_bytes);
  if (!options.sizes.empty() || most == options.max_bytes) return;
  options.max_bytes = most;
  options.min_bytes = std::min(options.min_bytes, most);
  if (prints) print_note(fmt::format("Reducing maxBytes to {} due to memory limitation", most));
}

// Measures all cases; returns whether every result is right. Collective.
bool measure(const Options& options, collectives::Communicator& communicator, Report* report) {
  const std::vector<std::int64_t> sizes = sizes_of(options);
  bool right = true;
  Bench bench(options, *std::ranges::max_element(sizes), communicator);
  for (std::int64_t cycle = 0; options.cycles == 0 || cycle < options.cycles; ++cycle)
    for (const Case& each : options.cases) {
      const int first = each.root < 0 ? 0 : each.root;
      const int last = each.root < 0 ? communicator.size() - 1 : each.root;
      for (int root = first; root <= last; ++root)
        for (const std::int64_t bytes : sizes) {
          const Result result = bench.run({each.dtype, each.op, root}, bytes);
          for (const auto& timing : {result.out_of_place, result.in_place})
            right &= !timing || timing->wrong <= 0;
          if (report != nullptr) report->row(result);
        }
    }
  // No rank may free memory that other ranks still map.
  communicator.barrier(Stream{communicator.memory_resource().device(), nullptr})->wait();
  return right;
}

bool run_rank(Options options, World world, Store& store) {
  const auto deadline = [&] { return Deadline::in_seconds(options.communicator.deadline_seconds); };
  if (world.size > 1) settle_nodes(world, store, deadline());
  const bool prints = world.rank == 0;
  for (const std::string& note : options.notes)
    if (prints) print_note(note);
  for (const Case& each : options.cases)
    SHOAL_CHECK(each.root < world.size, "-r {} in a group of {}", each.root, world.size);
  const Device device = device_of_rank(options, world);
  options.communicator.stream = {device, nullptr};
  std::vector<Card> cards = exchange_seats(world, store, device, deadline());
  limit_to_memory(options, cards, prints);
  const auto communicator = make_communicator(world, store, options.communicator);
  const double bound =  // seconds per byte
      options.goodput > 0 ? host_factor(options.operation, world.nodes) / options.goodput : 0;
  std::unique_ptr<Report> report;
  if (prints) {
    std::vector<Seat> seats;
    for (Card& card : cards) seats.push_back(std::move(card.seat));
    report = std::make_unique<Report>(options, *communicator, std::move(seats), bound);
    report->begin();
  }
  const bool right = measure(options, *communicator, report.get());
  // Before rank 0 writes its results, so that no rank waits for it if that fails.
  if (world.size > 1) barrier(store, "shoal-collective-perf/end", world.size, deadline());
  if (report) report->end();
  return right;
}

// The World of one of a process's ranks, of which there are `here`.
World rank_of_process(World process, int index, int here) {
  process.rank = process.rank * here + index;
  process.size *= here;
  process.local_rank = process.local_rank * here + index;
  process.local_size *= here;
  return process;
}

int run(const Options& options) {
  const int here = ranks_here(options);
  const World process = discover_world();
  log::set_rank(process.rank * here, process.size * here);
  std::shared_ptr<Store> store;
  try {
    store = make_store(process, Deadline::in_seconds(options.communicator.deadline_seconds));
  } catch (const std::exception& problem) {
    return fail(problem, process.local_rank == 0);  // without a store: once a host
  }
  std::atomic<int> status = kDone;
  const auto fails = [&status](int why) {  // other ranks' failures follow from the first one
    int none = kDone;
    status.compare_exchange_strong(none, why);
  };
  const auto run_one = [&](int index) {
    try {
      if (!run_rank(options, rank_of_process(process, index, here), *store)) fails(kFailed);
    } catch (const std::exception& problem) {
      fails(fail(problem, is_first_to_fail(*store)));
    }
  };
  std::vector<std::thread> others;
  for (int index = 1; index < here; ++index) others.emplace_back(run_one, index);
  run_one(0);
  for (std::thread& other : others) other.join();
  return status;
}

// Every rank reads the same command line, so rank 0 reports its errors.
bool is_rank_0() {
  try {
    return discover_world().rank == 0;
  } catch (const std::exception&) {
    return true;
  }
}

}  // namespace
}  // namespace shoal::perf

int main(int argc, char** argv) {
  using shoal::perf::fail;
  using shoal::perf::is_rank_0;
  std::signal(SIGPIPE, SIG_IGN);
  try {
    std::optional<shoal::perf::Options> options;
    try {
      options = shoal::perf::parse(argc, argv);
    } catch (const std::exception& problem) {
      return fail(problem, is_rank_0());
    }
    const int status = options ? shoal::perf::run(*options) : shoal::kDone;
    if (status == shoal::kDone) shoal::terminal::finish_output();
    return status;
  } catch (const std::exception& problem) {
    return fail(problem, true);
  }
}
