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

namespace shoal {
namespace {

// Bytes up to and with the last newline; 0 when there is none.
std::int64_t end_of_last_line(int descriptor, std::int64_t size) {
  std::array<char, 65536> block;
  while (size > 0) {
    const std::int64_t start = std::max<std::int64_t>(0, size - std::ssize(block));
    const ssize_t count =
        ::pread(descriptor, block.data(), static_cast<std::size_t>(size - start), start);
    if (count != size - start) return size;  // unreadable: leave it as it is
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
  descriptor_ = ::open(path_.c_str(), flags, 0644);
  if (descriptor_ < 0)
    throw_error(ErrorCode::io, "cannot open {}: {}", path_, std::strerror(errno));
  struct stat status{};
  if (::fstat(descriptor_, &status) != 0 || !S_ISREG(status.st_mode) || status.st_size == 0) return;
  const std::int64_t whole = end_of_last_line(descriptor_, status.st_size);
  if (whole < status.st_size && ::ftruncate(descriptor_, whole) != 0) {
    const int error = errno;
    ::close(descriptor_);
    throw_error(ErrorCode::io, "cannot drop the unfinished line of {}: {}", path_,
                std::strerror(error));
  }
}

JsonLinesWriter::~JsonLinesWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void JsonLinesWriter::write(const nlohmann::ordered_json& record) {
  // dump() writes non-finite numbers as null.
  const std::string line =
      record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  const std::scoped_lock lock(mutex_);
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t count = ::write(descriptor_, line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_error(ErrorCode::io, "cannot write {}: {}", path_, std::strerror(errno));
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace shoal
