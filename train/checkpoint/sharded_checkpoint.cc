#include "shoal/train/checkpoint/sharded_checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"

namespace shoal {
namespace {

constexpr std::string_view kMetadata = "shoal", kSave = "shoal_save";
constexpr int kMostRanks = 99'999;  // five digits

float number_at(const std::byte* data, DType dtype, std::int64_t element) {
  const auto at = static_cast<std::size_t>(element);
  const auto value = [&]<typename T>(T) {
    T read;
    std::memcpy(&read, data + at * sizeof(T), sizeof(T));
    return static_cast<float>(read);
  };
  switch (dtype) {
    case DType::f32:
      return value(float());
    case DType::bf16:
      return value(bfloat16());
    case DType::f16:
      return value(float16());
    default:
      throw_error(ErrorCode::unavailable, "{} numbers are not converted", to_string(dtype));
  }
}

void convert(const std::byte* from, DType from_dtype, std::int64_t first, const View& into,
             std::int64_t at, std::int64_t count) {
  const auto size = size_of(into.dtype);
  auto* to = static_cast<std::byte*>(into.data) + static_cast<std::size_t>(at) * size;
  if (from_dtype == into.dtype) {
    std::memcpy(to, from + static_cast<std::size_t>(first) * size,
                static_cast<std::size_t>(count) * size);
    return;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    const float value = number_at(from, from_dtype, first + i);
    switch (into.dtype) {
      case DType::f32:
        into.as<float>()[at + i] = value;
        break;
      case DType::bf16:
        into.as<bfloat16>()[at + i] = bfloat16(value);
        break;
      case DType::f16:
        into.as<float16>()[at + i] = float16(value);
        break;
      default:
        throw_error(ErrorCode::unavailable, "{} numbers are not converted to {}",
                    to_string(from_dtype), to_string(into.dtype));
    }
  }
}

// Parses rank and ranks of a shard's file name. (Without std::regex, for which GCC 12 with
// AddressSanitizer warns of uninitialised values.)
bool parse_name(const std::string& name, int& rank, int& ranks) {
  if (name.size() != shard_name(0, 1).size()) return false;
  const auto digits = [&](std::size_t at, int& number) {
    return std::from_chars(name.data() + at, name.data() + at + 5, number).ec == std::errc();
  };
  return digits(sizeof("shard-") - 1, rank) && digits(sizeof("shard-00000-of-") - 1, ranks) &&
         name == shard_name(rank, ranks);
}

}  // namespace

std::string shard_name(int rank, int ranks) {
  return fmt::format("shard-{:05}-of-{:05}.safetensors", rank, ranks);
}

void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const TensorShard> tensors,
                 const std::function<ConstView(std::size_t)>& data, const std::string& save) {
  SHOAL_CHECK(0 <= rank && rank < ranks && ranks <= kMostRanks, "a shard of rank {} of {}", rank,
              ranks);
  std::vector<SafetensorsEntry> entries;
  nlohmann::ordered_json described = nlohmann::ordered_json::array();
  std::map<std::string, std::size_t> index;
  for (const TensorShard& shard : tensors) {
    // The key is numbered because one rank may hold several parts of a tensor.
    const std::string key = fmt::format("{}#{}", shard.name, entries.size());
    nlohmann::ordered_json json = to_json(shard);
    json["key"] = key;
    described.push_back(std::move(json));
    index.emplace(key, entries.size());
    entries.push_back(make_entry(key, shard.dtype, {shard.count()}));
  }
  SafetensorsWriter writer(
      directory + "/" + shard_name(rank, ranks), std::move(entries),
      {{std::string(kMetadata), described.dump()}, {std::string(kSave), save}});
  for (const SafetensorsEntry& entry : std::vector(writer.order())) {
    const TensorShard& shard = tensors[index.at(entry.name)];
    const ConstView view = data(index.at(entry.name));
    SHOAL_CHECK(view.shape.count() == shard.count() && view.dtype == shard.dtype,
                "{}: {} {} are given for {} {}", shard.name, view.shape.count(),
                to_string(view.dtype), shard.count(), to_string(shard.dtype));
    writer.append(entry.name, {static_cast<const std::byte*>(view.data),
                               static_cast<std::size_t>(entry.bytes)});
  }
  writer.commit();
}

void write_shard(const std::string& directory, int rank, int ranks,
                 std::span<const ShardData> tensors, const std::string& save) {
  std::vector<TensorShard> shards;
  for (const ShardData& tensor : tensors) shards.push_back(tensor.shard);
  write_shard(directory, rank, ranks, shards, [&](std::size_t i) { return tensors[i].data; }, save);
}

FoundShards find_shards(const std::string& directory) {
  FoundShards found;
  for (const DirectoryEntry& entry : list_directory_if_there(directory)) {
    int rank = 0, of = 0;
    if (!parse_name(entry.name, rank, of)) continue;
    if (found.ranks != 0 && of != found.ranks)
      throw_error(ErrorCode::corrupt_data, "{} holds shards of {} and of {} ranks: two saves",
                  directory, found.ranks, of);
    found.ranks = of;
    found.paths[rank] = entry.path;
  }
  return found;
}

std::string save_problem(const SafetensorsFile& first, const SafetensorsFile& shard) {
  // Older shards have no name of their save.
  const auto save_of = [](const SafetensorsFile& file) {
    const auto found = file.metadata().find(std::string(kSave));
    return found == file.metadata().end() ? std::string() : found->second;
  };
  const std::string one = save_of(first), other = save_of(shard);
  if (one == other) return {};
  return fmt::format("{} is of the save '{}', {} of '{}': two saves, of which one did not end",
                     shard.path(), shortened(other), first.path(), shortened(one));
}

std::vector<ShardEntry> entries_of_shard(const SafetensorsFile& file) {
  const auto metadata = file.metadata().find(std::string(kMetadata));
  const auto json = metadata == file.metadata().end()
                        ? nlohmann::json()
                        : json_if_valid(metadata->second).value_or(nullptr);
  if (!json.is_array())
    throw_error(ErrorCode::corrupt_data, "{} does not say what its tensors are", file.path());
  std::vector<ShardEntry> entries;
  for (const auto& one : json) {
    TensorShard shard = shard_from_json(one, file.path());
    const auto name = one.find("key");
    std::string key = name != one.end() && name->is_string() ? name->get<std::string>() : "";
    if (!file.contains(key) || file.entry(key).sizes.size() != 1 ||
        file.entry(key).sizes[0] != shard.count() ||
        dtype_from_safetensors(file.entry(key).dtype, key) != shard.dtype)
      throw_error(ErrorCode::corrupt_data, "{}: {} is not the part that its description says",
                  file.path(), shortened(shard.name));
    entries.push_back({std::move(shard), std::move(key)});
  }
  return entries;
}

ShardedCheckpoint ShardedCheckpoint::open(const std::string& directory) {
  ShardedCheckpoint checkpoint;
  checkpoint.directory_ = directory;
  const FoundShards found = find_shards(directory);
  if (found.paths.empty())
    throw Error(ErrorCode::not_found, fmt::format("{} holds no shards", directory),
                "a sharded checkpoint is a directory of shard-00000-of-... files");
  for (int rank = 0; rank < found.ranks; ++rank)
    if (!found.paths.contains(rank))
      throw Error(ErrorCode::corrupt_data,
                  fmt::format("{} lacks {}", directory, shard_name(rank, found.ranks)),
                  "the files of all ranks that wrote belong together");
  std::map<std::string, std::vector<TensorShard>> by_name;
  for (const auto& [rank, path] : found.paths) {
    const auto file = SafetensorsFile::open(path);
    checkpoint.files_.push_back(file);
    if (const std::string two = save_problem(*checkpoint.files_.front(), *file); !two.empty())
      throw Error(ErrorCode::corrupt_data, two, "take another checkpoint");
    for (ShardEntry& entry : entries_of_shard(*file)) {
      by_name[entry.shard.name].push_back(entry.shard);
      checkpoint.add_part(std::move(entry), file);
    }
  }
  for (const auto& [name, parts] : by_name) {
    const std::string problem = tiling_problem(parts);
    if (!problem.empty()) throw_error(ErrorCode::corrupt_data, "{}: {}", directory, problem);
    checkpoint.tensors_[name] = {parts.front().whole, parts.front().dtype,
                                 static_cast<int>(parts.size())};
  }
  return checkpoint;
}

ShardedCheckpoint ShardedCheckpoint::open_full(const std::string& directory) {
  ShardedCheckpoint checkpoint;
  checkpoint.directory_ = directory;
  const bool adapts = nn::is_adapter(directory);
  if (adapts)
    checkpoint.files_ = {
        SafetensorsFile::open(fmt::format("{}/{}.safetensors", directory, nn::kAdapterWeights))};
  else
    checkpoint.files_ = ShardedSafetensors::open(directory).files();
  const std::string optimizer = directory + "/" + std::string(kOptimizerStateFile);
  if (path_exists(optimizer)) checkpoint.files_.push_back(SafetensorsFile::open(optimizer));
  for (const auto& file : checkpoint.files_)
    for (const SafetensorsEntry& entry : file->entries()) {
      const Shape shape{std::span<const std::int64_t>(entry.sizes)};
      const DType dtype = dtype_from_safetensors(entry.dtype, entry.name);
      std::string name = entry.name;
      if (adapts && name.starts_with(nn::kAdapterPrefix)) name.erase(0, nn::kAdapterPrefix.size());
      if (!checkpoint.tensors_.emplace(name, Description{shape, dtype, 1}).second)
        throw_error(ErrorCode::corrupt_data, "{}: tensor '{}' is in two files", directory,
                    shortened(name));
      checkpoint.add_part({whole_tensor(name, shape, dtype), entry.name}, file);
    }
  return checkpoint;
}

void ShardedCheckpoint::add_part(ShardEntry entry, std::shared_ptr<SafetensorsFile> file) {
  std::vector<TensorRun> runs = runs_of(entry.shard);
  std::vector<Part>& parts = parts_[entry.shard.name];
  parts.push_back({std::move(entry), std::move(runs), std::move(file)});
}

void ShardedCheckpoint::read(const TensorShard& wanted, const View& into) const {
  const auto found = parts_.find(wanted.name);
  if (found == parts_.end()) {
    std::vector<std::string> names;
    for (const auto& [name, description] : tensors_) names.push_back(name);
    throw Error(ErrorCode::not_found,
                fmt::format("{} has no {}", directory_, shortened(wanted.name)),
                names_there_are(wanted.name, names));
  }
  const Description& there = tensors_.at(wanted.name);
  if (there.shape != wanted.whole)
    throw_error(ErrorCode::invalid_argument, "{}: {} is {}, the model wants {}", directory_,
                wanted.name, to_string(there.shape), to_string(wanted.whole));
  SHOAL_CHECK(into.shape.count() == wanted.count() && into.dtype == wanted.dtype,
              "{}: {} {} to fill with {} {}", wanted.name, into.shape.count(),
              to_string(into.dtype), wanted.count(), to_string(wanted.dtype));
  const std::vector<TensorRun> need = runs_of(wanted);
  std::int64_t filled = 0;
  for (const Part& part : found->second) {
    const std::byte* data = part.file->bytes(part.entry.key).data();
    // Both lists are sorted; walk them side by side.
    for (std::size_t a = 0, b = 0; a < need.size() && b < part.runs.size();) {
      const TensorRun &want = need[a], &have = part.runs[b];
      const std::int64_t first = std::max(want.whole, have.whole);
      const std::int64_t last = std::min(want.whole + want.count, have.whole + have.count);
      if (first < last) {
        convert(data, part.entry.shard.dtype, have.local + first - have.whole, into,
                want.local + first - want.whole, last - first);
        filled += last - first;
      }
      want.whole + want.count < have.whole + have.count ? ++a : ++b;
    }
  }
  SHOAL_CHECK(filled == wanted.count(), "{}: {} of {} elements were found", wanted.name, filled,
              wanted.count());
}

}  // namespace shoal
