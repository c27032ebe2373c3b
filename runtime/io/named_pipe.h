// A named pipe's bytes, once through, by a reader that somebody may stop.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

namespace shoal {

class NamedPipe {
 public:
  // Waits up to `wait_seconds` for `path` to be there, not for who writes it. timeout; io, also
  // where it is no pipe. `stop`, once true: aborted, soon; here and in read(). It must live as
  // long.
  NamedPipe(std::string path, const std::atomic<bool>& stop, double wait_seconds);
  ~NamedPipe();
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;

  // Fills some of `into`, waiting for the first byte as long as it takes. 0: all writers are done.
  std::size_t read(std::span<std::byte> into);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::atomic<bool>& stop_;
  int descriptor_ = -1;
};

}  // namespace shoal
