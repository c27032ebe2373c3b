#include "shoal/runtime/io/sharded_safetensors.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/ordered_fields.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// An index is untrusted: it may only name files in its own directory.
void check_shard_name(const std::string& index, const std::string& name) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\\\0", 3)) != name.npos)
    throw_error(ErrorCode::corrupt_data, "{}: {} is not the plain name of a file beside it", index,
                shortened(nlohmann::json(name).dump()));
}

std::map<std::string, std::string> read_weight_map(const std::string& index) {
  const nlohmann::json json = read_json_file(index);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object())
    throw_error(ErrorCode::corrupt_data, "{} has no weight_map", index);
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string())
      throw_error(ErrorCode::corrupt_data, "{}: weight_map['{}'] is not a file name", index,
                  shortened(tensor));
    check_shard_name(index, file.get<std::string>());
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

// True for buffers that old versions of transformers saved and new ones compute. An old index may
// list them although the files lack them; transformers skips them too.
bool is_old_buffer(std::string_view tensor) {
  constexpr std::array kEndings = {"rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias",
                                   ".position_ids", ".token_type_ids"};
  return std::ranges::any_of(kEndings,
                             [&](std::string_view ending) { return tensor.ends_with(ending); });
}

std::int64_t bytes_of(const SafetensorsEntry& entry) {
  std::int64_t count = 1;
  for (const std::int64_t size : entry.sizes) count *= size;
  return count *
         static_cast<std::int64_t>(size_of(dtype_from_safetensors(entry.dtype, entry.name)));
}

void write_values(const std::string& path, std::vector<SafetensorsEntry> entries,
                  const std::function<ConstView(const std::string&)>& value) {
  SafetensorsWriter writer(path, std::move(entries));
  for (const SafetensorsEntry& entry : std::vector(writer.order())) {
    const ConstView view = value(entry.name);
    SHOAL_CHECK(view.device.is_cpu(), "{}: tensor '{}' is not in host memory", path,
                shortened(entry.name));
    SHOAL_CHECK(view.shape.count() * static_cast<std::int64_t>(size_of(view.dtype)) == entry.bytes,
                "{}: {} {} are given for tensor '{}' of {} bytes", path, view.shape.count(),
                to_string(view.dtype), shortened(entry.name), entry.bytes);
    writer.append(entry.name, {static_cast<const std::byte*>(view.data),
                               static_cast<std::size_t>(entry.bytes)});
  }
  writer.commit();
}

// Uses transformers' order of preference, so that Shoal and transformers read the same weights if a
// directory has a single file and an index.
std::string find_in_directory(const fs::path& directory) {
  const std::string single = directory / "model.safetensors";
  const std::string index = directory / "model.safetensors.index.json";
  if (path_exists(single)) return single;
  if (path_exists(index)) return index;
  std::string found;
  for (const char* other :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"})
    if (found.empty() && path_exists(directory / other)) found = other;
  throw Error(ErrorCode::not_found,
              fmt::format("{} holds neither model.safetensors nor its index{}", directory.string(),
                          found.empty() ? "" : ", but " + found + ", which is not read"),
              found.empty() ? ""
                            : "open it with its class of transformers and save_pretrained() it, "
                              "which writes safetensors");
}

}  // namespace

std::vector<std::vector<std::size_t>> plan_shards(const std::vector<SafetensorsEntry>& entries,
                                                  std::int64_t max_bytes) {
  SHOAL_CHECK(max_bytes > 0, "a shard of {} bytes holds nothing", max_bytes);
  std::vector<std::vector<std::size_t>> shards(1);
  std::int64_t used = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (!shards.back().empty() && entries[i].bytes > max_bytes - std::min(used, max_bytes)) {
      shards.emplace_back();
      used = 0;
    }
    shards.back().push_back(i);
    used += entries[i].bytes;
  }
  return shards;
}

std::string shard_file_name(std::string_view stem, std::size_t index, std::size_t shards) {
  return shards == 1 ? fmt::format("{}.safetensors", stem)
                     : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index + 1, shards);
}

ShardedSafetensors ShardedSafetensors::open(const std::string& path) {
  const std::string file = is_directory(path) ? find_in_directory(path) : path;
  ShardedSafetensors set;
  if (!file.ends_with(kIndexSuffix)) {
    set.files_.push_back(SafetensorsFile::open(file));
    for (const SafetensorsEntry& entry : set.files_[0]->entries())
      set.where_.emplace(entry.name, 0);
    return set;
  }
  const auto weight_map = read_weight_map(file);
  std::map<std::string, std::size_t> opened;
  for (const auto& [tensor, shard] : weight_map) {
    const auto [place, is_new] = opened.try_emplace(shard, set.files_.size());
    if (is_new) set.files_.push_back(SafetensorsFile::open(fs::path(file).parent_path() / shard));
    if (!set.files_[place->second]->contains(tensor)) {
      if (is_old_buffer(tensor)) continue;
      throw_error(ErrorCode::corrupt_data, "{}: tensor '{}' is not in {}", file, shortened(tensor),
                  shortened(shard));
    }
    set.where_.emplace(tensor, place->second);
  }
  for (const auto& [shard, number] : opened)
    for (const SafetensorsEntry& entry : set.files_[number]->entries()) {
      const auto listed = set.where_.find(entry.name);
      if (listed == set.where_.end() && is_old_buffer(entry.name)) continue;
      if (listed == set.where_.end())
        throw_error(ErrorCode::corrupt_data, "{}: tensor '{}' of {} is not listed", file,
                    shortened(entry.name), shortened(shard));
      if (listed->second != number)
        throw_error(ErrorCode::corrupt_data, "{}: tensor '{}' is in {} and in {}", file,
                    shortened(entry.name), shortened(shard), shortened(weight_map.at(entry.name)));
    }
  return set;
}

std::vector<std::string> ShardedSafetensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : where_) names.push_back(name);
  return names;
}

bool ShardedSafetensors::contains(std::string_view name) const { return where_.contains(name); }

const SafetensorsFile& ShardedSafetensors::file_of(std::string_view name) const {
  const auto found = where_.find(name);
  if (found != where_.end()) return *files_[found->second];
  const auto known = names();
  throw Error(ErrorCode::not_found,
              fmt::format("{} has no tensor '{}'",
                          files_.empty() ? std::string("the checkpoint") : files_[0]->path(),
                          shortened(name)),
              did_you_mean(name, known));
}

const SafetensorsEntry& ShardedSafetensors::entry(std::string_view name) const {
  return file_of(name).entry(name);
}

Tensor ShardedSafetensors::tensor(std::string_view name) const {
  return file_of(name).tensor(name);
}

std::vector<std::string> write_sharded_safetensors(const std::string& directory,
                                                   const std::vector<NamedView>& tensors,
                                                   std::int64_t max_shard_bytes,
                                                   std::string_view stem) {
  std::vector<SafetensorsEntry> entries;
  std::map<std::string_view, const ConstView*> views;
  for (const NamedView& tensor : tensors) {
    entries.push_back(make_entry(tensor.name, tensor.view.dtype, tensor.view.shape));
    views.emplace(tensor.name, &tensor.view);
  }
  return write_sharded_safetensors(
      directory, std::move(entries), [&](const std::string& name) { return *views.at(name); },
      max_shard_bytes, stem);
}

std::vector<std::string> write_sharded_safetensors(
    const std::string& directory, std::vector<SafetensorsEntry> entries,
    const std::function<ConstView(const std::string&)>& value, std::int64_t max_shard_bytes,
    std::string_view stem) {
  std::set<std::string_view> unique;
  std::int64_t total = 0;
  for (SafetensorsEntry& entry : entries) {
    SHOAL_CHECK(unique.insert(entry.name).second, "{}: the tensor name '{}' is taken", directory,
                shortened(entry.name));
    entry.bytes = bytes_of(entry);
    total += entry.bytes;
  }
  const auto shards = plan_shards(entries, max_shard_bytes);
  std::vector<std::string> written;
  OrderedFields weight_map;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    std::vector<SafetensorsEntry> part;
    written.push_back(shard_file_name(stem, i, shards.size()));
    for (const std::size_t index : shards[i]) {
      part.push_back(entries[index]);
      weight_map[entries[index].name] = written.back();
    }
    write_values(directory + "/" + written.back(), std::move(part), value);
  }
  if (shards.size() > 1) {
    const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                          {"weight_map", std::move(weight_map).json()}};
    written.push_back(fmt::format("{}{}", stem, kIndexSuffix));
    write_file_atomically(directory + "/" + written.back(), index.dump(2) + "\n");
  }
  // An earlier save may have used the other form (single file or index), which a reader might
  // prefer.
  const std::string index_name = fmt::format("{}{}", stem, kIndexSuffix),
                    single_name = shard_file_name(stem, 0, 1);
  const std::string stale = directory + "/" + (shards.size() > 1 ? single_name : index_name);
  remove_file(stale);
  return written;
}

}  // namespace shoal
