#include "shoal/train/checkpoint/inspect.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <span>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/adapter.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/checkpoint/transformers_checkpoint.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kProblemsShown = 8;  // a missing shard makes nearly every tensor incomplete
constexpr std::size_t kNameShown = 100, kSizesShown = 8;

// "missing: shard-00000-of-00009.safetensors, ... and 5 more"
std::string missing_shards(const FoundShards& shards) {
  const std::size_t missing = static_cast<std::size_t>(shards.ranks) - shards.paths.size();
  std::vector<std::string> names;
  for (int rank = 0; rank < shards.ranks && names.size() < kProblemsShown; ++rank)
    if (!shards.paths.contains(rank)) names.push_back(shard_name(rank, shards.ranks));
  std::string text = fmt::format("missing: {}", fmt::join(names, ", "));
  if (missing > names.size()) text += fmt::format(" and {} more", missing - names.size());
  return text;
}

std::string shape_text(const std::vector<std::int64_t>& sizes) {
  const auto shown = std::span(sizes).first(std::min(sizes.size(), kSizesShown));
  return shown.size() == sizes.size()
             ? fmt::format("[{}]", fmt::join(sizes, ", "))
             : fmt::format("[{}, ... {} sizes]", fmt::join(shown, ", "), sizes.size());
}

// Size of the whole tensor.
std::int64_t bytes_of(const TensorShard& shard) {
  return shard.whole.count() * static_cast<std::int64_t>(size_of(shard.dtype));
}

class Inspection {
 public:
  Inspection(const std::string& directory, bool checksums) : directory_(directory) {
    out_.path = directory;
    list_files();
    FoundShards shards;
    try {
      shards = find_shards(directory);
    } catch (const Error& problem) {
      out_.kind = CheckpointKind::sharded;
      out_.problems.emplace_back(problem.what());
    }
    if (out_.problems.empty()) {
      if (shards.ranks > 0)
        read_shards(shards);
      else
        read_whole();
    }
    read_state();
    check_marker(checksums);
    finish();
  }
  CheckpointContents contents() && { return std::move(out_); }

 private:
  bool has(std::string_view name) const {
    return path_exists(directory_ + "/" + std::string(name));
  }
  CheckpointFile& file_named(const std::string& path) {
    const std::string name = fs::path(path).filename();  // the files are sorted by name
    const auto found = std::ranges::lower_bound(out_.files, name, {}, &CheckpointFile::name);
    SHOAL_ASSERT(found != out_.files.end() && found->name == name);
    return *found;
  }

  void list_files() {
    if (!is_directory(directory_))
      throw_error(ErrorCode::not_found, "{} is not a directory", directory_);
    for (const DirectoryEntry& entry : list_directory(directory_))
      if (entry.kind == FileKind::regular)
        out_.files.push_back({entry.name, file_bytes(entry.path).value_or(0)});
  }

  void read_shards(const FoundShards& shards) {
    out_.kind = CheckpointKind::sharded;
    out_.shards = shards.ranks;
    if (std::ssize(shards.paths) < shards.ranks) out_.problems.push_back(missing_shards(shards));
    std::map<std::string, std::vector<TensorShard>> by_name;
    std::shared_ptr<SafetensorsFile> first_shard;
    for (const auto& [rank, path] : shards.paths) {
      CheckpointFile& file = file_named(path);
      try {
        const auto shard = SafetensorsFile::open(path);
        if (!first_shard) first_shard = shard;
        if (const std::string two = save_problem(*first_shard, *shard); !two.empty())
          out_.problems.push_back(two);
        for (ShardEntry& entry : entries_of_shard(*shard)) {
          ++file.tensors;
          by_name[entry.shard.name].push_back(std::move(entry.shard));
        }
      } catch (const Error& problem) {
        file.problem = problem.what();
        out_.problems.push_back(file.problem);
      }
    }
    for (const auto& [name, parts] : by_name) {
      const TensorShard& first = parts.front();
      const auto sizes = first.whole.sizes();
      out_.tensors.push_back({name,
                              std::string(to_safetensors(first.dtype)),
                              {sizes.begin(), sizes.end()},
                              bytes_of(first),
                              is_state_name(name),
                              static_cast<int>(parts.size()),
                              tiling_problem(parts)});
    }
  }

  void read_whole() {
    std::set<std::string> paths;
    if (nn::is_adapter(directory_)) {
      const std::string name = fmt::format("{}.safetensors", nn::kAdapterWeights);
      if (has(name))
        paths.insert(directory_ + "/" + name);
      else
        out_.problems.push_back("missing: " + name);
      out_.notes.emplace_back("an adapter: adapter_config.json names the model that it is for");
    } else
      try {
        const auto model = ShardedSafetensors::open(directory_);
        for (const auto& file : model.files()) paths.insert(file->path());
      } catch (const Error& problem) {
        if (problem.code() == ErrorCode::not_found && !has(kCompleteMarker) &&
            !has("model.safetensors.index.json"))
          throw Error(ErrorCode::not_found,
                      fmt::format("{} is no checkpoint: it has no shards and no model.safetensors",
                                  directory_),
                      "a checkpoint is a Hugging Face directory, a checkpoint-N of a run, or a "
                      "directory of shards");
        out_.problems.emplace_back(problem.what());
        for (const CheckpointFile& file : out_.files)
          if (file.name.starts_with("model") && file.name.ends_with(".safetensors"))
            paths.insert(directory_ + "/" + file.name);
      }
    if (has(kOptimizerStateFile)) paths.insert(directory_ + "/" + std::string(kOptimizerStateFile));
    for (const std::string& path : paths) read_file(path);
    if (!has("config.json") && !nn::is_adapter(directory_))
      out_.problems.emplace_back("missing: config.json, without which nothing can open it");
  }

  void read_file(const std::string& path) {
    CheckpointFile& listed = file_named(path);
    try {
      const auto file = SafetensorsFile::open(path);
      for (const SafetensorsEntry& entry : file->entries()) {
        ++listed.tensors;
        out_.tensors.push_back(
            {entry.name, entry.dtype, entry.sizes, entry.bytes, is_state_name(entry.name)});
      }
    } catch (const Error& problem) {
      listed.problem = problem.what();
      // Opening the model may have failed on the same file.
      if (out_.problems.empty() || out_.problems.front() != listed.problem)
        out_.problems.push_back(listed.problem);
    }
  }

  void read_state() {
    if (is_transformers_checkpoint(directory_)) {
      out_.notes.emplace_back(
          "transformers' Trainer wrote it: a run can start from its weights, not resume");
      return;
    }
    if (!has("trainer_state.json")) return;
    if (out_.kind == CheckpointKind::huggingface) out_.kind = CheckpointKind::trainer;
    try {
      out_.step = read_trainer_state(directory_).global_step;
    } catch (const Error& problem) {
      out_.problems.emplace_back(problem.what());
    }
    if (std::ranges::none_of(out_.tensors, &CheckpointTensor::is_state))
      out_.notes.emplace_back("no optimizer state: a run can start from it, not resume");
  }

  // A run's checkpoint needs its marker; other directories may have none.
  void check_marker(bool checksums) {
    if (!has(kCompleteMarker) &&
        (!has("trainer_state.json") || is_transformers_checkpoint(directory_))) {
      if (checksums) out_.notes.emplace_back("there are no checksums to verify");
      return;
    }
    if (const auto problem = checkpoint_problem(directory_, checksums))
      out_.problems.push_back(*problem);
    else
      out_.verified = checksums;
  }

  void finish() {
    std::ranges::stable_sort(out_.tensors, [](const auto& a, const auto& b) {
      return a.is_state != b.is_state ? b.is_state : a.name < b.name;
    });
    std::size_t broken = 0;
    for (const CheckpointTensor& tensor : out_.tensors)
      if (!tensor.problem.empty() && ++broken <= kProblemsShown)
        out_.problems.push_back(tensor.problem);
    if (broken > kProblemsShown)
      out_.problems.push_back(fmt::format("and {} more tensors", broken - kProblemsShown));
  }

  std::string directory_;
  CheckpointContents out_;
};

std::string_view name(CheckpointKind kind) {
  switch (kind) {
    case CheckpointKind::huggingface:
      return "huggingface";
    case CheckpointKind::trainer:
      return "trainer";
    case CheckpointKind::sharded:
      return "sharded";
  }
  return "";
}

std::string headline(const CheckpointContents& contents) {
  std::string text = contents.path + ": ";
  switch (contents.kind) {
    case CheckpointKind::huggingface:
      text += "a Hugging Face model";
      break;
    case CheckpointKind::trainer:
      text += "a checkpoint of a run, whole tensors";
      break;
    case CheckpointKind::sharded:
      text += fmt::format("a checkpoint in parts, {} shard{}", contents.shards,
                          contents.shards == 1 ? "" : "s");
      break;
  }
  if (contents.step) text += fmt::format(", step {}", *contents.step);
  text += contents.problems.empty() ? ", complete" : ", NOT COMPLETE";
  if (contents.verified) text += " (checksums verified)";
  return text + "\n";
}

struct Sum {
  std::int64_t tensors = 0, elements = 0, bytes = 0;
  void add(const CheckpointTensor& tensor) {
    std::int64_t count = std::ranges::count(tensor.sizes, 0) > 0 ? 0 : 1;
    for (const std::int64_t size : tensor.sizes) count *= size;
    ++tensors;
    add_to(elements, count);
    add_to(bytes, tensor.bytes);
  }
  // The sum over several descriptions may overflow.
  static void add_to(std::int64_t& sum, std::int64_t value) {
    if (__builtin_add_overflow(sum, value, &sum)) sum = INT64_MAX;
  }
};

}  // namespace

CheckpointContents inspect_checkpoint(const std::string& directory, bool checksums) {
  return Inspection(directory, checksums).contents();
}

std::string describe(const CheckpointContents& contents, bool all) {
  std::string text = headline(contents);
  std::size_t width = 6;
  Sum weights;
  std::map<std::string, Sum> states;
  for (const CheckpointTensor& tensor : contents.tensors) {
    if (all || !tensor.is_state) width = std::max(width, shortened(tensor.name, kNameShown).size());
    if (tensor.is_state)
      states[shortened(tensor.name.substr(0, tensor.name.find('/')), kNameShown)].add(tensor);
    else
      weights.add(tensor);
  }
  if (!contents.tensors.empty())
    text += fmt::format("\n{:<{}}  {:<5} {:<20} {:>14} {:>5}\n", "tensor", width, "dtype", "shape",
                        "bytes", "parts");
  for (const CheckpointTensor& tensor : contents.tensors)
    if (all || !tensor.is_state)
      text +=
          fmt::format("{:<{}}  {:<5} {:<20} {:>14} {:>5}{}\n", shortened(tensor.name, kNameShown),
                      width, tensor.dtype, shape_text(tensor.sizes), tensor.bytes, tensor.parts,
                      tensor.problem.empty() ? "" : "  incomplete");
  text += fmt::format("\nweights: {} tensors, {} elements, {} bytes\n", weights.tensors,
                      weights.elements, weights.bytes);
  for (const auto& [kind, sum] : states)
    text += fmt::format("optimizer state {}: {} tensors, {} elements, {} bytes\n", kind,
                        sum.tensors, sum.elements, sum.bytes);
  text += "\n";
  for (const CheckpointFile& file : contents.files)
    text += fmt::format("{:<40} {:>14}{}{}\n", file.name, file.bytes,
                        file.tensors > 0 ? fmt::format("  {} tensors", file.tensors) : "",
                        file.problem.empty() ? "" : "  unreadable");
  for (const std::string& note : contents.notes) text += fmt::format("note: {}\n", note);
  for (const std::string& problem : contents.problems)
    text += fmt::format("problem: {}\n", problem);
  return text;
}

nlohmann::ordered_json to_json(const CheckpointContents& contents) {
  nlohmann::ordered_json json;
  json["path"] = contents.path;
  json["kind"] = name(contents.kind);
  json["step"] = nullptr;
  if (contents.step) json["step"] = *contents.step;
  json["shards"] = contents.shards;
  json["complete"] = contents.problems.empty();
  json["verified"] = contents.verified;
  json["problems"] = contents.problems;
  json["notes"] = contents.notes;
  json["tensors"] = nlohmann::ordered_json::array();
  for (const CheckpointTensor& tensor : contents.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"dtype", tensor.dtype},
                               {"shape", tensor.sizes},
                               {"bytes", tensor.bytes},
                               {"optimizer", tensor.is_state},
                               {"parts", tensor.parts}});
    if (!tensor.problem.empty()) json["tensors"].back()["problem"] = tensor.problem;
  }
  json["files"] = nlohmann::ordered_json::array();
  for (const CheckpointFile& file : contents.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"tensors", file.tensors}});
    if (!file.problem.empty()) json["files"].back()["problem"] = file.problem;
  }
  return json;
}

}  // namespace shoal
