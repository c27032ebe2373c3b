// Selects the model and task of a run from config.json, before anything is built.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/nn/layers/lora.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/tasks/make_task.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal::command {

struct ChosenModel {
  TaskKind kind = TaskKind::causal_lm;
  nlohmann::json config;        // contents of config.json
  std::string source;           // where `config` comes from, for messages
  std::string initial_weights;  // a directory; empty: initialise from the seed
  // take vocab_size from the tokenizer, since the configuration lacks it
  bool takes_vocabulary = false;
  std::string files, tokenizer;  // as in ModelPlace; empty: a new model
  // The adapters to train: lora_r's, or those in `initial_weights`. nullopt: the whole model.
  std::optional<nn::LoraOptions> lora{};
};

// Uses model_name_or_path, config_name or model_type. Without an explicit task, config.json
// decides. Throws not_found or invalid_argument.
ChosenModel choose_model(const ModelArguments& arguments);
// Takes size and special tokens from the tokenizer, as run_clm and run_mlm resize a new model.
void take_vocabulary(ChosenModel& model, const Tokenizer& tokenizer);

// Returns the padding id. For a decoder with a task head: config.json's, otherwise the tokenizer's
// padding, otherwise the tokenizer's end of text, as is usual with transformers. This id is stored
// in config.json. For other models: the tokenizer's. Adds a notice if the tokenizer has no padding.
TokenId take_padding(ChosenModel& model, const Tokenizer& tokenizer,
                     std::vector<std::string>& notices);

// A Hugging Face directory or an adapter of PEFT: `path` itself or, if it contains only
// checkpoints, its newest complete one. Verifying a checkpoint reads every byte, with signs of
// progress (runtime/base/progress.h). Throws not_found, naming the places searched.
std::string model_directory(const std::string& path);
// Where the parts of a model are. An adapter's directory may lack files that the adapted model's
// directory has.
struct ModelPlace {
  std::string weights;    // the directory itself
  std::string config;     // path of config.json
  std::string files;      // the directory with generation_config.json, if one has it
  std::string tokenizer;  // the directory with the tokenizer's files, if one has them
  std::optional<nn::LoraOptions> lora{};  // the adapters in `weights`
  // The directory with the weights of the whole or adapted model.
  const std::string& whole() const { return lora ? lora->base_directory : weights; }
};
// Finds an adapted model as PEFT does: base_model_name_or_path is a directory, absolute or relative
// to the working directory, or a name in Hugging Face's cache. Throws not_found if it is not there.
ModelPlace place_of(const std::string& directory);
bool has_tokenizer(const std::string& directory);  // load_tokenizer() finds its files
// The same for all ranks of a job: one rank per host calls `find` and shares its answer with the
// others. Collective, even with an empty path, which stays empty. An error on one rank is thrown on
// all.
std::string shared_model_directory(const std::string& path, const World& world, Store& store,
                                   Deadline deadline,
                                   const std::function<std::string(const std::string&)>& find);

}  // namespace shoal::command
