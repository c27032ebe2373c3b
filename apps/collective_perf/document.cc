// Rows as JSON, and nccl-tests' JSON document of them (JSON_FILE_VERSION 3 of its src/util.cu).
#include "print.h"
#include "version.h"
#include <fmt/format.h>

#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"

namespace shoal::perf {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kDocumentVersion = 3;

std::string_view word(bool value) { return value ? "true" : "false"; }  // nccl-tests' booleans

Json per_iteration(const Timing& timing, std::int64_t skip) {
  const Spread spread = spread_of(timing.calls, skip);
  std::vector<double> times;
  for (const double seconds : timing.calls) times.push_back(seconds * 1e6);
  return {{"skipped_iterations", skip},
          {"min_us", spread.minimum * 1e6},
          {"max_us", spread.maximum * 1e6},
          {"avg_us", spread.mean * 1e6},
          {"p50_us", spread.p50 * 1e6},
          {"p95_us", spread.p95 * 1e6},
          {"p99_us", spread.p99 * 1e6},
          {"stdev_us", spread.deviation * 1e6},
          {"cv_pct", spread.mean > 0 ? spread.deviation / spread.mean * 100 : 0},
          {"times_us", times}};
}

}  // namespace

Json Report::json_of(const Result& result, const Timing& timing) const {
  Json json{{options_.cpu_time ? "cpu_time" : "time", microseconds(timing)},
            {"alg_bw", algbw(result, timing)},
            {"bus_bw", busbw(result, timing)},
            {"nwrong", timing.wrong < 0 ? Json() : Json(timing.wrong)},
            {"algorithm", timing.algorithm}};
  if (options_.explain) json["why"] = timing.why;
  if (bound_ > 0) json["of_bound"] = reached(result, timing);
  return json;
}

// nccl-tests' fields, then Shoal's.
Json Report::json_row(const Result& result) const {
  static const std::string machine = processor();
  const auto& any = result.in_place ? result.in_place : result.out_of_place;
  Json row{{"size", result.bytes},
           {"count", result.count},
           {"type", name_of(result.what.dtype)},
           {"redop", redop(result)},
           {"root", std::to_string(root(result))}};
  const auto add = [&](const char* place, const std::optional<Timing>& timing) {
    row[place] = timing ? json_of(result, *timing) : Json();
    if (timing && options_.stats)
      row[fmt::format("{}_per_iter", place)] = per_iteration(*timing, options_.skip);
  };
  add("out_of_place", result.out_of_place);
  add("in_place", result.in_place);
  row["actual_iterations"] = any ? any->iterations : 0;
  row["experiment_name"] = "";
  row["operation"] = name_of(options_.operation);
  row["ranks"] = communicator_.size();
  row["backend"] = communicator_.backend();
  row["algorithm_asked"] =
      options_.communicator.algorithm.empty() ? "table" : options_.communicator.algorithm;
  row["transport"] = communicator_.statistics().transport;
  row["memory"] = name_of(options_.memory);
  if (bound_ > 0) row["bound_us"] = bound_ * static_cast<double>(result.bytes) * 1e6;
  row["machine"] = machine;
  row["version"] = SHOAL_VERSION;
  row["commit"] = app::commit();
  return row;
}

void Report::open_document() {
  // As nccl-tests does: earlier results are not overwritten.
  document_ = options_.output_file;
  for (int number = 0; path_exists(document_); ++number)
    document_ = fmt::format("{}.{}", options_.output_file, number);
  write_file(document_, "");  // a directory that cannot be written ends the run before it is timed
  if (options_.format == Format::table) terminal::print("# Writing JSON output to {}\n", document_);
}

void Report::write_document(double mean) const {
  Json devices = Json::array();
  for (std::size_t rank = 0; rank < seats_.size(); ++rank)
    devices.push_back({{"rank", rank},
                       {"group", 0},
                       {"pid", seats_[rank].pid},
                       {"hostname", seats_[rank].host},
                       {"device", seats_[rank].index},
                       {"device_hex", seats_[rank].identity},
                       {"device_info", seats_[rank].device}});
  const bool steps = options_.step_bytes > 0;
  const Json config{{"nthreads", options_.threads},
                    {"ngpus", std::max(1, options_.gpus)},
                    {"minimum_bytes", options_.min_bytes},
                    {"maximum_bytes", options_.max_bytes},
                    {steps ? "step_bytes" : "step_factor",
                     steps ? Json(options_.step_bytes) : Json(options_.factor)},
                    {"warmup_iters", options_.warm_up},
                    {"iterations", options_.iterations},
                    {"aggregated_iterations", options_.together},
                    {"validation", options_.checks},
                    {"graph", 0},
                    {"blocking_collectives", word(options_.blocking != Blocking::at_the_end)},
                    {"per_iter_timing", word(options_.stats)},
                    {"per_iter_skip", options_.skip},
                    {"parallel_init", "true"},
                    {"devices", std::move(devices)}};
  // The environment is left out: it may hold credentials.
  const Json document{{"version", kDocumentVersion},
                      {"start_time", started_},
                      {"args", options_.words},
                      {"env", Json::array()},
                      {"nccl_version", 0},
                      {"config", config},
                      {"results", results_},
                      {"out_of_bounds", {{"count", wrong_}, {"okay", word(wrong_ == 0)}}},
                      {"average_bus_bandwidth", {{"bandwidth", mean}, {"okay", "unchecked"}}},
                      {"errors", Json::array()},
                      {"end_time", time_now()}};
  write_file_atomically(document_, document.dump(1) + "\n");
}

}  // namespace shoal::perf
