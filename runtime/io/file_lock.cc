#include "shoal/runtime/io/file_lock.h"

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal {

FileLock::FileLock(std::string path, const std::function<void()>& waiting, std::string_view risk)
    : path_(std::move(path)) {
  for (;;) {
    descriptor_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0 || lock(waiting) != 0) {
      log::warn("{} cannot be locked ({}): {}", path_, std::strerror(errno), risk);
      return;
    }
    // The holder removes the file on release: the lock counts only if the file has this name still.
    struct stat held{}, named{};
    if (::fstat(descriptor_, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
        held.st_ino == named.st_ino)
      return;
    ::close(descriptor_);
  }
}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  best_effort("remove a lock", [this] { remove_file(path_); });
  ::close(descriptor_);
}

void FileLock::remove_if_free(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    if (errno != ENOENT)
      log::warn("the lock {} that an earlier run left cannot be opened: {}", path,
                std::strerror(errno));
    return;
  }
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0)
    best_effort("remove a lock that an earlier run left", [&] { remove_file(path); });
  ::close(descriptor);
}

int FileLock::lock(const std::function<void()>& waiting) {
  int result = 0;
  while ((result = ::flock(descriptor_, LOCK_EX | LOCK_NB)) != 0 &&
         (errno == EWOULDBLOCK || errno == EINTR)) {
    try {
      if (waiting) waiting();
    } catch (...) {
      ::close(std::exchange(descriptor_, -1));
      throw;
    }
    std::this_thread::sleep_for(deadlines::kLookAtRanks);
  }
  return result;
}

}  // namespace shoal
