// Selects the model and task of a run from config.json, before anything is built.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

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

// A Hugging Face directory: `path` itself or, if it contains only checkpoints, its newest complete
// one. Verifying a checkpoint reads every byte, with signs of progress (runtime/base/progress.h).
// Throws not_found, naming the places searched.
std::string model_directory(const std::string& path);
// The same for all ranks of a job: one rank per host calls `find` and shares its answer with the
// others. Collective, even with an empty path, which stays empty. An error on one rank is thrown on
// all.
std::string shared_model_directory(const std::string& path, const World& world, Store& store,
                                   Deadline deadline,
                                   const std::function<std::string(const std::string&)>& find);

}  // namespace shoal::command
