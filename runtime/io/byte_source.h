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
  void add(std::string scheme, Opener opener);  // "s3"; a second for one scheme replaces it
  // An unknown scheme: unavailable, naming the schemes there are.
  std::shared_ptr<ByteSource> open(const std::string& uri) const;

 private:
  std::map<std::string, Opener, std::less<>> openers_;
};

}  // namespace shoal
