// Writes samples.jsonl, so that a step has its lines once, also after the run resumed. Not for
// other libraries.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/runtime/trace/json_lines.h"

namespace shoal {

// Not thread-safe.
class SampleLog {
 public:
  // Keeps the lines of steps up to `keep_to` and removes all others, which the resumed run writes
  // again, and damaged lines. -1: removes the file of an earlier run. Throws io.
  SampleLog(std::string path, std::int64_t keep_to);
  // Adds "step" in front of each line. Writes nothing for a step that has lines. Throws io.
  void write(std::int64_t step, const std::vector<nlohmann::ordered_json>& lines);

 private:
  std::string path_;
  std::int64_t last_step_ = -1;            // the newest step with lines
  std::unique_ptr<JsonLinesWriter> file_;  // null: nothing has been written
};

}  // namespace shoal
