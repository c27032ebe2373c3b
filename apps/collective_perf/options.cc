#include "options.h"

#include <algorithm>
#include <array>

#include "collective_perf/bytes.h"
#include "names.h"
#include "parse_problem.h"
#include "version.h"
#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::perf {
namespace {

using collectives::Operation;
using collectives::ReduceOp;

// nccl-tests' options that Shoal does not carry out.
struct NotDone {
  const char* names;
  const char* usual;  // the value that asks for nothing
  bool refused;       // else ignored, with a note
  const char* why;
};
constexpr std::array kNotDone{
    NotDone{"-G,--cudagraph", "0", false, "calls are timed as they are made, not in a CUDA graph"},
    NotDone{"-x,--cta_policy", "", false,
            "it is a setting of NCCL's; with --backend nccl set NCCL_CTA_POLICY"},
    NotDone{"-V,--device_cta_count", "", false, "it is a setting of -D, which Shoal does not have"},
    NotDone{"-D,--device_implementation", "0", true,
            "Shoal has no kernels of NCCL's device API to measure; leave -D out"}};

// nccl-tests' variables.
constexpr std::array kNotRead{"NCCL_TESTS_SPLIT", "NCCL_TESTS_SPLIT_MASK", "NCCL_TESTS_DEVICE",
                              "NCCL_TESTS_MIN_BW"};

// Options that parse() converts.
struct Words {
  std::string operation = "all_reduce", dtype = "float", reduction = "sum", root = "0";
  std::string min_bytes = "8", max_bytes = "64M", step_bytes = "0", place = "both";
  std::string memory = "symmetric", format = "table";
  std::vector<std::string> sizes;
  int registration = 2, average = 1, blocking = 2, per_iter = 0, cpu_time = 0, timestamps = 0;
  int parallel_init = 0, stream_null = 0;
  bool json = false;
  std::array<std::string, kNotDone.size()> not_done;
};

// Without CLI11's words for the range, which the help text has already.
CLI::Validator between(int least, int most) { return CLI::Range(least, most).description(""); }

void declare_sizes(CLI::App& app, Words& words, Options& options) {
  app.add_option("operation", words.operation,
                 "all_reduce, reduce_scatter, all_gather, broadcast, reduce, gather, scatter, "
                 "all_to_all, barrier, send_recv (a ring of pairs); default: that of the program's "
                 "name, as in all_reduce_perf")
      ->capture_default_str();
  app.add_option("-b,--minbytes", words.min_bytes, "first size (k, M, G: powers of 1024)")
      ->capture_default_str();
  app.add_option("-e,--maxbytes", words.max_bytes, "last size")->capture_default_str();
  app.add_option("-f,--stepfactor", options.factor, "each size is the last one times this")
      ->capture_default_str();
  app.add_option("-i,--stepbytes", words.step_bytes, "... or the last one plus this");
  app.add_option("--sizes", words.sizes, "these sizes instead of a range")->delimiter(',');
  app.add_option(
         "-d,--datatype", words.dtype,
         "int8, uint8, int32, int64, half, float, double, bfloat16 (Shoal's i8 to bf16 mean "
         "the same), or all")
      ->capture_default_str();
  app.add_option("-o,--op", words.reduction, "sum, prod, min, max, avg, mulsum, or all")
      ->capture_default_str();
  app.add_option("-r,--root", words.root, "of broadcast, reduce, gather, scatter; all: each rank")
      ->capture_default_str();
}

void declare_ranks(CLI::App& app, Words& words, Options& options) {
  app.add_option("-t,--nthreads", options.threads, "threads of each process")
      ->capture_default_str();
  app.add_option("-g,--ngpus", options.gpus,
                 "ranks of each thread, each on a GPU of its own; on a machine without GPUs, and "
                 "without -g, buffers are in host memory");
  app.add_option("-p,--parallel_init", words.parallel_init, "ranks always start in parallel");
  app.add_option("-R,--local_register", words.registration,
                 "0: any memory; 1: registered memory; 2: the Communicator's symmetric memory, "
                 "which gradient buckets use")
      ->capture_default_str()
      ->check(between(0, 2));
  app.add_option("-M,--memory", words.memory,
                 "symmetric or user, as -R 2 and -R 0. nccl-tests' 1, a report of memory, is "
                 "ignored");
  app.add_option("-u,--unalign", options.unalign, "index of the buffers' first element")
      ->capture_default_str()
      ->check(between(0, 1 << 20));
  app.add_option("-y,--stream_null", words.stream_null, "GPUs always use the default stream");
}

void declare_measurement(CLI::App& app, Words& words, Options& options) {
  app.add_option("-n,--iters", options.iterations,
                 "timed iterations of each size; 0: about 0.2 s of them")
      ->capture_default_str();
  app.add_option(
         "-w,--warmup_iters", options.warm_up,
         "iterations before them; -1: 20 below 1 MiB, 2 from there, and 50 ms of them at least")
      ->capture_default_str();
  app.add_option("-m,--agg_iters", options.together,
                 "calls of an iteration, in groups of as many as fit the buffers")
      ->capture_default_str();
  app.add_option("-N,--run_cycles", options.cycles, "times to go through the sizes; 0: for ever")
      ->capture_default_str();
  app.add_option("-a,--average", words.average,
                 "time of a row: 0: rank 0's; 1: the ranks' mean; 2: minimum; 3: maximum")
      ->capture_default_str()
      ->check(between(0, 3));
  app.add_option("-z,--blocking", words.blocking,
                 "wait for the calls 0: at the end; 1: one by one, with a barrier; 2: one by one; "
                 "3: one iteration at a time, with a barrier that is not timed")
      ->capture_default_str()
      ->check(between(0, 3));
  app.add_option("-c,--check", options.checks, "checked calls of each size; 0: none")
      ->capture_default_str();
  app.add_option("-T,--timeout,--deadline", options.communicator.deadline_seconds,
                 "seconds any wait for another rank may last; 0: SHOAL_DEADLINE_S")
      ->default_val(deadlines::seconds());
  for (std::size_t row = 0; row < kNotDone.size(); ++row)
    app.add_option(kNotDone.at(row).names, words.not_done.at(row),
                   fmt::format("{}: {}", kNotDone.at(row).refused ? "refused" : "ignored",
                               kNotDone.at(row).why));
}

void declare_output(CLI::App& app, Words& words, Options& options) {
  app.add_option("-I,--per_iter_timing", words.per_iter,
                 "1: time each call too, and print minimum, maximum, 99th percentile and "
                 "coefficient of variation");
  app.add_flag("--stats", options.stats, "the same as -I 1");
  app.add_option("-K,--per_iter_skip", options.skip, "leading calls that --stats leaves out");
  app.add_option("-C,--report_cputime", words.cpu_time,
                 "1: print the time that starting a call takes instead of the call's");
  app.add_option("-S,--report_timestamps", words.timestamps, "1: end each line with its time");
  app.add_option("-F,--format", words.format,
                 "table (nccl-tests'), csv, or json: one line a row, as in -J's results")
      ->capture_default_str();
  app.add_flag("--json", words.json, "the same as -F json");
  app.add_option("-J,--output_file", options.output_file,
                 "also write nccl-tests' JSON document to this new file (.json)");
  app.add_flag("--explain", options.explain,
               "after each size: the algorithm and the rule or option that chose it");
  app.add_option(
         "--goodput", options.goodput,
         "bytes per second that can leave a host: prints the bound between hosts in us, and "
         "the share of it that is reached")
      ->default_val(env::get_real(env::kGoodput));
}

void declare_choices(CLI::App& app, Words& words, Options& options) {
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
}

bool only_floating(ReduceOp op) { return !collectives::traits(op).no_integers.empty(); }

// All combinations of -d, -o and -r. A single one that Shoal lacks is an error; of several, it is
// left out.
std::vector<Case> cases(const Words& words, Operation operation, std::vector<std::string>& notes) {
  std::vector<DType> dtypes;
  if (words.dtype == "all") {
    dtypes = all_values(kDTypes);
    notes.push_back(
        fmt::format("-d all leaves out {}, which Shoal lacks", fmt::join(kNoDTypes, ", ")));
  } else {
    SHOAL_CHECK(std::ranges::find(kNoDTypes, words.dtype) == kNoDTypes.end(),
                "-d {}: Shoal lacks this dtype; give one of the same size, such as -d {}",
                words.dtype,
                words.dtype == "uint32"   ? "int32"
                : words.dtype == "uint64" ? "int64"
                                          : "uint8");
    dtypes = {look_up(kDTypes, words.dtype, "a dtype")};
  }
  std::vector<ReduceOp> ops{ReduceOp::sum};
  if (words.reduction == "all") {
    if (reduces(operation)) ops = all_values(kReductions);
  } else {
    ops = {look_up(kReductions, words.reduction, "a reduce operation")};
  }
  int root = -1;
  if (words.root != "all") {
    const auto number = parse_number<int>(words.root);
    SHOAL_CHECK(number && *number >= -1, "-r {}; give a rank, or all", words.root);
    root = *number;
  }
  if (!has_root(operation)) root = 0;
  std::vector<Case> cases;
  bool left_out = false;
  for (const DType dtype : dtypes)
    for (const ReduceOp op : ops) {
      if (only_floating(op) && !is_floating(dtype)) {
        SHOAL_CHECK(dtypes.size() * ops.size() > 1,
                    "-o {} of {}: only floating dtypes; give -d float, say", name_of(op),
                    name_of(dtype));
        left_out = true;
        continue;
      }
      cases.push_back({dtype, op, root});
    }
  if (left_out) notes.emplace_back("avg and mulsum of integers are left out: only floating dtypes");
  return cases;
}

// Rejects a --place that the operation does not support: nothing would be measured.
void check_place(const Options& options) {
  const Places places = places_of(options.operation);
  SHOAL_CHECK((options.out_of_place && places.out) || (options.in_place && places.in),
              "{} is never {}; give no --place", name_of(options.operation),
              options.in_place ? "in place" : "out of place");
}

void check(const Options& options) {
  SHOAL_CHECK(options.step_bytes > 0 || options.factor > 1,
              "-f {}: sizes must grow; give a factor above 1 or -i BYTES", options.factor);
  SHOAL_CHECK(options.min_bytes <= options.max_bytes, "-b {} is above -e {}", options.min_bytes,
              options.max_bytes);
  SHOAL_CHECK(options.goodput >= 0, "--goodput {}; give bytes per second, or leave it out",
              options.goodput);
  SHOAL_CHECK(options.iterations >= 0, "-n {}; give a number of iterations, or 0",
              options.iterations);
  SHOAL_CHECK(options.together >= 1, "-m {}; give at least one call", options.together);
  SHOAL_CHECK(options.cycles >= 0, "-N {}; give a number of cycles, or 0 for ever", options.cycles);
  SHOAL_CHECK(options.checks >= 0, "-c {}; give a number of checked calls, or 0", options.checks);
  SHOAL_CHECK(options.threads >= 1 && options.threads <= 1024, "-t {}; give 1 to 1024 threads",
              options.threads);
  SHOAL_CHECK(options.gpus >= 0 && options.gpus <= 1024, "-g {}; give 1 to 1024 GPUs, or no -g",
              options.gpus);
  SHOAL_CHECK(ranks_here(options) == 1 || options.communicator.backend != "mpi",
              "-t {} -g {}: with --backend mpi, a process is one rank; start mpirun -n {} instead",
              options.threads, options.gpus, ranks_here(options));
  SHOAL_CHECK(options.skip >= 0 && (options.iterations == 0 || options.skip < options.iterations),
              "-K {}; give less than the {} iterations of -n", options.skip, options.iterations);
  SHOAL_CHECK(options.skip == 0 || options.stats, "-K {} needs --stats", options.skip);
  SHOAL_CHECK(options.output_file.empty() || options.output_file.ends_with(".json"),
              "-J {}; only JSON is written, so give a name that ends in .json",
              options.output_file);
  SHOAL_CHECK(options.output_file.empty() || options.cycles > 0,
              "-J {} is written at the end, and -N 0 has none; give -N 1, say",
              options.output_file);
  SHOAL_CHECK(options.communicator.deadline_seconds > 0, "--deadline {}; give seconds above 0",
              options.communicator.deadline_seconds);
  check_place(options);
}

Memory memory_of(const Words& words, bool registration_given, std::vector<std::string>& notes) {
  constexpr auto kKinds = std::to_array<Name<Memory>>({{"symmetric", Memory::symmetric},
                                                       {"registered", Memory::registered},
                                                       {"user", Memory::user}});
  if (words.memory == "1") notes.emplace_back("-M 1 is ignored: memory in use is not reported");
  if (registration_given || words.memory == "0" || words.memory == "1")
    return words.registration == 2   ? Memory::symmetric
           : words.registration == 1 ? Memory::registered
                                     : Memory::user;
  return look_up(kKinds, words.memory, "a kind of memory");
}

void convert(const Words& words, const CLI::App& app, Options& options) {
  options.operation = look_up(kOperations, words.operation, "an operation");
  options.cases = cases(words, options.operation, options.notes);
  options.memory = memory_of(words, app.count("-R") > 0, options.notes);
  options.min_bytes = parse_bytes(words.min_bytes);
  options.max_bytes = parse_bytes(words.max_bytes);
  options.step_bytes = parse_bytes(words.step_bytes);
  if (options.step_bytes > 0 && app.count("-f") > 0 && options.factor > 1) {
    options.notes.push_back(fmt::format("-i {} is ignored: -f is given", words.step_bytes));
    options.step_bytes = 0;
  }
  for (const std::string& size : words.sizes) options.sizes.push_back(parse_bytes(size));
  const auto [out, in] = look_up(
      std::array{std::pair{"both", std::pair{true, true}}, std::pair{"out", std::pair{true, false}},
                 std::pair{"in", std::pair{false, true}}},
      words.place, "a place");
  options.out_of_place = out;
  options.in_place = in;
  options.format =
      words.json
          ? Format::json
          : look_up(std::array{std::pair{"table", Format::table}, std::pair{"csv", Format::csv},
                               std::pair{"json", Format::json}},
                    words.format, "a format");
  options.average = static_cast<Average>(words.average);
  options.blocking = static_cast<Blocking>(words.blocking);
  options.stats |= words.per_iter != 0;
  options.cpu_time = words.cpu_time != 0;
  options.timestamps = words.timestamps != 0;
  if (options.communicator.deadline_seconds == 0)
    options.communicator.deadline_seconds = deadlines::seconds();
  for (std::size_t row = 0; row < kNotDone.size(); ++row) {
    const NotDone& option = kNotDone.at(row);
    const std::string& value = words.not_done.at(row);
    if (value.empty() || value == option.usual) continue;
    const std::string text = fmt::format("{:.2} {} is {}: {}", option.names, value,
                                         option.refused ? "refused" : "ignored", option.why);
    SHOAL_CHECK(!option.refused, "{}", text);
    options.notes.push_back(text);
  }
  for (const char* variable : kNotRead)
    if (process_environment()(variable))
      options.notes.push_back(fmt::format("{} is ignored: Shoal does not read it", variable));
}

// nccl-tests has a program for each operation: "all_reduce" of .../all_reduce_perf_mpi.
std::string operation_named(std::string program) {
  program.erase(0, program.rfind('/') + 1);
  const auto end = program.find("_perf");
  return end == std::string::npos ? "" : program.substr(0, end);
}

}  // namespace

std::string_view name_of(DType dtype) { return first_name(kDTypes, dtype); }
std::string_view name_of(ReduceOp op) { return first_name(kReductions, op); }
std::string_view name_of(Operation operation) { return first_name(kOperations, operation); }

Places places_of(Operation operation) {
  switch (operation) {
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
  options.words.assign(argv, argv + argc);
  Words words;
  if (const std::string named = operation_named(options.words.front()); !named.empty())
    words.operation = named;
  CLI::App app{
      "Times one collective operation over a range of sizes and checks every result. Options and\n"
      "output are those of nccl-tests. Run it under mpirun, torchrun-style variables or SLURM, or\n"
      "with -t or -g; rank 0 prints.\n"
      "  mpirun -n 2 shoal-collective-perf all_reduce -b 8 -e 256M -f 4",
      "shoal-collective-perf"};
  app.set_version_flag("--version", "shoal-collective-perf " + app::version_and_build(),
                       "Print the version and exit");
  declare_sizes(app, words, options);
  declare_ranks(app, words, options);
  declare_measurement(app, words, options);
  declare_output(app, words, options);
  declare_choices(app, words, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& answer) {  // --help, --version
    app::show_answer(app, answer);
    return std::nullopt;
  } catch (const CLI::ParseError& problem) {
    throw CLI::ParseError(app::parse_problem(app, problem), problem.get_exit_code());
  }
  convert(words, app, options);
  check(options);
  return options;
}

}  // namespace shoal::perf
