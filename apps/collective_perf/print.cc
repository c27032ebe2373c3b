#include "print.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "version.h"
#include <fmt/format.h>

#include "shoal/collectives/call.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::perf {
namespace {

// As nccl-tests' getFloatStr(): as many decimals as fit the column.
std::string fitted(double value, std::size_t width) {
  for (const int decimals : {2, 1, 0})
    if (auto text = fmt::format("{:{}.{}f}", value, width, decimals); text.size() <= width)
      return text;
  return fmt::format("{:{}.{}e}", value, width, width >= 7 ? 1 : 0);
}

std::string variation(const Spread& spread) {
  return fitted(spread.mean > 0 ? spread.deviation / spread.mean * 100 : 0, 7);
}

}  // namespace

std::string_view name_of(Memory memory) {
  return memory == Memory::symmetric    ? "symmetric"
         : memory == Memory::registered ? "registered"
                                        : "user";
}

std::string time_now() {
  std::tm local{};
  const std::time_t seconds = std::time(nullptr);
  ::localtime_r(&seconds, &local);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

Report::Report(const Options& options, const collectives::Communicator& communicator,
               std::vector<Seat> seats, double bound)
    : options_(options),
      communicator_(communicator),
      seats_(std::move(seats)),
      bound_(bound),
      started_(time_now()) {}

double Report::algbw(const Result& result, const Timing& timing) const {
  return timing.mean > 0 ? static_cast<double>(result.bytes) / timing.mean * 1e-9 : 0;
}

double Report::busbw(const Result& result, const Timing& timing) const {
  return algbw(result, timing) * bus_factor(options_.operation, communicator_.size());
}

double Report::reached(const Result& result, const Timing& timing) const {
  return timing.mean > 0 ? bound_ * static_cast<double>(result.bytes) / timing.mean : 0;
}

double Report::microseconds(const Timing& timing) const {
  return (options_.cpu_time ? timing.cpu : timing.mean) * 1e6;
}

std::string_view Report::redop(const Result& result) const {
  return reduces(options_.operation) ? name_of(result.what.op) : "none";
}

int Report::root(const Result& result) const {
  return has_root(options_.operation) ? result.what.root : -1;
}

std::string Report::cells(const Result& result, const std::optional<Timing>& timing) const {
  // Every line has the same columns, and readers expect numbers in them.
  std::string text =
      timing
          ? fmt::format(
                "  {}  {}  {}  {:>6}", fitted(microseconds(*timing), 7),
                fitted(algbw(result, *timing), 6), fitted(busbw(result, *timing), 6),
                timing->wrong < 0 ? "N/A" : fmt::format("{:g}", static_cast<double>(timing->wrong)))
          : fmt::format("  {:7.2f}  {:6.2f}  {:6.2f}  {:>6}", 0.0, 0.0, 0.0, "N/A");
  if (!options_.stats) return text;
  if (!timing) return text + fmt::format("  {0:7.2f}  {0:7.2f}  {0:7.2f}  {0:7.2f}", 0.0);
  const Spread spread = spread_of(timing->calls, options_.skip);
  return text + fmt::format("  {}  {}  {}  {}", fitted(spread.minimum * 1e6, 7),
                            fitted(spread.maximum * 1e6, 7), fitted(spread.p99 * 1e6, 7),
                            variation(spread));
}

std::string Report::bound_cells(const Result& result) const {
  if (bound_ <= 0) return {};
  const auto share = [&](const std::optional<Timing>& timing) {
    return timing ? fmt::format("{:>8.3f}", reached(result, *timing)) : fmt::format("{:>8}", "-");
  };
  return fmt::format("  {:>12.2f} {} {}", bound_ * static_cast<double>(result.bytes) * 1e6,
                     share(result.out_of_place), share(result.in_place));
}

void Report::settings() const {
  terminal::print("# shoal-collective-perf version {}{}{}, backend {}{}{}{}{}, {} memory\n",
                  SHOAL_VERSION, *app::commit() == '\0' ? "" : " commit ", app::commit(),
                  communicator_.backend(),
                  communicator_.statistics().transport.empty() ? "" : " over ",
                  communicator_.statistics().transport,
                  options_.communicator.algorithm.empty() ? "" : ", algorithm asked for: ",
                  options_.communicator.algorithm, name_of(options_.memory));
  terminal::print("# Collective test starting: {}_perf\n", name_of(options_.operation));
  const bool steps = options_.step_bytes > 0;
  terminal::print(
      "# nThread {} nGpus {} minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg "
      "iters: {} validation: {} graph: 0 unalign: {}\n",
      options_.threads, std::max(1, options_.gpus), options_.min_bytes, options_.max_bytes,
      steps ? static_cast<double>(options_.step_bytes) : options_.factor,
      steps ? "bytes" : "factor", options_.warm_up, options_.iterations, options_.together,
      options_.checks, options_.unalign);
  switch (options_.blocking) {
    case Blocking::at_the_end:
      break;
    case Blocking::every_call_and_barrier:
      terminal::print("# Blocking Enabled: wait and barrier after each inner iteration (-m) \n");
      break;
    case Blocking::every_call:
      terminal::print("# Blocking Enabled: wait after each inner iteration (-m), no barrier \n");
      break;
    case Blocking::every_iteration:
      terminal::print(
          "# Blocking Enabled: wait and barrier after each outer iteration (-n); time excludes "
          "barrier \n");
  }
  const Places places = places_of(options_.operation);
  if (!options_.out_of_place || !places.out)
    terminal::print("# out-of-place is not measured: its columns are 0\n");
  if (!options_.in_place || !places.in)
    terminal::print("# in-place is not measured: its columns are 0\n");
  terminal::print("#\n# Using devices\n");
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) {
    const Seat& seat = seats_[rank];
    terminal::print("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [{}] {}\n", rank, 0,
                    seat.pid, seat.host, seat.index, seat.identity, seat.device);
  }
}

void Report::table_head() const {
  const bool bounded = bound_ > 0;
  const std::string stamp = options_.timestamps ? fmt::format("{:>19}", "timestamp") : "";
  const std::string format = options_.timestamps ? fmt::format("{:>19}", "%Y-%m-%d %H:%M:%S") : "";
  const auto line = [&](const std::array<const char*, 5>& left, const std::string& right,
                        const std::string& last, const char* bound) {
    terminal::print("# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}{}{}{}\n", left[0], left[1], left[2],
                    left[3], left[4], right, last, bounded ? bound : "");
  };
  const auto columns = [&](const std::array<const char*, 4>& four,
                           const std::array<const char*, 4>& more) {
    std::string text =
        fmt::format("  {:>7}  {:>6}  {:>6}  {:>6}", four[0], four[1], four[2], four[3]);
    if (options_.stats)
      text += fmt::format("  {:>7}  {:>7}  {:>7}  {:>7}", more[0], more[1], more[2], more[3]);
    return text + text + ' ';
  };
  terminal::print("#\n");
  line({"", "", "", "", ""},
       options_.stats
           ? "              out-of-place (+ per-iteration)                                "
             "in-place (+ per-iteration)"
           : "           out-of-place                       in-place          ",
       "", "         bound  reached  reached");
  line({"size", "count", "type", "redop", "root"},
       columns({options_.cpu_time ? "cputime" : "time", "algbw", "busbw", "#wrong"},
               {"i_min", "i_max", "i_p99", "i_cv%"}),
       stamp, "  hosts' wires      out       in");
  line({"(B)", "(elements)", "", "", ""},
       columns({"(us)", "(GB/s)", "(GB/s)", ""}, {"(us)", "(us)", "(us)", "(%)"}), format,
       "          (us)");
}

void Report::table_row(const Result& result) const {
  terminal::print("{:12}  {:12}  {:>8}  {:>6}  {:6}{}{}{}{}\n", result.bytes, result.count,
                  name_of(result.what.dtype), redop(result), root(result),
                  cells(result, result.out_of_place), cells(result, result.in_place),
                  options_.timestamps ? fmt::format("{:>21}", time_now()) : "",
                  bound_cells(result));
  const auto& timing = result.in_place ? result.in_place : result.out_of_place;
  if (options_.explain && timing)
    terminal::print("#   {}: {}\n", timing->algorithm,
                    timing->why.empty() ? "the backend's own choice" : timing->why);
}

void Report::csv_row(const Result& result) const {
  std::string text = fmt::format("{},{},{},{},{}", result.bytes, result.count,
                                 name_of(result.what.dtype), redop(result), root(result));
  for (const auto& timing : {result.out_of_place, result.in_place}) {
    if (!timing) {
      text += options_.stats ? ",,,,,,,," : ",,,,";
      continue;
    }
    text +=
        fmt::format(",{:.3f},{:.4f},{:.4f},{}", microseconds(*timing), algbw(result, *timing),
                    busbw(result, *timing), timing->wrong < 0 ? "" : std::to_string(timing->wrong));
    if (!options_.stats) continue;
    const Spread spread = spread_of(timing->calls, options_.skip);
    text += fmt::format(",{:.3f},{:.3f},{:.3f},{:.3f}", spread.minimum * 1e6, spread.maximum * 1e6,
                        spread.p99 * 1e6, spread.deviation * 1e6);
  }
  terminal::print("{}\n", text);
}

void Report::begin() {
  if (options_.format == Format::table) settings();
  if (options_.format == Format::csv) {
    std::string names = "size,count,type,redop,root";
    for (const char* place : {"out", "in"}) {
      names += fmt::format(",{0}_{1},{0}_algbw_GBps,{0}_busbw_GBps,{0}_wrong", place,
                           options_.cpu_time ? "cputime_us" : "time_us");
      if (options_.stats)
        names += fmt::format(",{0}_min_us,{0}_max_us,{0}_p99_us,{0}_stdev_us", place);
    }
    terminal::print("{}\n", names);
  }
  if (!options_.output_file.empty()) open_document();
  if (options_.format == Format::table) table_head();
  std::fflush(stdout);
}

void Report::row(const Result& result) {
  for (const auto& timing : {result.out_of_place, result.in_place}) {
    if (!timing) continue;
    wrong_ += timing->wrong > 0 ? 1 : 0;
    ++timings_;
    busbw_ += busbw(result, *timing);
  }
  if (options_.format == Format::table) table_row(result);
  if (options_.format == Format::csv) csv_row(result);
  if (options_.format == Format::json) terminal::print("{}\n", json_row(result).dump());
  if (!document_.empty()) results_.push_back(json_row(result));
  std::fflush(stdout);
}

void Report::end() {
  const double mean = timings_ > 0 ? busbw_ / timings_ : 0;
  if (options_.format == Format::table)
    terminal::print(
        "# {:<20} : {} {}\n# {:<20} : {:g} \n#\n# Collective test concluded: {}_perf\n#\n",
        "Out of bounds values", wrong_, wrong_ == 0 ? "OK" : "FAILED", "Avg bus bandwidth", mean,
        name_of(options_.operation));
  if (!document_.empty()) write_document(mean);
}

}  // namespace shoal::perf
