// Bytes by range, wherever they live: a local file, memory, or (registered by others) s3://.
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

// Immutable while open. Calls may be made from any thread at once.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual std::int64_t size() const = 0;        // bytes
  virtual const std::string& name() const = 0;  // path or URI, for messages
  // Fills all of `destination` from `offset`. A range beyond the end: corrupt_data with the
  // numbers; a failing system call: io. Blocks.
  virtual void read(std::int64_t offset, std::span<std::byte> destination) const = 0;
};

// pread on a local file. not_found, or io with the reason.
std::shared_ptr<ByteSource> open_file(const std::string& path);
std::shared_ptr<ByteSource> make_memory_source(std::string bytes, std::string name);

// Everything in `source`; io when it is larger than `limit` bytes.
std::string read_all(const ByteSource& source, std::int64_t limit = std::int64_t{1} << 30);
std::string read_text_file(const std::string& path, std::int64_t limit = std::int64_t{1} << 30);

// Which opener serves which scheme. An object that is passed, not a global: the program registers
// what it links. A name without "scheme://", and "file://", is a local path.
class SourceRegistry {
 public:
  using Opener = std::function<std::shared_ptr<ByteSource>(const std::string& uri)>;
  // Every name that begins with `prefix` ("s3://bucket/a/b"), whole, in any order.
  using Lister = std::function<std::vector<std::string>(const std::string& prefix)>;
  // "s3"; a second for one scheme replaces it. Without a lister, names cannot be patterns.
  void add(std::string scheme, Opener opener, Lister lister = {});
  // An unknown scheme: unavailable, naming the schemes there are.
  std::shared_ptr<ByteSource> open(const std::string& uri) const;
  // Whether the name stands for itself: no directory of this machine, no prefix that ends with '/'
  // elsewhere, no pattern (of whatever letters, a name that is there is none).
  bool is_one(const std::string& name) const;
  // The names that match: of a pattern (*, ?, [..], which pass over no '/'), of a directory or a
  // prefix that ends with '/', the files in it, not below; of any other name, itself, whether it is
  // there or not. Sorted; a pattern that nothing matches: not_found.
  std::vector<std::string> match(const std::string& pattern) const;

 private:
  struct Scheme {
    Opener open;
    Lister list;
  };
  const Scheme* find(const std::string& uri) const;  // null: a local path
  std::map<std::string, Scheme, std::less<>> schemes_;
};

// A name without "scheme://" or of "file://", as a path.
bool is_local(std::string_view uri);
std::string local_path(const std::string& uri);

// All of a source at once: a local file mapped, anything else in memory.
struct WholeSource {
  std::string name;
  std::span<const std::byte> bytes = {};
  std::shared_ptr<const void> owner = {};  // of the bytes
};
WholeSource open_whole(const std::string& uri, const SourceRegistry& sources = {});

}  // namespace shoal
