#include "shoal/train/tensorboard/event_file.h"

#include <array>
#include <cerrno>
#include <cstring>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/protobuf.h"

namespace shoal {
namespace {

constexpr std::array<std::uint32_t, 256> crc_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

// TFRecord rotates a checksum and adds a constant, because checksums of data that contain checksums
// are weak.
std::string masked(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes);
  const std::uint32_t mask = (crc >> 15 | crc << 17) + 0xA282EAD8u;
  return {reinterpret_cast<const char*>(&mask), sizeof mask};
}

// Fields of event.proto and summary.proto.
enum EventField : std::uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5 };
constexpr std::uint32_t kSummaryValue = 1;
enum ValueField : std::uint32_t { kTag = 1, kSimpleValue = 2 };

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 256> kTable = crc_table();
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) crc = kTable[(crc ^ static_cast<std::uint8_t>(c)) & 0xFF] ^ crc >> 8;
  return ~crc;
}

EventFile::EventFile(std::string path, double wall_time) : path_(std::move(path)) {
  if (path_exists(path_))
    throw_error(ErrorCode::io, "'{}' exists already; event files are never appended to", path_);
  errno = 0;
  file_.open(path_, std::ios::binary);
  check("create");
  write_record(
      ProtobufWriter().real64(kWallTime, wall_time).bytes(kFileVersion, "brain.Event:2").message());
  flush();
}

void EventFile::add_scalar(std::string_view tag, float value, std::int64_t step, double wall_time) {
  const std::string scalar = ProtobufWriter().bytes(kTag, tag).real(kSimpleValue, value).message();
  ProtobufWriter event;
  event.real64(kWallTime, wall_time);
  if (step != 0) event.integer(kStep, static_cast<std::uint64_t>(step));
  event.bytes(kSummary, ProtobufWriter().bytes(kSummaryValue, scalar).message());
  write_record(event.message());
}

void EventFile::write_record(std::string_view event) {
  const std::uint64_t size = event.size();
  const std::string length(reinterpret_cast<const char*>(&size), sizeof size);
  errno = 0;
  file_ << length << masked(length) << event << masked(event);
  check("write to");
}

void EventFile::flush() {
  errno = 0;
  file_.flush();
  check("write to");
}

void EventFile::check(const char* step) {
  if (!file_)
    throw_error(ErrorCode::io, "cannot {} '{}': {}", step, path_,
                errno != 0 ? std::strerror(errno) : "the stream failed");
}

}  // namespace shoal
