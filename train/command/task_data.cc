#include "shoal/train/command/task_data.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/nn/models/model_type.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/sampler.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::command {
namespace {

// The first `count` samples of another dataset.
class FirstSamples final : public Dataset {
 public:
  FirstSamples(std::shared_ptr<const Dataset> all, std::int64_t count)
      : all_(std::move(all)), count_(std::min(count, all_->size())) {}
  std::int64_t size() const override { return count_; }
  Sample get(std::int64_t index) const override {
    SHOAL_CHECK(index >= 0 && index < count_, "sample {} of {}", index, count_);
    return all_->get(index);
  }

 private:
  std::shared_ptr<const Dataset> all_;
  std::int64_t count_;
};

// Some samples of another dataset.
class ChosenSamples final : public Dataset {
 public:
  // `chosen`: indices in `all`.
  ChosenSamples(std::shared_ptr<const Dataset> all, std::vector<std::int64_t> chosen)
      : all_(std::move(all)), chosen_(std::move(chosen)) {}
  std::int64_t size() const override { return std::ssize(chosen_); }
  Sample get(std::int64_t index) const override {
    SHOAL_CHECK(index >= 0 && index < size(), "sample {} of {}", index, size());
    return all_->get(chosen_[static_cast<std::size_t>(index)]);
  }

 private:
  std::shared_ptr<const Dataset> all_;
  std::vector<std::int64_t> chosen_;
};

}  // namespace

SplitRows split_rows(const std::shared_ptr<const Dataset>& all, const DataArguments& data,
                     std::vector<std::string>& notices) {
  constexpr std::uint64_t kSeed = 0;  // not the run's: runs of several seeds validate on equal rows
  const double share = data.validation_split_percentage / 100;
  const std::int64_t count = all->size();
  const std::int64_t held =
      std::max<std::int64_t>(1, std::llround(share * static_cast<double>(count)));
  if (held >= count)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("validation_split_percentage {} of {}: {} rows leave none to train",
                            data.validation_split_percentage, data.train_file, count),
                "give more rows or a smaller percentage");
  const std::vector<std::int64_t> order = permutation(count, kSeed, 0);
  std::vector<std::int64_t> validation(order.begin(), order.begin() + held),
      training(order.begin() + held, order.end());
  std::ranges::sort(validation);
  std::ranges::sort(training);
  notices.push_back(fmt::format(
      "{}: {} rows train and {} validate (validation_split_percentage {}), drawn at random, the "
      "same in every run",
      data.train_file, training.size(), validation.size(), data.validation_split_percentage));
  return {std::make_shared<ChosenSamples>(all, std::move(training)),
          std::make_shared<ChosenSamples>(all, std::move(validation))};
}

std::shared_ptr<const Dataset> first_samples(std::shared_ptr<const Dataset> all,
                                             std::optional<std::int64_t> count) {
  if (!count || all == nullptr) return all;
  return std::make_shared<FirstSamples>(std::move(all), *count);
}

std::vector<double> probabilities(std::span<const float> scores) {
  const float most = *std::ranges::max_element(scores);
  std::vector<double> all;
  double sum = 0;
  for (const float score : scores) sum += all.emplace_back(std::exp(double{score} - double{most}));
  for (double& one : all) one = round_to(one / sum, 6);
  return all;
}

std::shared_ptr<const TaskData> make_task_data(TaskKind kind, const DataArguments& data,
                                               const nlohmann::json& config,
                                               std::shared_ptr<const Tokenizer> tokenizer,
                                               bool generates) {
  switch (kind) {
    case TaskKind::text_classification:
      return classified_rows(data, config);
    case TaskKind::question_answering:
      return answered_questions(data);
    case TaskKind::token_classification:
      return tagged_words(data, config);
    case TaskKind::summarization:
    case TaskKind::translation:
      return paired_texts(kind, {.data = data,
                                 .tokenizer = std::move(tokenizer),
                                 .is_mbart = nn::model_type_of(config) == "mbart",
                                 .generates = generates});
    case TaskKind::causal_lm:
    case TaskKind::masked_lm:
    case TaskKind::span_corruption:
    case TaskKind::denoising:
      break;
  }
  return nullptr;
}

LabelSet labels_in(const nlohmann::json& config) {
  const nlohmann::json* const names = find_field(config, "id2label");
  if (names == nullptr || !names->is_object()) return {};
  std::vector<std::string> all(names->size());
  for (const auto& [id, name] : names->items()) {
    std::size_t at = 0;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), at);
    if (error != std::errc() || at >= all.size() || id != std::to_string(at) || !name.is_string())
      return {};
    all[at] = name.get<std::string>();
    if (all[at] == "LABEL_" + id) return {};
  }
  return LabelSet(std::move(all));
}

void set_labels(nlohmann::json& config, const LabelSet& labels) {
  for (const char* name : {"num_labels", "id2label", "label2id"}) config.erase(name);
  for (std::int64_t id = 0; id < labels.size(); ++id) {
    config["id2label"][std::to_string(id)] = labels.name(id);
    config["label2id"][labels.name(id)] = id;
  }
}

void SameColumns::check(const std::string& path, const std::vector<std::string>& columns) const {
  const std::lock_guard lock(mutex_);
  if (path_.empty()) {
    path_ = path;
    columns_ = columns;
  }
  if (columns == columns_) return;
  const auto shown = [](const std::vector<std::string>& names) {
    return shortened(fmt::format("{}", fmt::join(names, " and ")));
  };
  // Omits the first file's directory: a fetched shard is in a temporary one, which means nothing to
  // the user.
  const std::string first = std::filesystem::path(path_).filename();
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the run would read {} here, but {} in {}", path, shown(columns),
                          shown(columns_), first),
              "name the columns with text_column_names, or give all files the same");
}

void note_skipped(std::vector<std::string>& notices, const std::string& path, const char* what,
                  std::int64_t skipped, const std::string& first) {
  if (skipped > 0)
    notices.push_back(fmt::format("{}: {} {} are left out, the first because of: {}", path, skipped,
                                  what, first));
}

}  // namespace shoal::command
