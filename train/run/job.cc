#include <csignal>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/rendezvous/threads.h"
#include "shoal/train/run/failures.h"
#include "shoal/train/run/job_parts.h"

namespace shoal {
namespace {

const Option& option_named(const std::vector<Option>& options, std::string_view name) {
  for (const Option& option : options)
    if (option.name == name) return option;
  std::vector<std::string> names;
  for (const Option& option : options) names.push_back(option.name);
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no option --{}", shortened(name, 80)),
              names.empty() ? "the program has no options" : names_there_are(name, names));
}

std::string usage(const std::string& program, const std::vector<Option>& options) {
  std::string text = fmt::format("{} [--option value ...]\n", program);
  for (const Option& option : options)
    text += fmt::format("  --{:<20} {}{}\n", option.name, option.help,
                        option.value.empty() ? "" : fmt::format(" ({})", option.value));
  return text;
}

// The values of `options`; nullopt if help was requested.
std::optional<std::vector<std::string>> parsed(int argc, char** argv,
                                               const std::vector<Option>& options) {
  std::vector<std::string> values;
  for (const Option& option : options) values.push_back(option.value);
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--help" || word == "-h") return std::nullopt;
    if (!word.starts_with("--"))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("'{}' is no option", shortened(word, 80)),
                  "write --name value; --help lists the names");
    const std::size_t equals = std::min(word.find('='), word.size());
    const Option& option = option_named(options, word.substr(2, equals - 2));
    const auto index = static_cast<std::size_t>(&option - options.data());
    if (equals < word.size()) {
      values[index] = word.substr(equals + 1);
    } else if (i + 1 < argc) {
      values[index] = argv[++i];
    } else {
      throw Error(ErrorCode::invalid_argument, fmt::format("--{} has no value", option.name),
                  fmt::format("write --{} VALUE", option.name));
    }
  }
  return values;
}

collectives::CommunicatorOptions communicator_options(Compute& compute) {
  collectives::CommunicatorOptions options;
  options.stream = compute.kernels->stream();
  options.deadline_seconds = deadlines::seconds();
  options.counted_by = &compute.memory;
  options.pinned = compute.pinned.get();
  return options;
}

template <typename Number>
Number number_of(std::string_view name, const std::string& value) {
  const auto number = parse_number<Number>(value);
  if (!number)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--{} is '{}'", name, shortened(value, 80)),
                std::is_integral_v<Number> ? "give a whole number" : "give a number");
  return *number;
}

}  // namespace

Job::Parts::Parts(RunRanks& all_ranks)
    : ranks(all_ranks),
      device(choose_device(ranks.world(), false)),
      compute(device.device, threads_of_rank(ranks.world(), ranks.store(), deadlines::start()),
              memory_limit(std::nullopt, ranks.world(), device.device)),
      communicator(collectives::make_communicator(ranks.world(), ranks.store(),
                                                  communicator_options(compute))) {
  (void)communicator->host();  // creates it while all ranks take part
  ranks.stop_watching();       // the communicator watches them now
}

Job::Job(std::vector<Option> options, std::vector<std::string> values, std::unique_ptr<Parts> parts)
    : options_(std::move(options)), values_(std::move(values)), parts_(std::move(parts)) {}
Job::~Job() = default;

int Job::rank() const { return parts_->ranks.world().rank; }
int Job::ranks() const { return parts_->ranks.world().size; }
collectives::Communicator& Job::communicator() { return *parts_->communicator; }
void Job::print_text(const std::string& text) { terminal::print("{}", text); }

const std::string& Job::text(std::string_view option) const {
  const Option& named = option_named(options_, option);
  return values_[static_cast<std::size_t>(&named - options_.data())];
}
std::int64_t Job::integer(std::string_view option) const {
  return number_of<std::int64_t>(option, text(option));
}
double Job::number(std::string_view option) const {
  return number_of<double>(option, text(option));
}

int run(int argc, char** argv, const std::vector<Option>& options,
        const std::function<void(Job&)>& body) {
  restart_with_short_spins(argv);
  std::signal(SIGPIPE, SIG_IGN);
  const std::string program = argc > 0 ? std::filesystem::path(argv[0]).filename() : "program";
  const auto report = [&](const std::string& line) { report_error(program, line); };
  try {
    World world = discover_world();
    log::set_rank(world.rank, world.size);
    RunRanks ranks(std::move(world));
    const World& all = ranks.world();
    collectives::WatchedStore& store = ranks.store();
    std::optional<std::vector<std::string>> values;
    std::optional<Error> wrong;
    try {
      values = parsed(argc, argv, options);
    } catch (const Error& problem) {
      wrong = problem;
    }
    if (const int status =
            tell_failures(all, store, "options", wrong, deadlines::start(), {}, false, report);
        status != 0)
      return status;
    if (!values) {
      if (all.rank == 0) terminal::print("{}", usage(program, options));
      return 0;
    }
    std::unique_ptr<Job> job;
    try {
      job = std::make_unique<Job>(options, *std::move(values), std::make_unique<Job::Parts>(ranks));
      body(*job);
      job->communicator().host().barrier()->wait();
    } catch (const std::exception& problem) {
      const Error error = error_of(problem);
      if (job && all.size > 1 && error.code() != ErrorCode::aborted)
        job->communicator().abort(error.message());
      return tell_failures(
          all, store, "failed", error, Deadline::in_seconds(deadlines::kTellFailures),
          [&](int rank) { return ranks.is_gone(rank); }, false, report);
    }
  } catch (const std::exception& problem) {
    const Error error = error_of(problem);
    report(error.what());
    return exit_status(error.code());
  }
  terminal::finish_output();
  return 0;
}

}  // namespace shoal
