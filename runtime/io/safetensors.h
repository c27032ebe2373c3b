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

// One tensor as the header declares it.
struct SafetensorsEntry {
  std::string name;
  std::string dtype;                // the file's word: "F32", "BF16", "F8_E4M3" ...
  std::vector<std::int64_t> sizes;  // any rank; empty: a scalar
  std::int64_t offset = 0;          // bytes from the start of the data
  std::int64_t bytes = 0;
};

// F64 F32 F16 BF16 I64 I32 U8 I8 are Shoal's dtypes; BOOL reads as u8. Others exist in files, and
// throw unavailable when asked for as a tensor.
DType dtype_from_safetensors(std::string_view word, std::string_view tensor);
std::string_view to_safetensors(DType dtype);

using SafetensorsMetadata = std::map<std::string, std::string>;

// A header, checked: at most 100,000,000 bytes; known keys only; sizes not negative, their product
// and byte count without overflow; ranges that match dtype and sizes, tile the data exactly, in
// any order, without hole or overlap; no name twice; `__metadata__` of strings. Else corrupt_data
// with `name`, the tensor and the numbers.
struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in order of offset
  SafetensorsMetadata metadata;
  std::int64_t data_start = 0;  // byte in the file at which the data begin
};
// `file_bytes`: the size of the whole file. `prefix` holds at least its first 8 + header bytes.
SafetensorsHeader parse_safetensors_header(std::string_view prefix, std::int64_t file_bytes,
                                           std::string_view name);

// A file, mapped: opening reads the header only, tensors are pages touched when used.
class SafetensorsFile {
 public:
  static std::shared_ptr<SafetensorsFile> open(const std::string& path);

  const std::vector<SafetensorsEntry>& entries() const { return header_.entries; }
  const SafetensorsMetadata& metadata() const { return header_.metadata; }
  bool contains(std::string_view name) const;
  const SafetensorsEntry& entry(std::string_view name) const;     // not_found names the nearest
  std::span<const std::byte> bytes(std::string_view name) const;  // live as long as this object
  // A read-only tensor over the mapped pages, which it keeps alive (a copy where the file's bytes
  // are not aligned for the dtype). Writing through it throws.
  Tensor tensor(std::string_view name) const;
  const std::string& path() const { return map_->path(); }

 private:
  SafetensorsFile() = default;
  std::shared_ptr<MappedFile> map_;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes a file atomically, tensor after tensor, without holding them all. The entries (name,
// dtype, sizes; offsets and bytes are computed) are declared first, because the header comes first;
// they are laid out by alignment, then in the given order, and append() must follow order().
class SafetensorsWriter {
 public:
  // `metadata` gets {"format": "pt"} unless it says otherwise: transformers insists on it.
  SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                    SafetensorsMetadata metadata = {});
  const std::vector<SafetensorsEntry>& order() const { return entries_; }
  // Bytes of the current tensor, in any number of pieces; a tensor must be complete before the
  // next begins. A wrong name or byte count: invalid_argument.
  void append(std::string_view name, std::span<const std::byte> piece);
  void commit();  // invalid_argument when tensors are missing

 private:
  struct Laid {};  // the constructor that runs once the header is laid out
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
