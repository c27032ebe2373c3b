#include "shoal/train/command/stream.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/train/data/token_shards.h"

namespace shoal::command {
namespace {

namespace fs = std::filesystem;

std::vector<std::string_view> shard_endings(TaskKind kind) {
  switch (kind) {
    case TaskKind::text_classification:
    case TaskKind::summarization:
    case TaskKind::translation:
      return {".tsv", ".csv", ".jsonl", ".json"};
    case TaskKind::question_answering:
      return {".json"};
    case TaskKind::token_classification:
      return {".conll", ".txt", ".tsv", ".csv", ".jsonl", ".json"};
    case TaskKind::causal_lm:
    case TaskKind::masked_lm:
    case TaskKind::span_corruption:
    case TaskKind::denoising:
      break;
  }
  return text_shard_endings();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (auto at = text.find(from); at != text.npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

// Opens each shard like a file of the task, and parses its rows when it is opened. Tasks map their
// files, so a remote shard is first fetched into a file, which is unlinked once opened.
class SampleShards final : public ShardSet {
 public:
  // Fetched shards go to `directory`, each in its own folder.
  SampleShards(std::vector<std::string> names, std::shared_ptr<const TaskData> data,
               Opening opening, SourceRegistry sources, std::string directory)
      : names_(std::move(names)),
        data_(std::move(data)),
        opening_(std::move(opening)),
        sources_(std::move(sources)),
        directory_(std::move(directory)) {}
  std::int64_t count() const override { return std::ssize(names_); }
  const std::string& name(std::int64_t shard) const override {
    SHOAL_CHECK(shard >= 0 && shard < count(), "shard {} of {}", shard, count());
    return names_[static_cast<std::size_t>(shard)];
  }
  int worth_opening_ahead() const override { return shards_ahead(names_); }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    const std::string& from = name(shard);
    std::vector<std::string> notices;
    auto dataset = is_local(from) ? open_file(local_path(from), notices) : fetch(from, notices);
    // Logged once, although each epoch opens the shard again.
    for (const std::string& notice : notices)
      log::once(log::Level::warn, "rows of " + from, notice);
    return dataset;
  }

 private:
  std::shared_ptr<const Dataset> open_file(const std::string& path,
                                           std::vector<std::string>& notices) const {
    Opening opening = opening_;
    opening.path = path;
    return data_->open(opening, notices);
  }
  std::shared_ptr<const Dataset> fetch(const std::string& from,
                                       std::vector<std::string>& notices) const {
    // Several shards are opened concurrently, here and by other jobs, and may have equal names.
    const ScratchDirectory folder(directory_, "rows");
    const std::string path = folder / fs::path(from).filename().string();
    {
      const WholeSource whole = open_whole(from, sources_);
      try {
        write_file(path, {reinterpret_cast<const char*>(whole.bytes.data()), whole.bytes.size()});
      } catch (const Error& problem) {
        throw Error(
            problem.code(),
            fmt::format("{} (the {} bytes of {})", problem.message(), whole.bytes.size(), from),
            "data_cache_dir names another directory");
      }
    }
    try {
      auto dataset = open_file(path, notices);
      for (std::string& notice : notices) notice = replaced(notice, path, from);
      return dataset;
    } catch (const Error& error) {
      throw Error(error.code(), replaced(error.message(), path, from), error.remedy());
    }
  }

  std::vector<std::string> names_;
  std::shared_ptr<const TaskData> data_;
  Opening opening_;
  SourceRegistry sources_;
  std::string directory_;
};

// Directories that may contain a description of the shards.
std::vector<fs::path> homes_of(const std::string& train_file) {
  std::vector<fs::path> homes;
  for (std::string name : names_of_shards(train_file)) {
    if (name.starts_with('@')) name.erase(0, 1);
    if (!is_local(name)) continue;
    const fs::path home = is_directory(name) ? fs::path(name) : fs::path(name).parent_path();
    for (const fs::path& one : {home, home / ".."})
      if (std::find(homes.begin(), homes.end(), one) == homes.end()) homes.push_back(one);
  }
  return homes;
}

// Labels of a feature of `datasets`: {"names": [...], "_type": "ClassLabel"}, possibly in a list. A
// floating-point feature has scores, not classes.
std::optional<LabelSet> labels_of_feature(const nlohmann::json& feature) {
  if (!feature.is_object()) return std::nullopt;
  if (const auto* inner = find_field(feature, "feature")) return labels_of_feature(*inner);
  if (const auto* names = find_field(feature, "names"); names != nullptr && names->is_array()) {
    std::vector<std::string> all;
    for (const nlohmann::json& name : *names) {
      if (!name.is_string()) return std::nullopt;
      all.push_back(name.get<std::string>());
    }
    return LabelSet(std::move(all));
  }
  const nlohmann::json dtype = field_or(feature, "dtype", nlohmann::json(), "a feature");
  if (dtype == "float32" || dtype == "float64") return LabelSet();
  return std::nullopt;
}

}  // namespace

std::vector<std::string> names_of_shards(const std::string& train_file) {
  std::vector<std::string> names;
  std::size_t begin = 0;
  while (begin <= train_file.size()) {
    const std::size_t end = std::min(train_file.find(',', begin), train_file.size());
    if (end > begin) names.push_back(train_file.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

void check_streaming(const RunArguments& a) {
  if (!a.data.streaming && a.training.do_train && is_pipe(a.data.train_file))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("train_file is {}, which passes by once", a.data.train_file),
                "give --streaming true and max_steps");
  for (const auto& [option, name] :
       {std::pair{"validation_file", a.data.validation_file}, {"test_file", a.data.test_file}})
    if (is_pipe(name))
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} is {}, which passes by once, but it is read more often", option, name),
          "copy it to a file, as `train` does inside a job");
  if (!a.data.streaming) {
    SHOAL_CHECK(!a.data.shard_by_rank,
                "shard_by_rank divides the shards of a stream; give --streaming true, or leave it "
                "out");
    return;
  }
  SHOAL_CHECK(!a.training.do_train || a.training.max_steps > 0,
              "streaming needs max_steps: a stream has no length that epochs could be counted by");
  SHOAL_CHECK(!a.data.max_train_samples,
              "max_train_samples is {}, but streaming reads all; give "
              "max_steps",
              a.data.max_train_samples.value_or(0));
  SHOAL_CHECK(!splits_train_file(a.data),
              "validation_split_percentage is {}, but a stream cannot be split; give a "
              "validation_file",
              a.data.validation_split_percentage);
}

std::optional<LabelSet> given_labels(const DataArguments& data,
                                     const std::vector<std::string>& columns) {
  if (!data.label_list.empty()) return LabelSet(data.label_list);
  if (!data.streaming) return std::nullopt;
  for (const fs::path& home : homes_of(data.train_file)) {
    const fs::path file = home / "dataset_info.json";
    if (!is_regular_file(file)) continue;
    const nlohmann::json info = read_json_file(file.string());
    const nlohmann::json* const features = find_field(info, "features");
    if (features == nullptr) continue;
    for (const std::string& column : columns)
      if (const auto* feature = find_field(*features, column))
        if (auto labels = labels_of_feature(*feature)) return labels;
  }
  return std::nullopt;
}

Error no_labels_of_a_stream(const DataArguments& data, const char* what) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}: what {} there are is not known without reading every shard, and the "
                      "model names none",
                      data.train_file, what),
          is_local(data.train_file)
              ? "give label_list, or put the data set's dataset_info.json beside the shards"
              : "give label_list"};
}

void set_preparation(PrepareOptions& options, const RunArguments& a, const RunSetup& setup,
                     int threads) {
  const DataArguments& data = a.data;
  options.add_special_tokens = data.add_special_tokens;
  options.keep_line_ends = setup.kind == TaskKind::causal_lm;
  options.drops_white_space = setup.kind == TaskKind::masked_lm && a.data.line_by_line;
  options.sources = setup.sources;
  options.output_directory =
      data.data_cache_dir.empty() ? a.training.output_dir + "/tokens" : data.data_cache_dir;
  options.threads = data.preprocessing_num_workers > 0
                        ? static_cast<int>(data.preprocessing_num_workers)
                        : threads;
}

std::shared_ptr<const ShardSet> stream_of(const RunArguments& a, const RunSetup& setup,
                                          const World& world) {
  if (is_pipe(a.data.train_file)) return stream_of_pipes(a, setup, world);
  std::vector<std::string> names =
      expand_shards(names_of_shards(a.data.train_file), setup.sources, shard_endings(setup.kind));
  if (setup.samples) {
    PrepareOptions where;
    set_preparation(where, a, setup, 1);
    return std::make_shared<SampleShards>(std::move(names), setup.samples,
                                          Opening{.path = {},
                                                  .tokenizer = setup.tokenizer,
                                                  .max_length = setup.block_size,
                                                  .trains = true,
                                                  .is_shard = true,
                                                  .threads = where.threads},
                                          setup.sources, where.output_directory);
  }
  TokenShardOptions options{
      .tokenizer = setup.tokenizer,
      .block_size = setup.text_tokens,
      .line_by_line = setup.kind == TaskKind::masked_lm && a.data.line_by_line,
      .vocab_size = setup.task->vocabulary()};
  set_preparation(options.prepare, a, setup, 1);
  return std::make_shared<TokenShards>(std::move(names), std::move(options));
}

}  // namespace shoal::command
