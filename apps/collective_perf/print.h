// What shoal-collective-perf prints: nccl-tests' table, CSV or JSON lines, and nccl-tests' JSON
// document.
#pragma once

#include <string>
#include <vector>

#include "measure.h"
#include <nlohmann/json.hpp>

namespace shoal::perf {

// Where a rank runs.
struct Seat {
  int pid = 0, index = 0;              // index: of its GPU
  std::string host, identity, device;  // identity: a GPU's UUID, or "host"
};

// Rank 0's. `bound`: minimum seconds per byte over the hosts' links; 0: unknown, not printed.
class Report {
 public:
  Report(const Options& options, const collectives::Communicator& communicator,
         std::vector<Seat> seats, double bound);
  void begin();
  void row(const Result& result);
  void end();

 private:
  void settings() const;    // nccl-tests' lines before the table
  void table_head() const;  // the names of the columns
  void table_row(const Result& result) const;
  void csv_row(const Result& result) const;
  nlohmann::ordered_json json_row(const Result& result) const;
  nlohmann::ordered_json json_of(const Result& result, const Timing& timing) const;
  void open_document();
  void write_document(double mean) const;
  std::string cells(const Result& result, const std::optional<Timing>& timing) const;
  std::string bound_cells(const Result& result) const;
  double algbw(const Result& result, const Timing& timing) const;    // GB/s
  double busbw(const Result& result, const Timing& timing) const;    // GB/s
  double reached(const Result& result, const Timing& timing) const;  // share of the bound
  double microseconds(const Timing& timing) const;                   // of the column "time"
  std::string_view redop(const Result& result) const;
  int root(const Result& result) const;  // -1: none

  const Options& options_;
  const collectives::Communicator& communicator_;
  std::vector<Seat> seats_;
  double bound_;
  double busbw_ = 0;
  int timings_ = 0, wrong_ = 0;     // wrong_: timings with wrong elements
  std::string started_, document_;  // document_: path
  nlohmann::ordered_json results_ = nlohmann::ordered_json::array();
};

std::string processor();  // this machine's, by name
std::string time_now();   // "2026-11-29 21:07:00"
std::string_view name_of(Memory memory);

}  // namespace shoal::perf
