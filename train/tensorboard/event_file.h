// TensorBoard's event files: TFRecords (length, its masked CRC32C, bytes, their masked CRC32C;
// tensorflow/core/lib/io/record_writer.h). Each holds an Event of tensorflow/core/util/event.proto.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>

namespace shoal {

// CRC-32C (Castagnoli; RFC 3720, B.4).
std::uint32_t crc32c(std::string_view bytes);

// Not thread-safe. Throws io with the path and the reason.
class EventFile {
 public:
  // Creates `path`, which must not exist, and writes the format's version. `wall_time` is in
  // seconds since 1970, here and below.
  EventFile(std::string path, double wall_time);

  void add_scalar(std::string_view tag, float value, std::int64_t step, double wall_time);
  void flush();  // writes buffered events, so that a running TensorBoard sees them

  const std::string& path() const { return path_; }

 private:
  void write_record(std::string_view event);
  void check(const char* step);

  std::string path_;
  std::ofstream file_;
};

}  // namespace shoal
