// metrics.jsonl: one JSON object a line, each flushed whole, so that a killed job leaves a file
// that reads to its last record.
#pragma once

#include <mutex>
#include <string>

#include <nlohmann/json_fwd.hpp>

namespace shoal {

class JsonLinesWriter {
 public:
  enum class Mode { append, truncate };
  // io with the path and the reason. Appending to a file whose last line was cut off (a crash, a
  // full disk) first drops that piece.
  explicit JsonLinesWriter(std::string path, Mode mode = Mode::append);
  ~JsonLinesWriter();
  JsonLinesWriter(const JsonLinesWriter&) = delete;
  JsonLinesWriter& operator=(const JsonLinesWriter&) = delete;

  // Any thread. One write(2) a record; NaN and infinities become null. io on failure.
  void write(const nlohmann::ordered_json& record);
  const std::string& path() const { return path_; }

 private:
  void drop_unfinished_line();

  std::mutex mutex_;
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace shoal
