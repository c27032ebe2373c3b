// The safetensors format (github.com/huggingface/safetensors): an 8-byte little-endian header
// length, a JSON header, then the tensors' bytes without holes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/io/files.h"
#include "shoal/runtime/tensor/tensor.h"

namespace shoal {

// One tensor as declared in the header.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // as in the file: "F32", "BF16", "F8_E4M3" ...
  std::vector<std::int64_t> sizes;  // any rank; empty: a scalar
  std::int64_t offset = 0;          // bytes from the start of the data
  std::int64_t bytes = 0;
};

// Maps F64 F32 F16 BF16 I64 I32 U8 I8 to Shoal's dtypes, and BOOL to u8. Files may hold others;
// asking for them as tensors throws unavailable.
DType dtype_from_safetensors(std::string_view word, std::string_view tensor);
std::string_view to_safetensors(DType dtype);

using SafetensorsMetadata = std::map<std::string, std::string>;

// A validated header: at most 100,000,000 bytes, only known keys, non-negative sizes whose product
// and byte count do not overflow, unique names, and a `__metadata__` of strings. Ranges match dtype
// and sizes and tile the data exactly, in any order, without holes or overlaps. Otherwise parsing
// throws corrupt_data with `name`, the tensor and the numbers.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in order of offset
  SafetensorsMetadata metadata;
  std::int64_t data_start = 0;  // offset in the file at which the data begins
};
// `file_bytes`: size of the whole file. `prefix` holds at least its first 8 + header bytes.
SafetensorsHeader parse_safetensors_header(std::string_view prefix, std::int64_t file_bytes,
                                           std::string_view name);

// A memory-mapped safetensors file. Opening reads only the header; a tensor's pages are read when
// used.
class SafetensorsFile {
 public:
  static std::shared_ptr<SafetensorsFile> open(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  bool contains(std::string_view name) const;
  const SafetensorsEntry& entry(std::string_view name) const;     // not_found names the nearest
  std::span<const std::byte> bytes(std::string_view name) const;  // valid as long as this object
  // A read-only tensor over the mapped pages, which it keeps alive. If the file's bytes are not
  // aligned for the dtype, it is a copy. Writing to it throws.
  Tensor tensor(std::string_view name) const;
  const std::string& path() const { return map_->path(); }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<MappedFile> map_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes a file atomically, one tensor after another, without holding all of them. The header comes
// first, so all entries are declared in advance by name, dtype and sizes; offsets and bytes are
// computed. Tensors are ordered by alignment, then in the given order. append() must follow
// order().
class SafetensorsWriter {
 public:
  // Adds {"format": "pt"} to `metadata` if it has no format, since transformers requires one.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                    SafetensorsMetadata metadata = {});
  const std::vector<SafetensorsEntry>& order() const { return entries_; }
  // Appends bytes of the current tensor, in any number of pieces. A tensor must be complete before
  // the next begins. A wrong name or byte count throws invalid_argument.
  void append(std::string_view name, std::span<const std::byte> piece);
  void commit();  // throws invalid_argument if tensors are missing

 private:
  struct Laid {};  // selects the constructor for entries that are already laid out
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                    SafetensorsMetadata metadata, Laid laid);
  std::string header_;
  AtomicFile file_;
  std::vector<SafetensorsEntry> entries_;
  std::size_t current_ = 0;
  std::int64_t current_bytes_ = 0;
};

SafetensorsEntry make_entry(std::string name, DType dtype, const Shape& shape);

struct NamedView {
  std::string name;
  ConstView view;  // host memory
};
void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors,
                       SafetensorsMetadata metadata = {});

}  // namespace shoal
