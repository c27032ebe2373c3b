// A file descriptor that its destructor closes.
#pragma once

#include <utility>

#include <unistd.h>

namespace shoal {

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }  // negative: none
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

}  // namespace shoal
