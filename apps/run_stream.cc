#include "run_stream.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/token_shards.h"

namespace shoal::app {
namespace {

namespace fs = std::filesystem;

// "a.txt,b/*.jsonl" is two.
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

std::vector<std::string_view> endings_of(TaskKind kind) {
  switch (kind) {
    case TaskKind::text_classification:
      return {".tsv", ".csv", ".jsonl", ".json"};
    case TaskKind::question_answering:
      return {".json"};
    case TaskKind::token_classification:
      return {".conll", ".txt", ".tsv", ".csv", ".jsonl", ".json"};
    case TaskKind::causal_lm:
    case TaskKind::masked_lm:
      break;
  }
  return text_shard_endings();
}

// Each shard is opened as a file of the task is: its rows are found when its turn comes.
class SampleShards final : public ShardSet {
 public:
  SampleShards(std::vector<std::string> names, std::shared_ptr<const TaskData> data,
               Opening opening)
      : names_(std::move(names)), data_(std::move(data)), opening_(std::move(opening)) {
    for (const std::string& name : names_)
      if (name.find("://") != std::string::npos)
        throw Error(
            ErrorCode::unavailable,
            fmt::format("{}: rows, questions and tagged words are read from local files", name),
            "copy the shards to a directory of this host");
  }
  std::int64_t count() const override { return std::ssize(names_); }
  const std::string& name(std::int64_t shard) const override {
    SHOAL_CHECK(shard >= 0 && shard < count(), "shard {} of {}", shard, count());
    return names_[static_cast<std::size_t>(shard)];
  }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    Opening opening = opening_;
    opening.path = name(shard);
    std::vector<std::string> notices;
    auto dataset = data_->open(opening, notices);
    // Told once, although the next epoch opens it again.
    for (const std::string& notice : notices)
      log::once(log::Level::warn, "rows of " + name(shard), notice);
    return dataset;
  }

 private:
  std::vector<std::string> names_;
  std::shared_ptr<const TaskData> data_;
  Opening opening_;
};

// The directories in which a description of the shards may be.
std::vector<fs::path> homes_of(const std::string& train_file) {
  std::vector<fs::path> homes;
  for (std::string name : names_of_shards(train_file)) {
    if (name.starts_with('@')) name.erase(0, 1);
    std::error_code ignored;
    const fs::path home =
        fs::is_directory(name, ignored) ? fs::path(name) : fs::path(name).parent_path();
    for (const fs::path& one : {home, home / ".."})
      if (std::find(homes.begin(), homes.end(), one) == homes.end()) homes.push_back(one);
  }
  return homes;
}

// Of a feature of `datasets`: {"names": [...], "_type": "ClassLabel"}, or that within a list; a
// floating-point one has scores.
std::optional<LabelSet> labels_of_feature(const nlohmann::json& feature) {
  if (!feature.is_object()) return std::nullopt;
  if (const auto inner = feature.find("feature"); inner != feature.end())
    return labels_of_feature(*inner);
  if (const auto names = feature.find("names"); names != feature.end() && names->is_array()) {
    std::vector<std::string> all;
    for (const nlohmann::json& name : *names) {
      if (!name.is_string()) return std::nullopt;
      all.push_back(name.get<std::string>());
    }
    return LabelSet(std::move(all));
  }
  const nlohmann::json dtype = feature.value("dtype", nlohmann::json());
  if (dtype == "float32" || dtype == "float64") return LabelSet();
  return std::nullopt;
}

}  // namespace

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
  SHOAL_CHECK(a.data.validation_split_percentage == 0,
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
    std::error_code ignored;
    if (!fs::is_regular_file(file, ignored)) continue;
    const nlohmann::json info = read_json_file(file.string());
    const auto features = info.is_object() ? info.find("features") : info.end();
    if (!info.is_object() || features == info.end() || !features->is_object()) continue;
    for (const std::string& column : columns)
      if (const auto feature = features->find(column); feature != features->end())
        if (auto labels = labels_of_feature(*feature)) return labels;
  }
  return std::nullopt;
}

Error no_labels_of_a_stream(const DataArguments& data, const char* what) {
  return {ErrorCode::invalid_argument,
          fmt::format("{}: what {} there are is not known without reading every shard, and the "
                      "model names none",
                      data.train_file, what),
          "give label_list, or put the data set's dataset_info.json beside the shards"};
}

void set_preparation(PrepareOptions& options, const RunArguments& a, const RunSetup& setup,
                     int threads) {
  const DataArguments& data = a.data;
  if (setup.kind == TaskKind::masked_lm) {
    options.add_special_tokens = true;
    options.keep_line_ends = false;
  }
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
      expand_shards(names_of_shards(a.data.train_file), setup.sources, endings_of(setup.kind));
  if (setup.samples) {
    const std::int64_t asked = a.data.preprocessing_num_workers;
    return std::make_shared<SampleShards>(
        std::move(names), setup.samples,
        Opening{.path = {},
                .tokenizer = setup.tokenizer,
                .max_length = setup.block_size,
                .is_shard = true,
                .threads = asked > 0 ? static_cast<int>(asked) : 1});
  }
  TokenShardOptions options{
      .tokenizer = setup.tokenizer,
      .block_size = setup.block_size,
      .line_by_line = setup.kind == TaskKind::masked_lm && a.data.line_by_line,
      .vocab_size = setup.task->vocabulary()};
  set_preparation(options.prepare, a, setup, 1);
  return std::make_shared<TokenShards>(std::move(names), std::move(options));
}

}  // namespace shoal::app
