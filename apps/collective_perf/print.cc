#include "print.h"

#include <cstdio>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/call.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::perf {
namespace {

using collectives::Operation;

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string_view name_of(Operation operation) {
  return operation == Operation::send ? "send_recv" : collectives::to_string(operation);
}

double algbw(const Result& result, const Timing& timing) {  // GB/s
  return timing.mean > 0 ? static_cast<double>(result.bytes) / timing.mean * 1e-9 : 0;
}

std::string cells(const Result& result, const std::optional<Timing>& timing, double factor) {
  if (!timing)
    return fmt::format("{:>10} {:>10} {:>10} {:>8} {:>8} {:>7}", "-", "-", "-", "-", "-", "-");
  const double bandwidth = algbw(result, *timing);
  return fmt::format("{:>10.2f} {:>10.2f} {:>10.2f} {:>8.2f} {:>8.2f} {:>7}", timing->mean * 1e6,
                     timing->minimum * 1e6, timing->p99 * 1e6, bandwidth, bandwidth * factor,
                     timing->wrong < 0 ? "N/A" : std::to_string(timing->wrong));
}

double reached(const Result& result, const Timing& timing, double bound) {  // share of the bound
  return timing.mean > 0 ? bound * static_cast<double>(result.bytes) / timing.mean : 0;
}

std::string bound_cells(const Result& result, double bound) {
  if (bound <= 0) return {};
  const auto share = [&](const std::optional<Timing>& timing) {
    return timing ? fmt::format("{:>8.3f}", reached(result, *timing, bound))
                  : fmt::format("{:>8}", "-");
  };
  return fmt::format("  {:>12.2f} {} {}", bound * static_cast<double>(result.bytes) * 1e6,
                     share(result.out_of_place), share(result.in_place));
}

nlohmann::ordered_json json_of(const Result& result, const Timing& timing, double factor,
                               double bound, bool explain) {
  const double bandwidth = algbw(result, timing);
  nlohmann::ordered_json json{{"algorithm", timing.algorithm}, {"iterations", timing.iterations},
                              {"seconds", timing.mean},        {"min_us", timing.minimum * 1e6},
                              {"p50_us", timing.p50 * 1e6},    {"p99_us", timing.p99 * 1e6},
                              {"algbw_GBps", bandwidth},       {"busbw_GBps", bandwidth * factor}};
  if (explain) json["why"] = timing.why;
  if (bound > 0) json["of_bound"] = reached(result, timing, bound);
  if (timing.wrong >= 0) json["wrong"] = timing.wrong;
  return json;
}

}  // namespace

void print_header(const Options& options, const collectives::Communicator& communicator,
                  double bound) {
  if (options.json) return;
  const std::string transport = communicator.statistics().transport;
  terminal::print("# {} of {} on {} ranks, backend {}{}{}{}{}, {} memory\n",
                  name_of(options.operation), to_string(options.dtype), communicator.size(),
                  communicator.backend(), transport.empty() ? "" : " over ", transport,
                  options.communicator.algorithm.empty() ? "" : ", algorithm asked for: ",
                  options.communicator.algorithm,
                  options.memory == Memory::symmetric ? "symmetric" : "user");
  const bool bounded = bound > 0;
  terminal::print("# {:>12} {:>12} {:>5} {:>17} {:>4}  {:^58}  {:^58}{}\n", "", "", "", "", "",
                  "out of place", "in place", bounded ? "         bound  reached  reached" : "");
  const char* times = "time       min        p99    algbw    busbw  #wrong";
  terminal::print("# {:>12} {:>12} {:>5} {:>17} {:>4}  {:>58}  {:>58}{}\n", "size", "count", "type",
                  "redop", "root", times, times, bounded ? "  hosts' wires      out       in" : "");
  const char* units = "(us)      (us)       (us)   (GB/s)   (GB/s)        ";
  terminal::print("# {:>12} {:>12} {:>5} {:>17} {:>4}  {:>58}  {:>58}{}\n", "(B)", "(elements)", "",
                  "", "", units, units, bounded ? "          (us)" : "");
}

void print_row(const Options& options, const collectives::Communicator& communicator,
               const Result& result, double bound) {
  const double factor = bus_factor(options.operation, communicator.size());
  const std::string op = reduces(options.operation) ? std::string(to_string(options.op)) : "none";
  const int root = has_root(options.operation) ? options.root : -1;
  if (!options.json) {
    terminal::print("  {:>12} {:>12} {:>5} {:>17} {:>4}  {}  {}{}\n", result.bytes, result.count,
                    to_string(options.dtype), op, root, cells(result, result.out_of_place, factor),
                    cells(result, result.in_place, factor), bound_cells(result, bound));
    const auto& timing = result.in_place ? result.in_place : result.out_of_place;
    if (options.explain && timing)
      terminal::print("#   {}: {}\n", timing->algorithm,
                      timing->why.empty() ? "the backend's own choice" : timing->why);
    std::fflush(stdout);
    return;
  }
  static const std::string machine = processor();
  nlohmann::ordered_json row{
      {"operation", name_of(options.operation)},
      {"bytes", result.bytes},
      {"count", result.count},
      {"ranks", communicator.size()},
      {"dtype", to_string(options.dtype)},
      {"op", op},
      {"root", root},
      {"backend", communicator.backend()},
      {"algorithm_asked",
       options.communicator.algorithm.empty() ? "table" : options.communicator.algorithm},
      {"transport", communicator.statistics().transport},
      {"memory", options.memory == Memory::symmetric ? "symmetric" : "user"}};
  if (bound > 0) row["bound_us"] = bound * static_cast<double>(result.bytes) * 1e6;
  if (result.out_of_place)
    row["out_of_place"] = json_of(result, *result.out_of_place, factor, bound, options.explain);
  if (result.in_place)
    row["in_place"] = json_of(result, *result.in_place, factor, bound, options.explain);
  row["machine"] = machine;
  row["version"] = SHOAL_VERSION;
  row["commit"] = SHOAL_COMMIT;
  terminal::print("{}\n", row.dump());
  std::fflush(stdout);
}

void print_summary(const Options& options, double busbw, std::int64_t wrong) {
  if (options.json) return;
  terminal::print("# average bus bandwidth {:.2f} GB/s, {}\n", busbw,
                  !options.check ? "results not checked"
                  : wrong == 0   ? std::string("every result right")
                                 : fmt::format("{} WRONG ELEMENTS", wrong));
}

}  // namespace shoal::perf
