// Local files: memory-mapped reading, and writing that replaces a whole file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include <sys/types.h>

namespace shoal {

// Opens a regular file for reading; the caller closes the descriptor. Throws invalid_argument at
// once for anything else, naming its kind: a directory, a device, or a named pipe (whose open()
// would wait for a writer). Throws not_found, or io with the reason. `flags` are added to O_RDONLY
// and O_CLOEXEC.
int open_regular_file(const std::string& path, int flags = 0);

// A whole file, mapped read-only. Shrinking a mapped file raises SIGBUS in the reader, so Shoal
// replaces its files by rename and never shrinks them.
class MappedFile {
 public:
  // Throws not_found, or io with the reason. An empty file maps to an empty span.
  static std::shared_ptr<MappedFile> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile(std::string path, const std::byte* data, std::size_t size)
      : path_(std::move(path)), data_(data), size_(size) {}
  std::string path_;
  const std::byte* data_;
  std::size_t size_;
};

// Replaces `path` as a whole or not at all. Bytes go to a temporary file in the same directory;
// commit() syncs it, renames it over `path` and syncs the directory. Without commit(), or after an
// error, the temporary file is removed and the old file is unchanged.
// Every failure throws io with the path, the reason, and for a full disk the bytes to be written. A
// new file has mode 0666 minus the umask; a replaced one keeps its mode. Not thread-safe.
class AtomicFile {
 public:
  // `expected_bytes`, if known, is reserved first, so that a full disk is detected at once.
  explicit AtomicFile(std::string path, std::int64_t expected_bytes = 0);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  std::int64_t written() const { return written_; }
  const std::string& path() const { return path_; }
  void commit();

 private:
  void create();
  void discard() noexcept;
  [[noreturn]] void fail(const char* step, int error_number);
  std::string path_, temporary_;
  int descriptor_ = -1;
  std::int64_t expected_ = 0, written_ = 0;
};

void write_file_atomically(const std::string& path, std::string_view text);

// fsync of a directory, which makes renames and creations inside it durable. Throws io on failure.
void sync_directory(const std::string& directory);
// rename(from, to), then fsync of the directory that holds `to`: the last step of a checkpoint.
void rename_and_sync(const std::string& from, const std::string& to);

}  // namespace shoal
