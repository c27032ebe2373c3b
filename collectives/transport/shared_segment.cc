#include "shoal/collectives/transport/shared_segment.h"

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::transport {
namespace {

using Identity = std::pair<dev_t, ino_t>;

// This process's mappings by file identity; owns none of them.
struct Mappings {
  std::mutex mutex;
  std::map<Identity, std::weak_ptr<SharedSegment>> by_identity;
};

Mappings& mappings() {
  static Mappings instance;
  return instance;
}

struct stat status_of(int fd) {
  struct stat status{};
  if (fstat(fd, &status) != 0)
    throw_error(ErrorCode::io, "cannot stat shared memory: {}", std::strerror(errno));
  return status;
}

void remember(const std::shared_ptr<SharedSegment>& segment) {
  const struct stat status = status_of(segment->fd());
  auto& book = mappings();
  const std::lock_guard lock(book.mutex);
  std::erase_if(book.by_identity, [](const auto& entry) { return entry.second.expired(); });
  book.by_identity[{status.st_dev, status.st_ino}] = segment;
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int FileDescriptor::release() noexcept { return std::exchange(fd_, -1); }

void FileDescriptor::reset() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

namespace {

// Maps the file at a suitable address: aligned to huge pages, so that the kernel can use them, and
// shifted by a number of huge pages that differs between files. AMD's L1 cache hashes address bits
// 12 to 27, so equal buffers of two ranks that are mapped a multiple of 256 MiB apart would evict
// each other (measured: 13 GB/s instead of 100).
std::byte* map_well(int fd, std::size_t bytes) {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const std::size_t shift = status_of(fd).st_ino % 64 * kHuge, room = shift + kHuge + bytes;
  void* reserved =
      mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(reserved);
  const std::size_t head =
      (kHuge - reinterpret_cast<std::uintptr_t>(begin) % kHuge) % kHuge + shift;
  void* mapped = mmap(begin + head, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    const int reason = errno;
    munmap(begin, room);
    errno = reason;
    return nullptr;
  }
  const std::size_t end = (head + bytes + 4095) / 4096 * 4096, last = (room + 4095) / 4096 * 4096;
  if (head > 0) munmap(begin, head);
  if (end < last) munmap(begin + end, last - end);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

SharedSegment::SharedSegment(int fd, std::size_t bytes)
    : bytes_(bytes), data_(map_well(fd, bytes)) {
  if (!data_)
    throw_error(ErrorCode::out_of_memory, "cannot map {} bytes of shared memory: {}", bytes,
                std::strerror(errno));
  // Best effort: works only if shmem_enabled is "advise" or "always".
  madvise(data_, bytes, MADV_HUGEPAGE);
}

SharedSegment::~SharedSegment() { munmap(data_, bytes_); }

std::shared_ptr<SharedSegment> SharedSegment::create(const char* name, std::size_t bytes) {
  FileDescriptor fd(memfd_create(name, MFD_CLOEXEC));
  if (!fd && (errno == EMFILE || errno == ENFILE))
    throw Error(
        ErrorCode::io,
        fmt::format("cannot create {} bytes of shared memory: {}", bytes, std::strerror(errno)),
        "raise `ulimit -n`");
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw_error(ErrorCode::out_of_memory, "cannot create {} bytes of shared memory: {}", bytes,
                std::strerror(errno));
  std::shared_ptr<SharedSegment> segment(new SharedSegment(fd.get(), bytes));
  segment->fd_ = std::move(fd);
  remember(segment);
  return segment;
}

std::shared_ptr<SharedSegment> SharedSegment::map(FileDescriptor fd, std::size_t bytes) {
  const struct stat status = status_of(fd.get());
  if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) != bytes)
    throw_error(ErrorCode::corrupt_data, "the memory that it shares holds {} bytes, not {}",
                status.st_size, bytes);
  {
    auto& book = mappings();
    const std::lock_guard lock(book.mutex);
    const auto found = book.by_identity.find({status.st_dev, status.st_ino});
    if (found != book.by_identity.end())
      if (auto segment = found->second.lock()) return segment;
  }
  return std::shared_ptr<SharedSegment>(new SharedSegment(fd.get(), bytes));
}

}  // namespace shoal::collectives::transport
