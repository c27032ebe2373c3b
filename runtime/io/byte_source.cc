#include "shoal/runtime/io/byte_source.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <fnmatch.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/shown_path.h"

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
      constexpr std::size_t kPart = std::size_t{8} << 20;  // bytes between two signs of progress
      const ssize_t count =
          ::pread(descriptor_, destination.data(), std::min(destination.size(), kPart), offset);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0)
        throw_error(ErrorCode::io, "cannot read {} at {}: {}", shown_path(path_), offset,
                    std::strerror(errno));
      if (count == 0)
        throw_error(ErrorCode::corrupt_data, "{} became shorter while it was read: no byte at {}",
                    path_, offset);
      destination = destination.subspan(static_cast<std::size_t>(count));
      offset += count;
      progress::made();
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
  const int descriptor = open_regular_file(path);
  struct stat status{};
  if (::fstat(descriptor, &status) != 0) {
    const int error = errno;
    ::close(descriptor);
    throw_error(ErrorCode::io, "cannot look at {}: {}", shown_path(path), std::strerror(error));
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

namespace {

// Matches files, not directories. An unreadable directory is an error, since its files may match.
std::vector<std::string> local_matches(const std::string& pattern) {
  struct Found : ::glob_t {
    ~Found() { ::globfree(this); }
  } found{};
  static thread_local std::string unreadable;
  unreadable.clear();
  const int result = ::glob(
      pattern.c_str(), GLOB_MARK,  // with GLOB_ERR an absent directory would be an error too
      [](const char* path, int error) {
        if (error == ENOENT || error == ENOTDIR) return 0;
        unreadable = fmt::format("{}: {}", path, std::strerror(error));
        return 1;
      },
      &found);
  if (result != 0 && result != GLOB_NOMATCH)
    throw_error(ErrorCode::io, "cannot list {}: {}", shown_path(pattern),
                unreadable.empty() ? "out of memory" : unreadable);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < found.gl_pathc; ++i)
    if (std::string name = found.gl_pathv[i]; !name.ends_with('/'))
      names.push_back(std::move(name));
  return names;
}

}  // namespace

void SourceRegistry::add(std::string scheme, Opener opener, Lister lister) {
  schemes_.insert_or_assign(std::move(scheme), Scheme{std::move(opener), std::move(lister)});
}

const SourceRegistry::Scheme* SourceRegistry::find(const std::string& uri) const {
  const auto end = uri.find("://");
  if (end == uri.npos) return nullptr;
  const std::string scheme = uri.substr(0, end);
  if (const auto found = schemes_.find(scheme); found != schemes_.end()) return &found->second;
  if (scheme == "file") return nullptr;
  std::string known = "file";
  for (const auto& [name, with] : schemes_) known += ", " + name;
  throw_error(ErrorCode::unavailable, "cannot open {}: this program reads the schemes {}",
              shown_path(uri), known);
}

std::shared_ptr<ByteSource> SourceRegistry::open(const std::string& uri) const {
  const Scheme* scheme = find(uri);
  return scheme != nullptr ? scheme->open(uri) : open_file(local_path(uri));
}

bool SourceRegistry::is_one(const std::string& name) const {
  if (find(name) != nullptr) return name.find_first_of("*?[") == name.npos && !name.ends_with('/');
  const std::string path = local_path(name);
  const FileKind kind = file_kind(path);
  if (kind == FileKind::directory) return false;
  return kind != FileKind::absent || path.find_first_of("*?[") == path.npos;
}

std::vector<std::string> SourceRegistry::match(const std::string& pattern) const {
  const Scheme* scheme = find(pattern);
  const std::string path = scheme != nullptr ? pattern : local_path(pattern);
  if (is_one(pattern)) return {path};
  const bool is_directory =
      scheme != nullptr ? path.find_first_of("*?[") == path.npos : shoal::is_directory(path);
  const std::string wanted = !is_directory ? path : path.ends_with('/') ? path + "*" : path + "/*";
  std::vector<std::string> names;
  if (scheme == nullptr) {
    names = local_matches(wanted);
  } else {
    if (!scheme->list)
      throw Error(ErrorCode::unavailable,
                  fmt::format("cannot list {}: this program reads such names, one by one",
                              shown_path(pattern)),
                  "give each file by its whole name");
    for (std::string& name : scheme->list(wanted.substr(0, wanted.find_first_of("*?["))))
      if (!name.ends_with('/') && ::fnmatch(wanted.c_str(), name.c_str(), FNM_PATHNAME) == 0)
        names.push_back(std::move(name));
  }
  if (names.empty()) throw_error(ErrorCode::not_found, "nothing matches {}", shown_path(pattern));
  std::sort(names.begin(), names.end());
  return names;
}

bool is_local(std::string_view uri) {
  const auto end = uri.find("://");
  return end == uri.npos || uri.substr(0, end) == "file";
}

std::string local_path(const std::string& uri) {
  return uri.starts_with("file://") ? uri.substr(7) : uri;
}

WholeSource open_whole(const std::string& uri, const SourceRegistry& sources) {
  if (is_local(uri)) {
    auto map = MappedFile::open(local_path(uri));
    const auto bytes = map->bytes();
    return {map->path(), bytes, std::move(map)};
  }
  const auto source = sources.open(uri);
  auto bytes = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(source->size()));
  source->read(0, *bytes);
  return {source->name(), *bytes, bytes};
}

}  // namespace shoal
