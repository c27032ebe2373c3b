// Byte ranges from a local file, memory, or a registered scheme such as s3://.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

// Immutable while open. Thread-safe.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::int64_t size() const = 0;        // bytes
  virtual const std::string& name() const = 0;  // path or URI, for messages
  // Fills all of `destination` from `offset`. Throws corrupt_data with the numbers if the range
  // exceeds the source, and io if a system call fails. Blocks.
  virtual void read(std::int64_t offset, std::span<std::byte> destination) const = 0;
};

// Uses pread on a local file. Throws not_found, or io with the reason.
std::shared_ptr<ByteSource> open_file(const std::string& path);
std::shared_ptr<ByteSource> make_memory_source(std::string bytes, std::string name);

// Reads all of `source`; throws io if it is larger than `limit` bytes.
std::string read_all(const ByteSource& source, std::int64_t limit = std::int64_t{1} << 30);
std::string read_text_file(const std::string& path, std::int64_t limit = std::int64_t{1} << 30);

// Maps schemes to openers. It is passed as an object, not global: each program registers the
// schemes it links. A name without "scheme://" or with "file://" is a local path.
class SourceRegistry {
 public:
  using Opener = std::function<std::shared_ptr<ByteSource>(const std::string& uri)>;
  // Returns every full name that begins with `prefix` ("s3://bucket/a/b"), in any order.
  using Lister = std::function<std::vector<std::string>(const std::string& prefix)>;
  // `scheme`: "s3". Adding a scheme again replaces it. Without a lister, names cannot be patterns.
  void add(std::string scheme, Opener opener, Lister lister = {});
  // An unknown scheme throws unavailable and names the known schemes.
  std::shared_ptr<ByteSource> open(const std::string& uri) const;
  // True if the name means one file or object: it is no local directory, no remote prefix that ends
  // with '/', and no pattern. A local file that exists counts even if its name looks like a
  // pattern.
  bool is_one(const std::string& name) const;
  // Returns the names that match, sorted; throws not_found if there are none. For a pattern
  // (*, ?, [..], which do not cross '/'): the matching names. For a directory or a prefix that ends
  // with '/': its files, not recursively. For any other name: the name itself, whether it exists or
  // not.
  std::vector<std::string> match(const std::string& pattern) const;

 private:
  struct Scheme {
    Opener open;
    Lister list;
  };
  const Scheme* find(const std::string& uri) const;  // null: a local path
  std::map<std::string, Scheme, std::less<>> schemes_;
};

// A name without "scheme://" or with "file://" is local; local_path() gives it as a path.
bool is_local(std::string_view uri);
std::string local_path(const std::string& uri);

// A whole source: a local file is mapped, anything else is read into memory.
struct WholeSource {
  std::string name;
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = {};  // keeps the bytes alive
};
WholeSource open_whole(const std::string& uri, const SourceRegistry& sources = {});

}  // namespace shoal
