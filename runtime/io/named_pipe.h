// Reads a named pipe once; the reader can be stopped.
#pragma once

#include <atomic>
#include <cstddef>
#include <span>
#include <string>

namespace shoal {

class NamedPipe {
 public:
  // Waits up to `wait_seconds` for `path` to exist, but not for a writer. Throws timeout; or io,
  // also if it is not a pipe. Once `stop` is true, this call and read() soon throw aborted. `stop`
  // must outlive the object.
  NamedPipe(std::string path, const std::atomic<bool>& stop, double wait_seconds);
  ~NamedPipe();
  NamedPipe(const NamedPipe&) = delete;
  NamedPipe& operator=(const NamedPipe&) = delete;

  // Fills part of `into`; blocks until the first byte arrives. 0: all writers have closed the pipe.
  std::size_t read(std::span<std::byte> into);
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  const std::atomic<bool>& stop_;
  int descriptor_ = -1;
};

}  // namespace shoal
