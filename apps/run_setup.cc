#include "run_setup.h"

#include <algorithm>
#include <filesystem>
#include <sstream>

#include <nlohmann/json.hpp>

#include "shoal/nn/models/gpt2/model.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
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

// "n_layer=6,n_embd=384" over what the configuration says, typed as the field is.
nlohmann::json overridden(nlohmann::json config, const std::string& overrides) {
  std::istringstream pairs(overrides);
  std::string pair;
  while (std::getline(pairs, pair, ',')) {
    const auto equals = pair.find('=');
    SHOAL_CHECK(equals != std::string::npos && equals > 0,
                "config_overrides: '{}' is not name=value", pair);
    const std::string name = pair.substr(0, equals);
    const auto field = config.find(name);
    SHOAL_CHECK(field != config.end(), "config_overrides: the model has no '{}'", name);
    nlohmann::json value =
        nlohmann::json::parse(pair.substr(equals + 1), nullptr, /*allow_exceptions=*/false);
    if (value.is_discarded()) value = pair.substr(equals + 1);
    if (value == "True" || value == "False") value = value == "True";
    *field = std::move(value);
  }
  return config;
}

nn::Gpt2Config read_config(const ModelArguments& model) {
  const std::string& name = model.config_name;
  nn::Gpt2Config config;
  SHOAL_CHECK(model.model_type.empty() || model.model_type == "gpt2",
              "model_type '{}' is not built yet; gpt2 is", model.model_type);
  if (!model.model_name_or_path.empty() && name.empty()) {
    const std::string directory = model_directory(model.model_name_or_path);
    config = nn::Gpt2Config::from_file(directory + "/config.json");
    SHOAL_CHECK(model.config_overrides.empty(),
                "config_overrides changes a new model; {} has its configuration",
                model.model_name_or_path);
    return config;
  }
  if (name.empty()) {
    SHOAL_CHECK(!model.model_type.empty(),
                "there is no model: give model_name_or_path, config_name, or model_type gpt2");
  } else if (fs::is_directory(name)) {
    config = nn::Gpt2Config::from_file(name + "/config.json");
  } else if (exists(name)) {
    config = nn::Gpt2Config::from_file(name);
  } else {
    config = nn::Gpt2Config::preset(name);
  }
  if (model.config_overrides.empty()) return config;
  const nlohmann::json json = overridden(config.to_json("float32"), model.config_overrides);
  return nn::Gpt2Config::from_json(json, "config_overrides");
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

std::shared_ptr<const Dataset> blocks_of(const std::string& path, std::int64_t block_size,
                                         const nn::Gpt2Config& config, const Tokenizer* tokenizer,
                                         std::optional<std::int64_t> limit) {
  auto file = TokenFile::open(path);
  if (tokenizer != nullptr && file->tokenizer_hash() != tokenizer->hash())
    log::warn("{} was made with another tokenizer than the one given", path);
  std::shared_ptr<const Dataset> blocks =
      std::make_shared<CausalLmDataset>(std::move(file), block_size, config.vocab_size);
  if (limit) return std::make_shared<FirstSamples>(std::move(blocks), *limit);
  return blocks;
}

struct TokenFiles {
  std::string train, validation;
};

// Text becomes token files; the first rank of each host makes them, then everybody finds them.
TokenFiles token_files(const RunArguments& a, const Tokenizer* tokenizer, const World& world,
                       Store& store, int threads) {
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
  SHOAL_CHECK(held_out && a.training.do_eval,
              "there is nothing to do: do_train is false, and there is {}",
              a.training.do_eval ? "no validation_file" : "no do_eval either");
  const std::string& resume = a.training.resume_from_checkpoint;
  if (!resume.empty() && resume != "false")
    throw Error(ErrorCode::invalid_argument,
                "resume_from_checkpoint continues training, but do_train is false",
                "to evaluate a checkpoint, give it as --model_name_or_path");
}

}  // namespace

std::string model_directory(const std::string& path) {
  if (exists(path + "/config.json")) return path;
  if (const auto newest = newest_checkpoint(path, nullptr)) return newest->path;
  throw Error(
      ErrorCode::not_found,
      fmt::format("{} is no model: it has neither config.json nor a complete checkpoint-N", path),
      "give a directory in Hugging Face's format; nothing is downloaded");
}

RunSetup set_up_run(const RunArguments& a, const World& world) {
  RunSetup setup;
  check_is_possible(a);
  if (!a.model.model_name_or_path.empty())
    setup.initial_weights = model_directory(a.model.model_name_or_path);
  setup.config = read_config(a.model);

  const std::string tokenizer_path =
      !a.model.tokenizer_name.empty() ? a.model.tokenizer_name : setup.initial_weights;
  const bool text = (!a.data.train_file.empty() && !is_token_file(a.data.train_file)) ||
                    (!a.data.validation_file.empty() && !is_token_file(a.data.validation_file));
  if (!a.model.tokenizer_name.empty() || text) {
    if (!tokenizer_path.empty()) setup.tokenizer = load_tokenizer(tokenizer_path);
  } else if (exists(tokenizer_path + "/tokenizer.json") || exists(tokenizer_path + "/vocab.json")) {
    setup.tokenizer = load_tokenizer(tokenizer_path);
  }
  if (setup.tokenizer) {
    const bool own_size = !a.model.config_name.empty() || !a.model.model_name_or_path.empty() ||
                          a.model.config_overrides.find("vocab_size") != std::string::npos;
    // A new model of a mere type takes the tokenizer's size, as run_clm resizes to it.
    if (!own_size) {
      setup.config.vocab_size = setup.tokenizer->max_id() + 1;
      setup.config.bos_token_id = setup.tokenizer->roles().bos;
      setup.config.eos_token_id = setup.tokenizer->roles().eos;
    }
    SHOAL_CHECK(setup.tokenizer->max_id() < setup.config.vocab_size,
                "the tokenizer has ids up to {}, but the model a vocabulary of {}",
                setup.tokenizer->max_id(), setup.config.vocab_size);
  }

  setup.block_size =
      a.data.block_size.value_or(std::min<std::int64_t>(1024, setup.config.n_positions));
  if (setup.block_size > setup.config.n_positions)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("block_size is {}, but the model has {} positions", setup.block_size,
                            setup.config.n_positions),
                fmt::format("use --block_size {} or fewer", setup.config.n_positions));
  if (a.training.model_parallel)
    check_mesh(a.training, nn::Gpt2(setup.config), world.size, setup.block_size);
  return setup;
}

void open_data(const RunArguments& a, const World& world, Store& store, RunSetup& setup) {
  const TokenFiles files = token_files(a, setup.tokenizer.get(), world, store, available_cores());
  if (!files.train.empty())
    setup.train_dataset = blocks_of(files.train, setup.block_size, setup.config,
                                    setup.tokenizer.get(), a.data.max_train_samples);
  if (!files.validation.empty())
    setup.eval_dataset = blocks_of(files.validation, setup.block_size, setup.config,
                                   setup.tokenizer.get(), a.data.max_eval_samples);
}

}  // namespace shoal::app
