#include "options.h"

#include <array>

#include "collective_perf/bytes.h"
#include "parse_problem.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::perf {
namespace {

using collectives::Operation;
using collectives::ReduceOp;

constexpr std::array kOperations{std::pair{"all_reduce", Operation::all_reduce},
                                 std::pair{"reduce_scatter", Operation::reduce_scatter},
                                 std::pair{"all_gather", Operation::all_gather},
                                 std::pair{"broadcast", Operation::broadcast},
                                 std::pair{"reduce", Operation::reduce},
                                 std::pair{"gather", Operation::gather},
                                 std::pair{"scatter", Operation::scatter},
                                 std::pair{"all_to_all", Operation::all_to_all},
                                 std::pair{"barrier", Operation::barrier},
                                 std::pair{"send_recv", Operation::send}};

constexpr auto kReductions = [] {
  std::array<std::pair<std::string_view, ReduceOp>, collectives::kReduceTraits.size()> named{};
  for (std::size_t op = 0; op < named.size(); ++op)
    named.at(op) = {collectives::kReduceTraits.at(op).name, static_cast<ReduceOp>(op)};
  return named;
}();

template <typename Table>
auto look_up(const Table& table, const std::string& text, const char* what) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) {
    if (text == name) return value;
    names.emplace_back(name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not {}", text, what),
              names_there_are(text, names));
}

// Rejects a --place that the operation does not support: nothing would be measured.
void check_place(const Options& options, const std::string& operation) {
  const Places places = places_of(options.operation);
  SHOAL_CHECK((options.out_of_place && places.out) || (options.in_place && places.in),
              "{} is never {}; give no --place", operation,
              options.in_place ? "in place" : "out of place");
}

// Options that parse() converts.
struct Words {
  std::string operation = "all_reduce", dtype = "f32", reduction = "sum", memory = "symmetric";
  std::string min_bytes = "8", max_bytes = "64M", step_bytes = "0", place = "both";
  std::vector<std::string> sizes;
  int check = 1;
};

void declare(CLI::App& app, Words& words, Options& options) {
  app.add_option("operation", words.operation,
                 "all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, "
                 "all_to_all, barrier, send_recv (a ring of pairs)")
      ->capture_default_str();
  app.add_option("-b,--min-bytes", words.min_bytes, "first size (k, M, G: powers of 1024)")
      ->capture_default_str();
  app.add_option("-e,--max-bytes", words.max_bytes, "last size")->capture_default_str();
  app.add_option("-f,--step-factor", options.factor, "each size is the last one times this")
      ->capture_default_str();
  app.add_option("-i,--step-bytes", words.step_bytes, "... or the last one plus this");
  app.add_option("--sizes", words.sizes, "these sizes instead of a range")->delimiter(',');
  app.add_option("-n,--iterations", options.iterations,
                 "timed calls of each size; 0: about 0.2 s of them")
      ->capture_default_str();
  app.add_option("-w,--warmup", options.warm_up,
                 "calls before them; -1: 20 below 1 MiB, 2 from there, and 50 ms of them at least")
      ->capture_default_str();
  app.add_option("-d,--datatype", words.dtype, "f32, f64, bf16, f16, i8, u8, i32, i64")
      ->capture_default_str();
  app.add_option("-o,--op", words.reduction, "sum, prod, min, max, avg, premultiplied_sum")
      ->capture_default_str();
  app.add_option("-r,--root", options.root, "of broadcast, reduce, gather, scatter")
      ->capture_default_str();
  app.add_option("-c,--check", words.check, "1: count wrong elements; 0: do not")
      ->capture_default_str();
  app.add_option("--memory", words.memory,
                 "symmetric (the Communicator's own, as gradient buckets are) or user")
      ->capture_default_str();
  app.add_option("--place", words.place, "out, in or both: out of place, in place")
      ->capture_default_str();
  app.add_option("--backend", options.communicator.backend, "auto, native, mpi or nccl")
      ->default_val(env::get_string(env::kBackend));
  app.add_option("--algorithm", options.communicator.algorithm,
                 "forces one; default: the selection table's choice");
  app.add_option("--transport", options.communicator.transport,
                 "of native: shm, tcp, udp, efa or a libfabric provider; default: the best");
  app.add_flag("--fixed-order", options.communicator.fixed_order,
               "the same bits whatever the algorithm, slicing or ranks per host");
  app.add_option("--deadline", options.communicator.deadline_seconds,
                 "seconds any wait for another rank may last")
      ->default_val(deadlines::seconds());
  app.add_option(
         "--goodput", options.goodput,
         "bytes per second that can leave a host: prints the bound between hosts in us, and "
         "the share of it that is reached")
      ->default_val(env::get_real(env::kGoodput));
  app.add_flag("--json", options.json, "one JSON line a row instead of a table");
  app.add_flag("--explain", options.explain,
               "after each size: the algorithm and the rule or option that chose it");
}

void check(const Options& options, const Words& words) {
  SHOAL_CHECK(options.step_bytes > 0 || options.factor > 1,
              "-f {}: sizes must grow; give a factor above 1 or -i BYTES", options.factor);
  SHOAL_CHECK(options.min_bytes <= options.max_bytes, "-b {} is above -e {}", options.min_bytes,
              options.max_bytes);
  SHOAL_CHECK((options.op != ReduceOp::avg && options.op != ReduceOp::premultiplied_sum) ||
                  is_floating(options.dtype),
              "-o {} of {}: only floating dtypes; give -d f32, say", words.reduction, words.dtype);
  SHOAL_CHECK(options.goodput >= 0, "--goodput {}; give bytes per second, or leave it out",
              options.goodput);
  SHOAL_CHECK(options.iterations >= 0, "-n {}; give a number of calls, or 0", options.iterations);
  SHOAL_CHECK(options.communicator.deadline_seconds > 0, "--deadline {}; give seconds above 0",
              options.communicator.deadline_seconds);
  check_place(options, words.operation);
}

}  // namespace

Places places_of(Operation operation) {
  switch (operation) {
    case Operation::broadcast:
    case Operation::barrier:
      return {false, true};
    case Operation::all_to_all:
    case Operation::send:
      return {true, false};
    default:
      return {true, true};
  }
}

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  Words words;
  CLI::App app{
      "Times one collective operation over a range of sizes and checks every result.\n"
      "Run it under mpirun, torchrun-style variables or SLURM; rank 0 prints.\n"
      "  mpirun -n 2 shoal-collective-perf all_reduce -b 8 -e 256M -f 4",
      "shoal-collective-perf"};
  declare(app, words, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    terminal::print("{}", app.help());
    return std::nullopt;
  } catch (const CLI::ParseError& problem) {
    throw CLI::ParseError(app::parse_problem(app, problem), problem.get_exit_code());
  }

  options.operation = look_up(kOperations, words.operation, "an operation");
  options.op = look_up(kReductions, words.reduction, "a reduce operation");
  options.dtype = parse_dtype(words.dtype);
  options.memory = look_up(
      std::array{std::pair{"symmetric", Memory::symmetric}, std::pair{"user", Memory::user}},
      words.memory, "a kind of memory");
  options.min_bytes = parse_bytes(words.min_bytes);
  options.max_bytes = parse_bytes(words.max_bytes);
  options.step_bytes = parse_bytes(words.step_bytes);
  for (const std::string& size : words.sizes) options.sizes.push_back(parse_bytes(size));
  const auto [out, in] = look_up(
      std::array{std::pair{"both", std::pair{true, true}}, std::pair{"out", std::pair{true, false}},
                 std::pair{"in", std::pair{false, true}}},
      words.place, "a place");
  options.out_of_place = out;
  options.in_place = in;
  options.check = words.check != 0;
  check(options, words);
  return options;
}

}  // namespace shoal::perf
