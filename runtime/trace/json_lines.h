// Writes metrics.jsonl: one JSON object per line. Each line is written as a whole, so the file of a
// killed job is readable up to its last record.
#pragma once

#include <mutex>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

class JsonLinesWriter {
 public:
  enum class Mode { append, truncate };
  // Throws io with the path and the reason. Appending to a file whose last line is incomplete (a
  // crash, a full disk) first removes that line.
  explicit JsonLinesWriter(std::string path, Mode mode = Mode::append);
  ~JsonLinesWriter();
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  // Thread-safe. One write(2) per record; NaN and infinities become null. Throws io on failure.
  void write(const nlohmann::ordered_json& record);
  const std::string& path() const { return path_; }

 private:
  void drop_unfinished_line();

  std::mutex mutex_;
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace shoal
