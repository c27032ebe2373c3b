#include "shoal/runtime/trace/json_lines.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"

namespace shoal {
namespace {

[[noreturn]] void fail(const char* step, const std::string& path) {
  throw_error(ErrorCode::io, "cannot {} {}: {}", step, path, std::strerror(errno));
}

// Size of the file up to and including its last newline; 0 if there is none.
std::int64_t end_of_last_line(int descriptor, std::int64_t size, const std::string& path) {
  std::array<char, 65536> block;
  while (size > 0) {
    const std::int64_t start = std::max<std::int64_t>(0, size - std::ssize(block));
    const ssize_t count =
        ::pread(descriptor, block.data(), static_cast<std::size_t>(size - start), start);
    if (count < 0) fail("read", path);
    if (count != size - start) return size;  // another process writes the file: leave it unchanged
    for (std::int64_t i = count; i > 0; --i)
      if (block[static_cast<std::size_t>(i - 1)] == '\n') return start + i;
    size = start;
  }
  return 0;
}

}  // namespace

JsonLinesWriter::JsonLinesWriter(std::string path, Mode mode) : path_(std::move(path)) {
  const int flags =
      O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | (mode == Mode::truncate ? O_TRUNC : 0);
  descriptor_ = ::open(path_.c_str(), flags, 0666);
  if (descriptor_ < 0) fail("open", path_);
  try {
    drop_unfinished_line();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

void JsonLinesWriter::drop_unfinished_line() {
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0) fail("look at", path_);
  if (!S_ISREG(status.st_mode) || status.st_size == 0) return;
  const std::int64_t whole = end_of_last_line(descriptor_, status.st_size, path_);
  if (whole < status.st_size && ::ftruncate(descriptor_, whole) != 0)
    fail("drop the unfinished line of", path_);
}

JsonLinesWriter::~JsonLinesWriter() {
  // A network disk may report only here that written data is lost.
  if (::close(descriptor_) != 0) log::warn("cannot close {}: {}", path_, std::strerror(errno));
}

void JsonLinesWriter::write(const nlohmann::ordered_json& record) {
  // dump() writes non-finite numbers as null.
  const std::string line =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::scoped_lock lock(mutex_);
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace shoal
