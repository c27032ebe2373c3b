#include "shoal/train/trainer/sample_log.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal {
namespace {

constexpr std::int64_t kMostBytes = std::int64_t{8} << 30;

// The step of a line; -1: the line is damaged.
std::int64_t step_of(std::string_view line) {
  const nlohmann::json record = json_if_valid(line).value_or(nullptr);
  if (!record.is_object()) return -1;
  const auto step = record.find("step");
  return step != record.end() && step->is_number_integer() ? step->get<std::int64_t>() : -1;
}

}  // namespace

SampleLog::SampleLog(std::string path, std::int64_t keep_to) : path_(std::move(path)) {
  if (!path_exists(path_)) return;
  if (keep_to < 0) {
    remove_file(path_);
    return;
  }
  const std::string before = read_text_file(path_, kMostBytes);
  std::string kept;
  for (std::size_t at = 0; at < before.size();) {
    const std::size_t end = before.find('\n', at);
    if (end == std::string::npos) break;  // a line that a killed run did not finish
    const std::string_view line = std::string_view(before).substr(at, end - at);
    at = end + 1;
    const std::int64_t step = step_of(line);
    if (step < 0 || step > keep_to) continue;
    kept.append(line).push_back('\n');
    last_step_ = std::max(last_step_, step);
  }
  if (kept != before) write_file_atomically(path_, kept);
}

void SampleLog::write(std::int64_t step, const std::vector<nlohmann::ordered_json>& lines) {
  if (lines.empty() || step <= last_step_) return;
  if (!file_) file_ = std::make_unique<JsonLinesWriter>(path_, JsonLinesWriter::Mode::append);
  for (const nlohmann::ordered_json& line : lines) {
    nlohmann::ordered_json record = {{"step", step}};
    record.update(line);
    file_->write(record);
  }
  last_step_ = step;
}

}  // namespace shoal
