// Memory that several ranks map (memfd_create(2)). It does not depend on the size of /dev/shm, and
// a killed rank leaves nothing behind.
#pragma once

#include <cstddef>
#include <memory>

namespace shoal::collectives::transport {

// Owns a file descriptor. Move-only.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() { reset(); }
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.release()) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() noexcept;
  void reset() noexcept;

 private:
  int fd_ = -1;
};

class SharedSegment {
 public:
  // Zero-filled; pages take memory only once touched. `name` shows in /proc/*/maps. Throws
  // out_of_memory with the bytes, or io if the process has no file descriptor left.
  static std::shared_ptr<SharedSegment> create(const char* name, std::size_t bytes);
  // Maps another rank's segment and takes over the descriptor. Throws corrupt_data if it is not
  // `bytes` long (reading beyond its end would kill the process). Ranks that are threads of one
  // process get the creator's own mapping, so that ThreadSanitizer sees one memory.
  static std::shared_ptr<SharedSegment> map(FileDescriptor fd, std::size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }
  std::size_t size() const { return bytes_; }
  // Descriptor of a segment that this process created, until close_fd(). The mapping does not need
  // it.
  int fd() const { return fd_.get(); }
  void close_fd() { fd_.reset(); }

 private:
  SharedSegment(int fd, std::size_t bytes);

  FileDescriptor fd_;
  std::size_t bytes_;
  std::byte* data_;
};

}  // namespace shoal::collectives::transport
