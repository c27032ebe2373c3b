#include "shoal/runtime/io/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

void check_range(const ByteSource& source, std::int64_t offset, std::size_t length) {
  if (offset < 0 || offset > source.size() ||
      length > static_cast<std::size_t>(source.size() - offset))
    throw_error(ErrorCode::corrupt_data, "{}: {} bytes at {} lie beyond its {} bytes",
                source.name(), length, offset, source.size());
}

class LocalFile final : public ByteSource {
 public:
  LocalFile(std::string path, int descriptor, std::int64_t size)
      : path_(std::move(path)), descriptor_(descriptor), size_(size) {}
  ~LocalFile() override { ::close(descriptor_); }
  std::int64_t size() const override { return size_; }
  const std::string& name() const override { return path_; }

  void read(std::int64_t offset, std::span<std::byte> destination) const override {
    check_range(*this, offset, destination.size());
    while (!destination.empty()) {
      const ssize_t count = ::pread(descriptor_, destination.data(), destination.size(), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        throw_error(ErrorCode::io, "cannot read {} at {}: {}", path_, offset, std::strerror(errno));
      if (count == 0)
        throw_error(ErrorCode::corrupt_data, "{} became shorter while it was read: no byte at {}",
                    path_, offset);
      destination = destination.subspan(static_cast<std::size_t>(count));
      offset += count;
    }
  }

 private:
  std::string path_;
  int descriptor_;
  std::int64_t size_;
};

class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string bytes, std::string name)
      : bytes_(std::move(bytes)), name_(std::move(name)) {}
  std::int64_t size() const override { return std::ssize(bytes_); }
  const std::string& name() const override { return name_; }
  void read(std::int64_t offset, std::span<std::byte> destination) const override {
    check_range(*this, offset, destination.size());
    if (!destination.empty())
      std::memcpy(destination.data(), bytes_.data() + offset, destination.size());
  }

 private:
  std::string bytes_, name_;
};

}  // namespace

std::shared_ptr<ByteSource> open_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    throw_error(errno == ENOENT ? ErrorCode::not_found : ErrorCode::io, "cannot open {}: {}", path,
                std::strerror(errno));
  struct stat status{};
  if (::fstat(descriptor, &status) != 0 || !S_ISREG(status.st_mode)) {
    ::close(descriptor);
    throw_error(ErrorCode::io, "cannot open {}: it is not a regular file", path);
  }
  return std::make_shared<LocalFile>(path, descriptor, status.st_size);
}

std::shared_ptr<ByteSource> make_memory_source(std::string bytes, std::string name) {
  return std::make_shared<MemorySource>(std::move(bytes), std::move(name));
}

std::string read_all(const ByteSource& source, std::int64_t limit) {
  if (source.size() > limit)
    throw_error(ErrorCode::io, "{} has {} bytes; at most {} are read at once", source.name(),
                source.size(), limit);
  std::string text(static_cast<std::size_t>(source.size()), '\0');
  source.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

std::string read_text_file(const std::string& path, std::int64_t limit) {
  return read_all(*open_file(path), limit);
}

void SourceRegistry::add(std::string scheme, Opener opener) {
  openers_.insert_or_assign(std::move(scheme), std::move(opener));
}

std::shared_ptr<ByteSource> SourceRegistry::open(const std::string& uri) const {
  const auto end = uri.find("://");
  if (end == uri.npos) return open_file(uri);
  const std::string scheme = uri.substr(0, end);
  if (const auto found = openers_.find(scheme); found != openers_.end()) return found->second(uri);
  if (scheme == "file") return open_file(uri.substr(end + 3));
  std::string known = "file";
  for (const auto& [name, opener] : openers_) known += ", " + name;
  throw_error(ErrorCode::unavailable, "cannot open {}: this program reads the schemes {}", uri,
              known);
}

}  // namespace shoal
