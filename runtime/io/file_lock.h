// A lock between the processes of a host that would make the same file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace shoal {

// At most one process per host holds the lock on `path`, a file that it makes and removes.
class FileLock {
 public:
  // Blocks until no other process holds the lock. `waiting`, if given, is called several times a
  // second meanwhile, and may throw to end the wait. If the file cannot be locked, logs a warning
  // with `risk` ("another run may prepare the same text at the same time") and continues.
  FileLock(std::string path, const std::function<void()>& waiting, std::string_view risk);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

  // Removes the file at `path` if no process holds its lock: a process that was killed left it.
  static void remove_if_free(const std::string& path);

 private:
  int lock(const std::function<void()>& waiting);
  std::string path_;
  int descriptor_ = -1;
};

}  // namespace shoal
