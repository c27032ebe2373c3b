#include "options.h"

#include <algorithm>
#include <array>

#include "collective_perf/bytes.h"
#include "command_line.h"
#include "parse_problem.h"
#include "version.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::tune {
namespace {

using collectives::MemoryKind;
using collectives::Operation;

constexpr std::array kOperations{
    Operation::all_reduce, Operation::reduce_scatter, Operation::all_gather, Operation::broadcast,
    Operation::reduce,     Operation::gather,         Operation::scatter,    Operation::all_to_all};

Operation operation_of(const std::string& text) {
  std::vector<std::string> names;
  for (const Operation operation : kOperations) {
    if (text == collectives::to_string(operation)) return operation;
    names.emplace_back(collectives::to_string(operation));
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not an operation to tune", text),
              names_there_are(text, names));
}

std::vector<std::int64_t> ascending(const std::vector<std::string>& texts) {
  std::vector<std::int64_t> sizes;
  for (const std::string& text : texts) sizes.push_back(perf::parse_bytes(text));
  std::ranges::sort(sizes);
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

}  // namespace

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  std::vector<std::string> operations{"all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                      "reduce"};
  std::vector<std::string> sizes{"1k", "4k", "16k", "64k", "256k", "1M", "4M", "16M"};
  std::vector<std::string> slices{"256k", "512k", "2M"};
  std::string memory = "both";
  double margin = 5;
  CLI::App app{
      "Measures which algorithm suits each collective operation here, and writes the rules that\n"
      "beat the table in force in that table's grammar. Run it as the job will run:\n"
      "  mpirun -n 8 shoal-collective-tune -o cluster.tune\n"
      "  SHOAL_COLLECTIVES=@cluster.tune mpirun -n 8 shoal train run.json\n"
      "(or the option collectives: \"@cluster.tune\"). What does not gain steadily gets no rule, "
      "and\n"
      "each rule is measured again with the whole table in force before it is written.",
      "shoal-collective-tune"};
  app::set_help_style(app);
  app.set_version_flag("--version", "shoal-collective-tune " + app::version_and_build(),
                       "Print the version and exit");
  app.add_option("-o,--output", options.output, "file of the rules; default: standard output");
  app.add_option("--operations", operations, "which to tune")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--sizes", sizes, "bytes of the larger buffer (k, M, G: powers of 1024)")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--memory", memory,
                 "inside a host: symmetric (the Communicator's own), host (any other) or both")
      ->capture_default_str();
  app.add_option("--slices", slices,
                 "bytes of a message to try with the best algorithm between hosts; 0: none")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "times each candidate is measured, by turns")
      ->capture_default_str();
  app.add_option("--margin", margin, "per cent of the time that a rule must save")
      ->capture_default_str();
  app.add_option("--transport", options.communicator.transport,
                 "shm, tcp, udp, efa or a libfabric provider; default: the best");
  app.add_option("--collectives", options.communicator.collectives,
                 "rules in force before, after SHOAL_COLLECTIVES'");
  app.add_option("--deadline", options.communicator.deadline_seconds,
                 "seconds any wait for another rank may last")
      ->default_val(deadlines::seconds());
  app.add_flag("--json", options.json, "one JSON line a measured size instead of a table");
  app.add_flag(
      "--print", options.print,
      "print the rules in force for this group (built-in, SHOAL_COLLECTIVES, --collectives) "
      "and end");
  app.add_flag("-q,--quiet", options.quiet, "no progress bar");
  app::rarely(app, {"--memory", "--slices", "--margin", "--transport", "--collectives",
                    "--deadline", "--json", "--quiet"});
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {
    app::show_answer(app, answer);
    return std::nullopt;
  } catch (const CLI::ParseError& problem) {
    throw Error(ErrorCode::invalid_argument, app::parse_problem(app, problem));
  }
  for (const std::string& operation : operations)
    options.operations.push_back(operation_of(operation));
  options.sizes = ascending(sizes);
  options.slices = ascending(slices);
  std::erase(options.slices, 0);
  if (memory == "both")
    options.memory = {MemoryKind::symmetric, MemoryKind::host};
  else if (memory == "symmetric" || memory == "host")
    options.memory = {memory == "host" ? MemoryKind::host : MemoryKind::symmetric};
  else
    throw Error(ErrorCode::invalid_argument, fmt::format("--memory {}", memory),
                "use symmetric, host or both");
  SHOAL_CHECK(!options.sizes.empty() && options.sizes.front() > 0, "--sizes must be above 0");
  SHOAL_CHECK(options.rounds >= 3 && options.rounds <= 1000, "--rounds {}; 3 to 1000",
              options.rounds);
  SHOAL_CHECK(margin >= 0 && margin < 100, "--margin {}; 0 to 99 per cent", margin);
  SHOAL_CHECK(options.communicator.deadline_seconds > 0, "--deadline {}; give seconds above 0",
              options.communicator.deadline_seconds);
  options.margin = margin / 100;
  return options;
}

}  // namespace shoal::tune
