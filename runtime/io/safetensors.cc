#include "shoal/runtime/io/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal {
namespace {

using Json = nlohmann::json;

constexpr std::int64_t kMaxHeader = 100'000'000;

struct Word {
  std::string_view word;
  std::int64_t bytes;          // per element
  std::optional<DType> dtype;  // Shoal's dtype, if there is one
};

constexpr std::array<Word, 17> kWords{{{"F64", 8, DType::f64},
                                       {"F32", 4, DType::f32},
                                       {"F16", 2, DType::f16},
                                       {"BF16", 2, DType::bf16},
                                       {"I64", 8, DType::i64},
                                       {"I32", 4, DType::i32},
                                       {"U8", 1, DType::u8},
                                       {"I8", 1, DType::i8},
                                       {"BOOL", 1, DType::u8},
                                       {"U64", 8, {}},
                                       {"U32", 4, {}},
                                       {"U16", 2, {}},
                                       {"I16", 2, {}},
                                       {"C64", 8, {}},
                                       {"F8_E4M3", 1, {}},
                                       {"F8_E5M2", 1, {}},
                                       {"F8_E8M0", 1, {}}}};

const Word* find_word(std::string_view word) {
  const auto found = std::ranges::find(kWords, word, &Word::word);
  return found == kWords.end() ? nullptr : &*found;
}

[[noreturn]] void corrupt(std::string_view name, const std::string& what) {
  throw_error(ErrorCode::corrupt_data, "{}: {}", name, what);
}

// Reads a non-negative integer. Returns nullopt otherwise, as for 3.0, -1 and 2^64.
std::optional<std::int64_t> whole(const Json& value) {
  if (!value.is_number_unsigned()) return std::nullopt;
  const auto number = value.get<std::uint64_t>();
  if (number > static_cast<std::uint64_t>(INT64_MAX)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

SafetensorsEntry parse_entry(std::string_view file, const std::string& name, const Json& value) {
  const auto bad = [&](const std::string& what) {
    corrupt(file, fmt::format("tensor '{}' {}", shortened(name), what));
  };
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets"))
    bad("needs exactly dtype, shape and data_offsets");
  SafetensorsEntry entry;
  entry.name = name;
  if (!value["dtype"].is_string()) bad("has a dtype that is not a word");
  entry.dtype = value["dtype"].get<std::string>();
  const Word* word = find_word(entry.dtype);
  if (!word) bad(fmt::format("has the unknown dtype '{}'", shortened(entry.dtype, 40)));

  if (!value["shape"].is_array()) bad("has a shape that is not a list");
  bool empty = false;
  for (const Json& size : value["shape"]) {
    const auto number = whole(size);
    if (!number) bad(fmt::format("has the size {}", shortened(size.dump(), 40)));
    entry.sizes.push_back(*number);
    empty = empty || *number == 0;
  }
  std::int64_t bytes = empty ? 0 : word->bytes;
  if (!empty)
    for (const std::int64_t size : entry.sizes)
      if (__builtin_mul_overflow(bytes, size, &bytes)) bad("has a shape that overflows");

  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2 || !whole(offsets[0]) || !whole(offsets[1]))
    bad("has data_offsets that are not two positions");
  const std::int64_t begin = *whole(offsets[0]), end = *whole(offsets[1]);
  if (end < begin || end - begin != bytes)
    bad(fmt::format("takes {} bytes by dtype and shape, but [{}, {}) by data_offsets", bytes, begin,
                    end));
  entry.offset = begin;
  entry.bytes = bytes;
  return entry;
}

SafetensorsMetadata parse_metadata(std::string_view file, const Json& value) {
  if (!value.is_object()) corrupt(file, "__metadata__ is not an object");
  SafetensorsMetadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string())
      corrupt(file, fmt::format("__metadata__['{}'] is not a string", shortened(key)));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

std::int64_t header_length(std::string_view prefix, std::int64_t file_bytes,
                           std::string_view name) {
  if (file_bytes < 8 || prefix.size() < 8)
    corrupt(name, fmt::format("{} bytes are too few for a safetensors file", file_bytes));
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < 8; ++i)
    length |= static_cast<std::uint64_t>(static_cast<unsigned char>(prefix[i])) << (8 * i);
  if (length > static_cast<std::uint64_t>(kMaxHeader))
    corrupt(name,
            fmt::format("a header of {} bytes is above the limit of {}; is this a safetensors "
                        "file?",
                        length, kMaxHeader));
  const auto bytes = static_cast<std::int64_t>(length);
  if (bytes > file_bytes - 8)
    corrupt(name,
            fmt::format("truncated: the header has {} bytes, the file {}", bytes, file_bytes));
  return bytes;
}

}  // namespace

DType dtype_from_safetensors(std::string_view word, std::string_view tensor) {
  const Word* found = find_word(word);
  if (!found || !found->dtype)
    throw_error(
        ErrorCode::unavailable,
        "tensor '{}' is of {}; Shoal computes with F64, F32, F16, BF16, I64, I32, U8, I8 and "
        "BOOL (as u8)",
        shortened(tensor), shortened(word, 40));
  return *found->dtype;
}

std::string_view to_safetensors(DType dtype) {
  for (const Word& word : kWords)
    if (word.dtype == dtype) return word.word;
  SHOAL_ASSERT(false);
}

SafetensorsHeader parse_safetensors_header(std::string_view prefix, std::int64_t file_bytes,
                                           std::string_view name) {
  const std::int64_t length = header_length(prefix, file_bytes, name);
  SHOAL_CHECK(std::ssize(prefix) >= 8 + length, "{}: {} bytes were given of a header of {}", name,
              prefix.size(), 8 + length);
  const std::string_view text = prefix.substr(8, static_cast<std::size_t>(length));
  if (text.empty() || text.front() != '{') corrupt(name, "the header does not start with '{'");
  const Json json = parse_json(text, name, 8);

  SafetensorsHeader header;
  header.data_start = 8 + length;
  for (const auto& [key, value] : json.items()) {
    if (key == "__metadata__")
      header.metadata = parse_metadata(name, value);
    else
      header.entries.push_back(parse_entry(name, key, value));
  }
  // Tensors that begin at the same byte are ordered by size, so that empty ones come first, then by
  // name.
  std::ranges::sort(header.entries, {}, [](const SafetensorsEntry& e) {
    return std::tuple<std::int64_t, std::int64_t, const std::string&>(e.offset, e.bytes, e.name);
  });
  std::int64_t next = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.offset != next)
      corrupt(name, fmt::format(
                        "tensor '{}' begins at byte {} of the data, {} {}", shortened(entry.name),
                        entry.offset,
                        entry.offset < next ? "inside another that ends at" : "leaving a hole from",
                        next));
    next = entry.offset + entry.bytes;  // cannot overflow: both come from one checked range
  }
  const std::int64_t have = file_bytes - header.data_start;
  if (next > have)
    corrupt(name,
            fmt::format("truncated: the tensors take {} bytes, the file holds {}", next, have));
  if (next < have) corrupt(name, fmt::format("{} bytes follow the last tensor", have - next));
  return header;
}

std::shared_ptr<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  std::shared_ptr<SafetensorsFile> file(new SafetensorsFile);
  file->map_ = MappedFile::open(path);
  const auto bytes = file->map_->bytes();
  file->header_ = parse_safetensors_header(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, std::ssize(bytes), path);
  for (std::size_t i = 0; i < file->header_.entries.size(); ++i)
    file->index_.emplace(file->header_.entries[i].name, i);
  return file;
}

bool SafetensorsFile::contains(std::string_view name) const { return index_.contains(name); }

const SafetensorsEntry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = index_.find(name);
  if (found != index_.end()) return header_.entries[found->second];
  std::vector<std::string> names;
  for (const auto& [known, i] : index_) names.push_back(known);
  throw Error(ErrorCode::not_found, fmt::format("{} has no tensor '{}'", path(), shortened(name)),
              did_you_mean(name, names));
}

std::span<const std::byte> SafetensorsFile::bytes(std::string_view name) const {
  const SafetensorsEntry& found = entry(name);
  return map_->bytes().subspan(static_cast<std::size_t>(header_.data_start + found.offset),
                               static_cast<std::size_t>(found.bytes));
}

Tensor SafetensorsFile::tensor(std::string_view name) const {
  progress::made();  // the previous tensor has been read
  const SafetensorsEntry& found = entry(name);
  const DType dtype = dtype_from_safetensors(found.dtype, name);
  if (found.sizes.size() > Shape::kMaxRank)
    throw_error(ErrorCode::unavailable, "tensor '{}' of {} has {} dimensions; at most {} are read",
                shortened(name), path(), found.sizes.size(), Shape::kMaxRank);
  const Shape shape{std::span<const std::int64_t>(found.sizes)};
  const auto content = bytes(name);
  const bool aligned = reinterpret_cast<std::uintptr_t>(content.data()) % size_of(dtype) == 0;
  if (aligned)
    return Tensor::over(Storage::read_only(content.data(), content.size(), Device::cpu(), map_), 0,
                        shape, dtype);
  auto copy = std::make_shared<std::vector<std::max_align_t>>(
      (content.size() + sizeof(std::max_align_t) - 1) / sizeof(std::max_align_t));
  std::memcpy(copy->data(), content.data(), content.size());
  const void* data = copy->data();
  return Tensor::over(Storage::read_only(data, content.size(), Device::cpu(), std::move(copy)), 0,
                      shape, dtype);
}

SafetensorsEntry make_entry(std::string name, DType dtype, const Shape& shape) {
  SafetensorsEntry entry;
  entry.name = std::move(name);
  entry.dtype = to_safetensors(dtype);
  entry.sizes.assign(shape.sizes().begin(), shape.sizes().end());
  return entry;
}

namespace {

// Orders the entries, computes offsets and bytes, and returns the header with its length.
std::string lay_out(const std::string& path, std::vector<SafetensorsEntry>& entries,
                    SafetensorsMetadata metadata) {
  std::set<std::string_view> names;
  for (SafetensorsEntry& entry : entries) {
    SHOAL_CHECK(entry.name != "__metadata__" && names.insert(entry.name).second,
                "{}: the tensor name '{}' is taken", path, shortened(entry.name));
    const Word* word = find_word(entry.dtype);
    SHOAL_CHECK(word, "{}: tensor '{}' has the unknown dtype '{}'", path, shortened(entry.name),
                shortened(entry.dtype));
    entry.bytes = word->bytes;
    for (const std::int64_t size : entry.sizes)
      SHOAL_CHECK(size >= 0 && !__builtin_mul_overflow(entry.bytes, size, &entry.bytes),
                  "{}: tensor '{}' has a bad size {}", path, shortened(entry.name), size);
  }
  // Holes are not allowed. With the widest elements first, all tensors are aligned.
  std::ranges::stable_sort(entries, std::ranges::greater{}, [](const SafetensorsEntry& entry) {
    return find_word(entry.dtype)->bytes;
  });
  OrderedFields fields;
  metadata.emplace("format", "pt");
  fields["__metadata__"] = metadata;
  std::int64_t offset = 0;
  for (SafetensorsEntry& entry : entries) {
    entry.offset = offset;
    SHOAL_CHECK(!__builtin_add_overflow(offset, entry.bytes, &offset), "{}: the sizes overflow",
                path);
    fields[entry.name] = {
        {"dtype", entry.dtype}, {"shape", entry.sizes}, {"data_offsets", {entry.offset, offset}}};
  }
  std::string text;
  try {
    text = std::move(fields).json().dump();
  } catch (const nlohmann::json::exception&) {
    throw_error(ErrorCode::invalid_argument, "{}: a tensor name or metadata is not UTF-8", path);
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data starts at a multiple of 8 bytes
  SHOAL_CHECK(std::ssize(text) <= kMaxHeader, "{}: a header of {} bytes is above the limit of {}",
              path, text.size(), kMaxHeader);
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>((text.size() >> (8 * i)) & 0xff);
  return header + text;
}

std::int64_t total_bytes(const std::string& header, const std::vector<SafetensorsEntry>& entries) {
  return std::ssize(header) + (entries.empty() ? 0 : entries.back().offset + entries.back().bytes);
}

}  // namespace

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     SafetensorsMetadata metadata)
    : SafetensorsWriter(path, std::move(entries), std::move(metadata), Laid{}) {}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> entries,
                                     SafetensorsMetadata metadata, Laid laid)
    : header_(lay_out(path, entries, std::move(metadata))),
      file_(path, total_bytes(header_, entries)),
      entries_(std::move(entries)) {
  (void)laid;
  file_.write(header_);
}

void SafetensorsWriter::append(std::string_view name, std::span<const std::byte> piece) {
  while (current_ < entries_.size() && entries_[current_].name != name &&
         current_bytes_ == entries_[current_].bytes) {
    ++current_;
    current_bytes_ = 0;
  }
  SHOAL_CHECK(current_ < entries_.size(), "{}: all tensors are written; '{}' is one too many",
              file_.path(), shortened(name));
  const SafetensorsEntry& entry = entries_[current_];
  SHOAL_CHECK(entry.name == name, "{}: '{}' was appended while '{}' has {} of {} bytes",
              file_.path(), shortened(name), shortened(entry.name), current_bytes_, entry.bytes);
  SHOAL_CHECK(std::ssize(piece) <= entry.bytes - current_bytes_,
              "{}: {} bytes more for '{}', which has {} of {}", file_.path(), piece.size(),
              shortened(name), current_bytes_, entry.bytes);
  file_.write(piece);
  current_bytes_ += std::ssize(piece);
}

void SafetensorsWriter::commit() {
  while (current_ < entries_.size() && current_bytes_ == entries_[current_].bytes) {
    ++current_;
    current_bytes_ = 0;
  }
  SHOAL_CHECK(current_ == entries_.size(), "{}: tensor '{}' has {} of {} bytes", file_.path(),
              shortened(entries_[current_].name), current_bytes_, entries_[current_].bytes);
  file_.commit();
}

void write_safetensors(const std::string& path, const std::vector<NamedView>& tensors,
                       SafetensorsMetadata metadata) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string_view, const ConstView*> views;
  for (const NamedView& tensor : tensors) {
    SHOAL_CHECK(tensor.view.device.is_cpu(), "{}: tensor '{}' is not in host memory", path,
                shortened(tensor.name));
    entries.push_back(make_entry(tensor.name, tensor.view.dtype, tensor.view.shape));
    views.emplace(tensor.name, &tensor.view);
  }
  SafetensorsWriter writer(path, std::move(entries), std::move(metadata));
  for (const SafetensorsEntry& entry : writer.order()) {
    const auto* data = static_cast<const std::byte*>(views.at(entry.name)->data);
    writer.append(entry.name, {data, static_cast<std::size_t>(entry.bytes)});
  }
  writer.commit();
}

}  // namespace shoal
