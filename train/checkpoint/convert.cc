#include "shoal/train/checkpoint/convert.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/checkpoint/transformers_checkpoint.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kState = "trainer_state.json";
constexpr const char* kTemplates = "additional_chat_templates";  // the tokenizer's one folder

struct Item {
  std::string name;
  Shape shape;
  DType dtype;  // as written
  bool is_state;
};

// True for files of weights in any format. Weights are rewritten, other files are copied.
bool is_weights(const std::string& name) {
  static constexpr std::array kEndings = {".safetensors", ".safetensors.index.json",
                                          ".bin",         ".bin.index.json",
                                          ".pt",          ".pth",
                                          ".h5",          ".msgpack",
                                          ".onnx",        ".ot"};
  return std::ranges::any_of(kEndings, [&](const char* ending) { return name.ends_with(ending); });
}

std::string_view torch_name(DType dtype) {
  return dtype == DType::bf16 ? "bfloat16" : dtype == DType::f16 ? "float16" : "float32";
}

class Converter {
 public:
  explicit Converter(const ConvertOptions& options) : options_(options) {
    check();
    source_ = find_shards(options.from).ranks > 0 ? ShardedCheckpoint::open(options.from)
                                                  : ShardedCheckpoint::open_full(options.from);
    bool has_state = false;
    for (const auto& [name, description] : source_.tensors()) {
      const bool is_state = is_state_name(name);
      has_state |= is_state;
      if (is_state && !options.optimizer) continue;
      const bool converts = options.dtype && !is_state && is_floating(description.dtype);
      items_.push_back(
          {name, description.shape, converts ? *options.dtype : description.dtype, is_state});
      total_ += bytes_of(items_.back());
    }
    if (options.optimizer && !has_state)
      out_.notes.push_back(fmt::format("{} has no optimizer state", options.from));
  }

  Conversion run() {
    const bool resumes = options_.optimizer &&
                         path_exists(options_.from + "/" + std::string(kState)) &&
                         !is_transformers_checkpoint(options_.from);
    const std::int64_t step = resumes ? read_trainer_state(options_.from).global_step : 0;
    CheckpointTransaction transaction(options_.to, step);
    carry(transaction.directory(), resumes);
    if (options_.shards > 0)
      write_shards(transaction.directory());
    else
      write_whole(transaction.directory());
    refuse_overflows();
    check_is_new(options_.to);  // commit() would move aside a directory created meanwhile
    transaction.commit();
    for (const Item& item : items_) ++(item.is_state ? out_.states : out_.tensors);
    out_.bytes = done_;
    return std::move(out_);
  }

 private:
  static std::int64_t bytes_of(const Item& item) {
    return item.shape.count() * static_cast<std::int64_t>(size_of(item.dtype));
  }

  void check() {
    const ConvertOptions& o = options_;
    SHOAL_CHECK(o.shards >= 0 && o.shards <= kMostShards,
                "shards is {}; at most {} are written, which any number of ranks reads", o.shards,
                kMostShards);
    SHOAL_CHECK(
        !o.dtype || *o.dtype == DType::f32 || *o.dtype == DType::bf16 || *o.dtype == DType::f16,
        "weights are not converted to {}", to_string(*o.dtype));
    if (!is_directory(o.from)) throw_error(ErrorCode::not_found, "{} is not a directory", o.from);
    check_is_new(o.to);
    // Only the weights of a transformers checkpoint are read.
    if (is_transformers_checkpoint(o.from)) return;
    if (path_exists(o.from + "/" + std::string(kCompleteMarker)) ||
        path_exists(o.from + "/" + std::string(kState)))
      if (const auto problem = checkpoint_problem(o.from, true))
        throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", o.from, *problem),
                    "`shoal checkpoint inspect --verify` shows what is there");
  }

  // Copies all files except weights, the marker, and the run's state if optimizer state is left
  // out.
  void carry(const std::string& directory, bool resumes) {
    const std::string from = options_.setup.empty() ? options_.from : options_.setup;
    bool has_config = false;
    for (const auto& [name, path, kind, is_link] : list_directory(from)) {
      if (kind != FileKind::regular || is_weights(name) || name == kCompleteMarker ||
          name == kState)
        continue;
      copy_file(path, directory + "/" + name);
      out_.carried.push_back(name);
      if (name != "config.json" && name != nn::kAdapterConfigFile) continue;
      has_config = true;
      if (name != "config.json") continue;
      if (options_.dtype) set_dtype(directory + "/" + name);
    }
    for (const DirectoryEntry& entry : list_directory_if_there(from + "/" + kTemplates)) {
      if (entry.kind != FileKind::regular) continue;
      const std::string name = fmt::format("{}/{}", kTemplates, entry.name);
      make_directories(directory + "/" + kTemplates);
      copy_file(entry.path, directory + "/" + name);
      out_.carried.push_back(name);
    }
    if (resumes) {
      copy_file(options_.from + "/" + std::string(kState), directory + "/" + std::string(kState));
      out_.carried.emplace_back(kState);
    }
    std::ranges::sort(out_.carried);
    if (!has_config)
      out_.notes.push_back(
          fmt::format("{} has no config.json, without which transformers cannot "
                      "open the result; --config names a directory that has one",
                      from));
  }

  // transformers loads weights in the dtype that the configuration names.
  void set_dtype(const std::string& path) const {
    auto config = parse_ordered_json(read_text_file(path), path, JsonIntegers::exact);
    const bool newer = config.contains("dtype");  // name in transformers 5; some files have both
    if (newer) config["dtype"] = torch_name(*options_.dtype);
    if (!newer || config.contains("torch_dtype"))
      config["torch_dtype"] = torch_name(*options_.dtype);
    write_file_atomically(path, config.dump(2) + "\n");
  }

  // Reads the elements `wanted` of a tensor. The result is valid until the next call.
  ConstView read(const Item& item, TensorShard wanted) {
    wanted.dtype = item.dtype;
    const auto bytes = static_cast<std::size_t>(wanted.count()) * size_of(item.dtype);
    if (buffer_.size() < bytes) buffer_.resize(bytes);
    out_.largest = std::max(out_.largest, static_cast<std::int64_t>(buffer_.size()));
    source_.read(wanted, View{buffer_.data(), {wanted.count()}, item.dtype});
    note_overflows(item, wanted);
    done_ += static_cast<std::int64_t>(bytes);
    if (options_.progress) options_.progress(done_, total_);
    return ConstView(buffer_.data(), {wanted.count()}, item.dtype);
  }

  // Counts finite values that became infinite in the buffer, which holds the elements `wanted`.
  void note_overflows(const Item& item, TensorShard wanted) {
    const bool f16 = item.dtype == DType::f16;
    if (source_.tensors().at(item.name).dtype == item.dtype || (!f16 && item.dtype != DType::bf16))
      return;
    const auto infinite = [&](std::int64_t i) {
      return f16 ? std::isinf(
                       static_cast<float>(reinterpret_cast<const float16*>(buffer_.data())[i]))
                 : std::isinf(
                       static_cast<float>(reinterpret_cast<const bfloat16*>(buffer_.data())[i]));
    };
    std::vector<std::int64_t> found;
    for (std::int64_t i = 0; i < wanted.count(); ++i)
      if (infinite(i)) found.push_back(i);
    if (found.empty()) return;
    wanted.dtype = DType::f32;
    std::vector<float> exact(static_cast<std::size_t>(wanted.count()));
    source_.read(wanted, View{exact.data(), {wanted.count()}, DType::f32});
    for (const std::int64_t i : found) {
      const float value = std::abs(exact[static_cast<std::size_t>(i)]);
      if (!std::isfinite(value)) continue;
      Overflow& overflow = overflows_[item.name];
      ++overflow.numbers;
      overflow.largest = std::max(overflow.largest, value);
    }
  }

  void refuse_overflows() const {
    if (overflows_.empty()) return;
    constexpr std::size_t kShown = 5;
    std::vector<std::string> tensors;
    for (const auto& [name, overflow] : overflows_)
      if (tensors.size() < kShown)
        tensors.push_back(fmt::format("{} ({} of its numbers, up to {:.4g})", shortened(name),
                                      overflow.numbers, overflow.largest));
    if (overflows_.size() > kShown)
      tensors.push_back(fmt::format("{} more", overflows_.size() - kShown));
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} tensors of {} would become infinite in {}: {}", overflows_.size(),
                            options_.from, to_string(*options_.dtype), fmt::join(tensors, ", ")),
                "bf16 has the range of f32, f16 ends at 65504: --dtype bf16, or none");
  }

  const Item& item_named(const std::string& name) const {
    const auto found = std::ranges::lower_bound(items_, name, {}, &Item::name);
    SHOAL_ASSERT(found != items_.end() && found->name == name);
    return *found;
  }

  void write_whole(const std::string& directory) {
    const bool adapts = nn::is_adapter(options_.from);
    const std::string prefix(adapts ? nn::kAdapterPrefix : "");
    std::vector<SafetensorsEntry> weights, states;
    for (const Item& item : items_)
      if (item.is_state)
        states.push_back(make_entry(item.name, item.dtype, item.shape));
      else
        weights.push_back(make_entry(prefix + item.name, item.dtype, item.shape));
    const auto value = [this](const std::string& name) {
      const Item& item = item_named(name);
      return read(item, whole_tensor(name, item.shape, item.dtype));
    };
    write_sharded_safetensors(
        directory, std::move(weights),
        [&](const std::string& name) { return value(name.substr(prefix.size())); },
        adapts ? std::numeric_limits<std::int64_t>::max() : options_.max_file_bytes,
        adapts ? nn::kAdapterWeights : "model");
    if (states.empty()) return;
    const fs::path stem = fs::path(kOptimizerStateFile).stem();
    write_sharded_safetensors(directory, std::move(states), value,
                              std::numeric_limits<std::int64_t>::max(), stem.string());
  }

  // Each shard has an equal range of the elements of every tensor.
  void write_shards(const std::string& directory) {
    for (int shard = 0; shard < options_.shards; ++shard) {
      std::vector<TensorShard> parts;
      std::vector<const Item*> of;
      for (const Item& item : items_) {
        TensorShard part = whole_tensor(item.name, item.shape, item.dtype);
        const std::int64_t count = part.end;
        part.begin = count / options_.shards * shard +
                     std::min<std::int64_t>(count % options_.shards, shard);
        part.end = part.begin + count / options_.shards + (shard < count % options_.shards ? 1 : 0);
        if (part.begin == part.end && (count > 0 || shard > 0)) continue;
        parts.push_back(std::move(part));
        of.push_back(&item);
      }
      write_shard(
          directory, shard, options_.shards, parts,
          [&](std::size_t i) { return read(*of[i], parts[i]); }, "converted");
    }
  }

  const ConvertOptions& options_;
  ShardedCheckpoint source_;
  std::vector<Item> items_;  // by name
  std::vector<std::byte> buffer_;
  struct Overflow {
    std::int64_t numbers = 0;
    float largest = 0;
  };
  std::map<std::string, Overflow> overflows_;  // by tensor
  std::int64_t done_ = 0, total_ = 0;
  Conversion out_;
};

}  // namespace

void check_is_new(const std::string& to) {
  if (path_exists(to) && !(is_directory(to) && list_directory(to).empty()))
    throw Error(ErrorCode::invalid_argument, fmt::format("{} exists already", to),
                "nothing is overwritten: choose another name, or remove it");
}

Conversion convert_checkpoint(const ConvertOptions& options) { return Converter(options).run(); }

}  // namespace shoal
