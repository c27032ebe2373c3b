#include "shoal/runtime/io/files.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/mapped_files.h"
#include "shoal/runtime/io/shown_path.h"

namespace shoal {
namespace {

std::string directory_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == path.npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string_view kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// Guesses a remedy from the form of a path that is not a local file.
std::string remedy_for(const std::string& path) {
  if (path.find("://") != path.npos)
    return "only files of this machine are read here: copy it to one first";
  if (path.find_first_of("*?[") != path.npos)
    return "no pattern is expanded here: give each file by its name";
  return {};
}

std::string random_letters() {
  std::array<unsigned char, 8> drawn{};
  if (::getentropy(drawn.data(), drawn.size()) != 0)
    throw_error(ErrorCode::io, "cannot draw a random name: {}", std::strerror(errno));
  std::string letters;
  for (const unsigned char one : drawn) letters += static_cast<char>('a' + one % 26);
  return letters;
}

}  // namespace

int open_regular_file(const std::string& path, int flags) {
  progress::made();
  // Without O_NONBLOCK, open() would wait forever on a named pipe that no process writes.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | flags);
  if (descriptor < 0)
    throw Error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io,
                fmt::format("cannot open {}: {}", shown_path(path), std::strerror(errno)),
                remedy_for(path));
  struct stat status{};
  const int failed = ::fstat(descriptor, &status) != 0 ? errno : 0;
  if (failed == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  if (failed != 0)
    throw_error(ErrorCode::io, "cannot look at {}: {}", shown_path(path), std::strerror(failed));
  throw Error(ErrorCode::invalid_argument,
              fmt::format("cannot open {}: it is not a regular file but {}", shown_path(path),
                          kind_name(status.st_mode)),
              "give a file");
}

std::shared_ptr<MappedFile> MappedFile::open(const std::string& path) {
  const int descriptor = open_regular_file(path);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    throw_error(ErrorCode::io, "cannot look at {}: {}", shown_path(path), std::strerror(error));
  }
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = nullptr;
  if (size > 0) data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor, 0);
  const int error = errno;
  ::close(descriptor);
  if (data == MAP_FAILED)
    throw_error(ErrorCode::io, "cannot map the {} bytes of {}: {}", size, shown_path(path),
                std::strerror(error));
  std::shared_ptr<MappedFile> file(new MappedFile(path, static_cast<const std::byte*>(data), size));
  if (data) note_mapped(data, size, file->path().c_str());
  return file;
}

MappedFile::~MappedFile() {
  if (!data_) return;
  forget_mapped(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

AtomicFile::AtomicFile(std::string path, std::int64_t expected_bytes)
    : path_(std::move(path)), expected_(expected_bytes) {
  SHOAL_CHECK(expected_bytes >= 0, "{}: {} bytes expected", path_, expected_bytes);
  create();
  if (expected_ == 0) return;
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(descriptor_, 0, expected_);
  // A file system that cannot reserve space is not an error.
  if (error != 0 && error != EOPNOTSUPP && error != EINVAL && error != ENOSYS)
    fail("reserve room for", error);
}

// open() applies the umask to a new file's mode; mkostemp() would make the file private to the
// user. A replaced file keeps its mode.
void AtomicFile::create() {
  progress::made();
  struct stat old{}, made{};
  const bool replaces = ::stat(path_.c_str(), &old) == 0;
  if (!replaces && errno != ENOENT && errno != ENOTDIR) fail("look at", errno);
  const mode_t mode = replaces ? old.st_mode & 0777 : 0666;
  std::string name;
  do {
    name = path_ + ".tmp-" + random_letters();
    descriptor_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  } while (descriptor_ < 0 && (errno == EEXIST || errno == EINTR));
  if (descriptor_ < 0) fail("create", errno);
  temporary_ = std::move(name);
  if (!replaces) return;
  if (::fstat(descriptor_, &made) != 0) fail("look at the new", errno);
  if ((made.st_mode & 0777) != mode && ::fchmod(descriptor_, mode) != 0)
    fail("keep the mode of", errno);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  if (!temporary_.empty())
    best_effort("remove a temporary file", [this] { remove_file(temporary_); });
  temporary_.clear();
}

void AtomicFile::fail(const char* step, int error) {
  discard();
  std::string room;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    std::string free;
    best_effort("ask for the free space",
                [&] { free = fmt::format(", {} are free", free_bytes(directory_of(path_))); });
    room = fmt::format(" ({} bytes were to be written{})", std::max(expected_, written_), free);
  }
  throw Error(
      ErrorCode::io,
      fmt::format("cannot {} {}: {}{}", step, shown_path(path_), std::strerror(error), room),
      room.empty() ? std::string() : "make room, or write to another directory");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  SHOAL_CHECK(descriptor_ >= 0, "{} was written after it was committed or had failed", path_);
  const std::int64_t goal = written_ + std::ssize(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error = errno;
      written_ = goal;
      fail("write", error);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    written_ += count;
    progress::made();
  }
}

void AtomicFile::write(std::string_view text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  SHOAL_CHECK(descriptor_ >= 0, "{} was committed twice or had failed", path_);
  // Reserved but unused space must not remain as zeros at the end.
  if (written_ < expected_ && ::ftruncate(descriptor_, written_) != 0) fail("truncate", errno);
  if (::fsync(descriptor_) != 0) fail("sync", errno);
  progress::made();
  if (::close(std::exchange(descriptor_, -1)) != 0) fail("close", errno);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename the new", errno);
  temporary_.clear();
  sync_directory(directory_of(path_));
}

void write_file_atomically(const std::string& path, std::string_view text) {
  AtomicFile file(path, std::ssize(text));
  file.write(text);
  file.commit();
}

void sync_directory(const std::string& directory) {
  const int descriptor = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0)
    throw_error(ErrorCode::io, "cannot open the directory {}: {}", shown_path(directory),
                std::strerror(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // EINVAL: a file system whose directories need no sync.
  if (result != 0 && error != EINVAL)
    throw_error(ErrorCode::io, "cannot sync the directory {}: {}", shown_path(directory),
                std::strerror(error));
}

void rename_and_sync(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    throw_error(ErrorCode::io, "cannot rename {} to {}: {}", shown_path(from), shown_path(to),
                std::strerror(errno));
  std::string plain = to;
  while (plain.size() > 1 && plain.back() == '/') plain.pop_back();
  sync_directory(directory_of(plain));
}

}  // namespace shoal
