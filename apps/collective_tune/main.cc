// shoal-collective-tune: measures algorithms and writes rules for those that gain.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <optional>

#include "bench.h"
#include "run_main.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/exit_status.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::tune {
namespace {

std::string_view name_of(MemoryKind memory) {
  return memory == MemoryKind::symmetric ? "symmetric" : "host";
}

std::string size_text(std::int64_t bytes) {
  if (bytes >= (1 << 20) && bytes % (1 << 20) == 0) return fmt::format("{} MiB", bytes >> 20);
  if (bytes >= (1 << 10) && bytes % (1 << 10) == 0) return fmt::format("{} KiB", bytes >> 10);
  return fmt::format("{} B", bytes);
}

// A progress bar on rank 0's standard error, if that is a terminal.
class Progress {
 public:
  Progress(bool shown, std::size_t total) : shown_(shown && isatty(2) != 0), total_(total) {}
  ~Progress() {
    if (shown_) fmt::print(stderr, "\r{:79}\r", "");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  void step(std::string_view what) {
    if (!shown_) return;
    const std::size_t filled = total_ == 0 ? 0 : done_ * 30 / total_;
    fmt::print(stderr, "\r[{:30}] {}/{} {:38}", std::string(filled, '#'), done_, total_, what);
    std::fflush(stderr);
    ++done_;
  }

 private:
  bool shown_;
  std::size_t total_, done_ = 0;
};

struct Measured {
  Gain gain;  // choice is automatic if nothing gains
  Choice usual;
  std::vector<Timed> candidates;
};

void print_measured(const Options& options, const Measured& m) {
  const Gain& g = m.gain;
  const bool gains = g.choice.algorithm != Algorithm::automatic;
  const MemoryKind memory = g.memory.value_or(MemoryKind::host);
  if (options.json) {
    nlohmann::ordered_json times;
    for (const Timed& timed : m.candidates)
      times[to_string(timed.choice)] = median(timed.seconds) * 1e6;
    const nlohmann::ordered_json row{{"operation", collectives::to_string(g.operation)},
                                     {"bytes", g.bytes},
                                     {"memory", name_of(memory)},
                                     {"ranks", g.ranks},
                                     {"nodes", g.nodes},
                                     {"default", to_string(m.usual)},
                                     {"default_us", g.default_seconds * 1e6},
                                     {"best", to_string(gains ? g.choice : m.usual)},
                                     {"best_us", g.seconds * 1e6},
                                     {"median_us", times}};
    terminal::print("{}\n", row.dump());
  } else {
    terminal::print(
        "  {:>5} {:>5} {:<14} {:>9} {:<9}  {:<22} {:>11.1f}  {:<22} {:>11.1f} {:>6.2f}x\n", g.ranks,
        g.nodes, collectives::to_string(g.operation), size_text(g.bytes), name_of(memory),
        to_string(m.usual), g.default_seconds * 1e6, gains ? to_string(g.choice) : "=",
        g.seconds * 1e6, g.default_seconds / g.seconds);
  }
  std::fflush(stdout);
}

Measured measure(Bench& bench, const Options& options, const Point& point) {
  Measured m;
  m.usual = bench.usual(point);
  m.candidates = bench.time(point, bench.choices(point));
  auto best = winner(m.candidates, options.margin);
  // Try other message lengths with the best algorithm so far.
  if (bench.nodes() > 1 && point.bytes >= (1 << 20)) {
    const Choice base = best ? m.candidates[*best].choice : m.usual;
    std::vector<Choice> sliced;
    for (const std::int64_t slice : options.slices)
      if (slice < point.bytes && slice != base.slice) sliced.push_back({base.algorithm, slice});
    if (best) sliced.push_back(base);
    auto again = bench.time(point, sliced);
    if (const auto better = winner(again, options.margin)) {
      m.candidates.insert(m.candidates.end(), again.begin() + 1, again.end());
      m.candidates.front() = again.front();
      best = m.candidates.size() - (again.size() - *better);
    }
  }
  m.gain = {point.operation,
            point.bytes,
            point.memory,
            bench.ranks(),
            bench.nodes(),
            {},
            median(m.candidates.front().seconds),
            median(m.candidates.front().seconds)};
  if (best) {
    m.gain.choice = m.candidates[*best].choice;
    m.gain.seconds = median(m.candidates[*best].seconds);
  }
  return m;
}

std::string text_of(const std::vector<Gain>& gains, const std::vector<std::int64_t>& sizes) {
  std::string text;
  for (const auto& rule : rules_of(gains, sizes)) text += collectives::to_string(rule) + "\n";
  return text;
}

// Ranks choose inlined data before they know each other's kind of memory. A rule about inlined data
// cannot name a kind of memory, so it must suit both kinds.
void join_memory(std::vector<Gain>& gains, const Options& options) {
  std::vector<Gain> joined;
  for (const Gain& gain : gains) {
    const auto twin = std::ranges::find_if(gains, [&](const Gain& other) {
      return other.operation == gain.operation && other.bytes == gain.bytes &&
             other.choice == gain.choice && other.memory != gain.memory;
    });
    const bool alike = twin != gains.end() || options.memory.size() == 1;
    Gain rule = gain;
    if (alike) rule.memory.reset();
    if (!alike && gain.choice.algorithm == Algorithm::inlined) continue;
    if (alike && std::ranges::any_of(joined, [&](const Gain& other) {
          return other.operation == gain.operation && other.bytes == gain.bytes && !other.memory;
        }))
      continue;
    joined.push_back(rule);
  }
  gains = std::move(joined);
}

// Measures again with all rules in force and keeps the rules that still gain.
std::vector<Gain> confirmed(Bench& bench, const Options& options, std::vector<Gain> gains,
                            Progress& progress) {
  const std::string rules = text_of(gains, options.sizes);
  std::vector<Gain> kept;
  for (Gain& gain : gains) {
    progress.step(
        fmt::format("again: {} {}", collectives::to_string(gain.operation), size_text(gain.bytes)));
    bool holds = true;
    double before = 0, after = 0;
    for (const MemoryKind memory : options.memory) {
      if ((gain.memory && *gain.memory != memory) ||
          (bench.nodes() > 1 && memory != options.memory.front()))
        continue;
      const auto timed = bench.time_rules({gain.operation, gain.bytes, memory}, rules);
      holds = holds && winner(timed, options.margin / 2).has_value();
      before = median(timed[0].seconds);
      after = median(timed[1].seconds);
    }
    if (!holds) continue;
    gain.default_seconds = before;
    gain.seconds = after;
    kept.push_back(gain);
  }
  return kept;
}

std::string tune_scope(Bench& bench, const Options& options, bool prints, std::string& summary) {
  std::vector<Gain> gains;
  // Between hosts, no rank knows the others' memory, so one kind is enough.
  const std::size_t kinds = bench.nodes() > 1 ? 1 : options.memory.size();
  Progress progress(prints && !options.quiet,
                    options.operations.size() * options.sizes.size() * kinds);
  for (const Operation operation : options.operations)
    for (std::size_t kind = 0; kind < kinds; ++kind)
      for (const std::int64_t bytes : options.sizes) {
        progress.step(fmt::format("{} {}", collectives::to_string(operation), size_text(bytes)));
        Measured m = measure(bench, options, {operation, bytes, options.memory[kind]});
        if (prints) print_measured(options, m);
        if (bench.nodes() > 1) m.gain.memory.reset();
        if (m.gain.choice.algorithm != Algorithm::automatic) gains.push_back(m.gain);
      }
  if (bench.nodes() == 1) join_memory(gains, options);
  Progress again(prints && !options.quiet, gains.size());
  const std::size_t found = gains.size();
  gains = confirmed(bench, options, std::move(gains), again);
  for (const Gain& gain : gains)
    summary +=
        fmt::format("//   {} of {}{}, {} ranks on {} host(s): {}, {:.2f}x as fast\n",
                    collectives::to_string(gain.operation), size_text(gain.bytes),
                    gain.memory ? fmt::format(" ({})", name_of(*gain.memory)) : "", gain.ranks,
                    gain.nodes, to_string(gain.choice), gain.default_seconds / gain.seconds);
  if (prints && !options.json)
    terminal::print("# {} of {} gains were there again with all rules in force\n", gains.size(),
                    found);
  return text_of(gains, options.sizes);
}

// The table's file, written under a temporary name and renamed, so that readers never see half a
// table. Opened before measuring, so that errors are reported early.
class TableFile {
 public:
  explicit TableFile(const std::string& path) : path_(path), beside_(path + ".part") {
    file_.open(beside_);
    check();
  }
  void write(const std::string& table) {
    file_ << table << std::flush;
    check();
    file_.close();
    check();
    if (std::rename(beside_.c_str(), path_.c_str()) != 0)
      refuse(std::generic_category().message(errno));
  }

 private:
  void check() {
    if (!file_) refuse(std::generic_category().message(errno));
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::io, fmt::format("cannot write the table to '{}': {}", path_, why),
                "give -o a path that can be written");
  }
  std::string path_, beside_;
  std::ofstream file_;
};

int tune(const Options& options, const World& world, Store& store) {
  const bool prints = world.rank == 0;
  std::optional<TableFile> file;
  if (prints && !options.output.empty()) file.emplace(options.output);
  if (prints && !options.json) {
    terminal::print(
        "# {} ranks on {} host(s); medians of {} rounds by turns, of the slowest rank\n",
        world.size, world.nodes, options.rounds);
    terminal::print("# {:>5} {:>5} {:<14} {:>9} {:<9}  {:<22} {:>11}  {:<22} {:>11} {:>7}\n",
                    "ranks", "hosts", "operation", "size", "memory", "default", "us", "best", "us",
                    "gain");
  }
  std::string rules, summary;
  for (const Scope scope : scopes_of(world)) {
    Bench bench(world, store, options, scope, options.communicator.collectives + "\n" + rules);
    if (bench.ranks() > 1) rules += tune_scope(bench, options, prints, summary);
  }
  if (!prints) return 0;
  const std::string table = fmt::format(
      "// shoal-collective-tune {}: {} ranks on {} host(s){}; used by SHOAL_COLLECTIVES=@FILE\n"
      "// {}\n{}{}",
      SHOAL_VERSION, world.size, world.nodes,
      options.communicator.transport.empty() ? "" : ", transport " + options.communicator.transport,
      summary.empty() ? "nothing beats the table in force" : "measured gains:", summary, rules);
  if (!file) {
    if (!options.json) terminal::print("{}", table);
    return 0;
  }
  file->write(table);
  if (options.json) return 0;
  const std::size_t number = collectives::parse_rules(rules, "tuned").size();
  if (number == 0)
    terminal::print("# no rule to write: nothing beats the table in force\n");
  else
    terminal::print("# {} rule(s) written; use them with SHOAL_COLLECTIVES=@{}\n", number,
                    options.output);
  return 0;
}

int run(Options options) {
  options.communicator.collectives =
      collectives::rules_text(options.communicator.collectives, "--collectives");
  const Deadline deadline = Deadline::in_seconds(options.communicator.deadline_seconds);
  World world = discover_world();
  log::set_rank(world.rank, world.size);
  const auto store = make_store(world, deadline);
  if (world.size > 1) settle_nodes(world, *store, deadline);
  if (options.print) {
    if (world.rank == 0)
      terminal::print(
          "{}",
          collectives::make_selector(options.communicator.collectives, world.local_size).print());
    return 0;
  }
  SHOAL_CHECK(world.size > 1,
              "a single rank has nothing to tune: start several, as with mpirun -n "
              "8 shoal-collective-tune");
  const int status = tune(options, world, *store);
  barrier(*store, "shoal-collective-tune/end", world.size,
          Deadline::in_seconds(options.communicator.deadline_seconds));
  return status;
}

}  // namespace
}  // namespace shoal::tune

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);
  return shoal::app::run_main("shoal-collective-tune", [&] {
    auto options = shoal::tune::parse(argc, argv);
    return options ? shoal::tune::run(std::move(*options)) : shoal::kDone;
  });
}
