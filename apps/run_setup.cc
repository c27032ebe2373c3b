#include "run_setup.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/train/data/line_dataset.h"
#include "shoal/train/data/masking.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/token_file.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/trainer/mesh_check.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::app {
namespace {

namespace fs = std::filesystem;

bool exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

bool is_token_file(const std::string& path) { return path.ends_with(".shoaltok"); }

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

std::shared_ptr<const Dataset> samples_of(const std::string& path, const RunArguments& a,
                                          const RunSetup& setup) {
  auto file = TokenFile::open(path);
  if (setup.tokenizer && file->tokenizer_hash() != setup.tokenizer->hash())
    log::warn("{} was made with another tokenizer than the one given", path);
  const std::int64_t vocabulary = setup.task->vocabulary();
  if (setup.kind == TaskKind::masked_lm && a.data.line_by_line)
    return std::make_shared<LineDataset>(std::move(file), setup.tokenizer->sequence_template(),
                                         setup.block_size, vocabulary);
  return std::make_shared<CausalLmDataset>(std::move(file), setup.block_size, vocabulary);
}

struct TokenFiles {
  std::string train, validation;
};

// Text becomes token files; the first rank of each host makes them, then everybody finds them.
TokenFiles token_files(const RunArguments& a, const RunSetup& setup, const World& world,
                       Store& store, int threads) {
  const Tokenizer* const tokenizer = setup.tokenizer.get();
  const DataArguments& data = a.data;
  TokenFiles files{data.train_file, data.validation_file};
  const bool train_text = !files.train.empty() && !is_token_file(files.train);
  const bool validation_text = !files.validation.empty() && !is_token_file(files.validation);
  if (!train_text && !validation_text) return files;
  if (tokenizer == nullptr)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is text, and there is no tokenizer",
                            train_text ? files.train : files.validation),
                "give tokenizer_name, or tokens from `shoal data prepare`");
  PrepareOptions options;
  options.inputs = {train_text ? files.train : files.validation};
  if (train_text && validation_text) options.validation_inputs = {files.validation};
  if (train_text && files.validation.empty()) {
    options.validation_fraction = data.validation_split_percentage / 100;
    options.split = PrepareOptions::Split::first;
  }
  if (setup.kind == TaskKind::masked_lm) {
    options.add_special_tokens = true;
    options.keep_line_ends = false;
  }
  options.output_directory =
      data.data_cache_dir.empty() ? a.training.output_dir + "/tokens" : data.data_cache_dir;
  options.threads = data.preprocessing_num_workers > 0
                        ? static_cast<int>(data.preprocessing_num_workers)
                        : threads;
  const auto prepare = [&](bool again) {
    options.overwrite_cache = again;
    return prepare_data(*tokenizer, options);
  };
  std::string failure;
  PreparedData prepared;
  if (world.local_rank == 0) {
    try {
      prepared = prepare(data.overwrite_cache);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  // The others wait as long as it takes; a failure of the first is everybody's.
  for (const std::string& text :
       exchange(store, "tokens", world.rank, world.size, failure, Deadline::in_seconds(24 * 3600)))
    if (!text.empty()) throw Error(ErrorCode::invalid_argument, text);
  if (world.local_rank != 0) prepared = prepare(false);
  if (train_text) {
    files.train = prepared.train.path;
    if (validation_text || !prepared.validation.path.empty())
      files.validation = prepared.validation.path;
  } else {
    files.validation = prepared.train.path;
  }
  return files;
}

// A directory that is not there; what is in one, the trainer looks at.
void check_resume(const TrainingArguments& a) {
  const std::string& from = a.resume_from_checkpoint;
  for (const char* word : {"", "true", "True", "1", "false", "False", "0"})
    if (from == word) return;
  if (!exists(from))
    throw Error(ErrorCode::not_found, fmt::format("resume_from_checkpoint: there is no {}", from),
                "give a checkpoint-N directory, or true for the newest in output_dir");
}

// What is asked for, but could have no effect.
void check_is_possible(const RunArguments& a) {
  const bool held_out = !a.data.validation_file.empty() || a.data.validation_split_percentage > 0;
  SHOAL_CHECK(!a.data.train_file.empty() || !a.training.do_train,
              "train_file is not given; it is text or tokens from `shoal data prepare`");
  SHOAL_CHECK(a.data.validation_split_percentage == 0 || !a.data.validation_file.empty() ||
                  !is_token_file(a.data.train_file),
              "validation_split_percentage is {}, but {} is prepared already; give `shoal data "
              "prepare` a --validation-fraction, and its file as validation_file",
              a.data.validation_split_percentage, a.data.train_file);
  SHOAL_CHECK(held_out || a.training.eval_strategy == Interval::no,
              "eval_strategy asks for evaluation, but there is no validation set; give "
              "validation_file or validation_split_percentage");
  SHOAL_CHECK(held_out || !a.training.eval_on_start,
              "eval_on_start asks for evaluation, but there is no validation set; give "
              "validation_file or validation_split_percentage");
  if (a.training.do_train) {
    check_output_directory(a.training);
    return check_resume(a.training);
  }
  SHOAL_CHECK((held_out && a.training.do_eval) || a.training.do_predict,
              "there is nothing to do: do_train is false, and there is {}",
              a.training.do_eval ? "no validation_file" : "no do_eval or do_predict either");
  const std::string& resume = a.training.resume_from_checkpoint;
  if (!resume.empty() && resume != "false")
    throw Error(ErrorCode::invalid_argument,
                "resume_from_checkpoint continues training, but do_train is false",
                "to evaluate a checkpoint, give it as --model_name_or_path");
}

// Which of the files of rows there are none of, or too many.
void check_rows(const RunArguments& a, TaskKind kind) {
  const bool rows = kind == TaskKind::text_classification;
  for (const auto& [name, value] : {std::pair{"test_file", !a.data.test_file.empty()},
                                    {"task_name", !a.data.task_name.empty()},
                                    {"column_names", !a.data.column_names.empty()},
                                    {"text_column_names", !a.data.text_column_names.empty()},
                                    {"do_predict", a.training.do_predict}})
    if (value && !rows)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is given, but the task is {}", name, to_string(kind)),
                  "give --task text-classification");
  if (!rows) return;
  SHOAL_CHECK(a.data.validation_split_percentage == 0,
              "validation_split_percentage is of text; give rows to validate as validation_file");
  SHOAL_CHECK(!a.training.do_predict || !a.data.test_file.empty(), "do_predict needs a test_file");
  SHOAL_CHECK(
      a.data.task_name.empty() || (a.data.column_names.empty() && a.data.text_column_names.empty()),
      "task_name {} has its own columns; leave column_names and text_column_names out",
      a.data.task_name);
}

// A metric that nothing computes would be found out at the first evaluation only.
void check_metric(const RunArguments& a, const RunSetup& setup) {
  std::string name = a.training.metric_for_best_model;
  if (name.starts_with("eval_")) name = name.substr(5);
  std::vector<std::string> names = {"loss"};
  if (setup.task->predicts_tokens()) names.emplace_back("perplexity");
  if (setup.rows)
    for (std::string& metric : setup.rows->metric_names()) names.push_back(std::move(metric));
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("metric_for_best_model '{}' is not computed", a.training.metric_for_best_model),
        fmt::format("use one of {}", fmt::join(names, ", ")));
}

std::shared_ptr<const Tokenizer> tokenizer_of(const RunArguments& a, const ChosenModel& model) {
  const std::string path =
      !a.model.tokenizer_name.empty() ? a.model.tokenizer_name : model.initial_weights;
  const bool text = (!a.data.train_file.empty() && !is_token_file(a.data.train_file)) ||
                    (!a.data.validation_file.empty() && !is_token_file(a.data.validation_file)) ||
                    model.kind != TaskKind::causal_lm;
  if (!a.model.tokenizer_name.empty() || text) return path.empty() ? nullptr : load_tokenizer(path);
  if (exists(path + "/tokenizer.json") || exists(path + "/vocab.json")) return load_tokenizer(path);
  return nullptr;
}

std::int64_t block_size_of(const RunArguments& a, const Task& task, TaskKind kind) {
  const std::int64_t usual = kind == TaskKind::text_classification ? 128 : 1024;
  const std::int64_t size = a.data.block_size.value_or(std::min(usual, task.positions()));
  if (size > task.positions())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("block_size is {}, but the model has {} positions", size, task.positions()),
        fmt::format("use --block_size {} or fewer", task.positions()));
  return size;
}

std::shared_ptr<const Collator> collator_of(const RunArguments& a, const RunSetup& setup,
                                            bool on_cpu) {
  const std::int64_t automatic = on_cpu ? 32 : 8;
  const std::int64_t multiple = a.data.pad_to_max_length        ? setup.block_size
                                : a.data.pad_to_multiple_of > 0 ? a.data.pad_to_multiple_of
                                                                : automatic;
  // Blocks have one length, which need not be padded.
  const bool blocks = setup.kind == TaskKind::causal_lm ||
                      (setup.kind == TaskKind::masked_lm && !a.data.line_by_line);
  const std::int64_t pads = blocks ? 1 : std::min(multiple, setup.block_size);
  if (setup.kind == TaskKind::masked_lm)
    return std::make_shared<MaskingCollator>(
        *setup.tokenizer,
        MaskingOptions{.seed = static_cast<std::uint64_t>(a.training.order_seed()),
                       .probability = a.data.mlm_probability,
                       .whole_words = a.data.whole_word_mask,
                       .pad_to_multiple_of = pads});
  if (setup.kind == TaskKind::text_classification)
    return std::make_shared<PaddingCollator>(setup.tokenizer->roles().pad.value_or(0), pads,
                                             LabelsOf::sample);
  return std::make_shared<PaddingCollator>();
}

}  // namespace

RunSetup set_up_run(const RunArguments& a, const World& world, bool on_cpu) {
  RunSetup setup;
  check_is_possible(a);
  ChosenModel model = choose_model(a.model);
  setup.kind = model.kind;
  setup.initial_weights = model.initial_weights;
  check_rows(a, model.kind);
  setup.tokenizer = tokenizer_of(a, model);
  if (!setup.tokenizer && model.kind != TaskKind::causal_lm)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} needs a tokenizer, and there is none", to_string(model.kind)),
                "give tokenizer_name: a directory, a tokenizer.json or a vocab.txt");
  if (setup.tokenizer && model.takes_vocabulary) take_vocabulary(model, *setup.tokenizer);
  if (model.kind == TaskKind::text_classification) {
    setup.rows = std::make_shared<ClassifiedRows>(a.data, model.config);
    setup.rows->name_labels(model.config);
  }
  setup.task = make_task(model.kind, model.config, model.source, setup.tokenizer,
                         {.gradient_checkpointing = a.training.gradient_checkpointing});
  check_metric(a, setup);
  setup.block_size = block_size_of(a, *setup.task, model.kind);
  setup.collator = collator_of(a, setup, on_cpu);
  if (a.training.model_parallel)
    check_mesh(a.training, *setup.task->chain(), world.size, setup.block_size);
  return setup;
}

void open_data(const RunArguments& a, const World& world, Store& store, RunSetup& setup) {
  const auto limited = [](std::shared_ptr<const Dataset> all, std::optional<std::int64_t> limit) {
    return limit ? std::make_shared<FirstSamples>(std::move(all), *limit) : std::move(all);
  };
  if (setup.rows) {
    const auto open = [&](const std::string& path, bool may_lack_labels) {
      return path.empty() ? nullptr
                          : setup.rows->open(path, setup.tokenizer, setup.block_size,
                                             may_lack_labels, setup.notices);
    };
    setup.train_dataset = open(a.data.train_file, false);
    setup.eval_dataset = open(a.data.validation_file, false);
    if (a.training.do_predict) setup.test_dataset = open(a.data.test_file, true);
  } else {
    const TokenFiles files = token_files(a, setup, world, store, available_cores());
    if (!files.train.empty()) setup.train_dataset = samples_of(files.train, a, setup);
    if (!files.validation.empty()) setup.eval_dataset = samples_of(files.validation, a, setup);
  }
  if (setup.train_dataset)
    setup.train_dataset = limited(setup.train_dataset, a.data.max_train_samples);
  if (setup.eval_dataset) setup.eval_dataset = limited(setup.eval_dataset, a.data.max_eval_samples);
}

}  // namespace shoal::app
