// Which model a run trains, and for what: config.json and the task, before anything is built.
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

namespace shoal::app {

struct ChosenModel {
  TaskKind kind = TaskKind::causal_lm;
  nlohmann::json config;          // as config.json has it
  std::string source;             // of the configuration, for messages
  std::string initial_weights;    // a directory; empty: from the seed
  bool takes_vocabulary = false;  // of the tokenizer: the configuration does not say its size
};

// From model_name_or_path, config_name or model_type. A task that is not asked for is what
// config.json says. not_found, invalid_argument in one line.
ChosenModel choose_model(const ModelArguments& arguments);
// The tokenizer's size and special tokens, as run_clm and run_mlm resize a new model.
void take_vocabulary(ChosenModel& model, const Tokenizer& tokenizer);

// What fills samples up: of a decoder with a head what config.json names, else the tokenizer's
// padding, else its end of text, which transformers' users take; config.json then names it. Of
// other models the tokenizer's. `notices`: where it is neither's own.
TokenId take_padding(ChosenModel& model, const Tokenizer& tokenizer,
                     std::vector<std::string>& notices);

// A Hugging Face directory: `path` itself, or its newest complete checkpoint where it only has
// checkpoints, of which every byte is read; `progress` is called meanwhile. not_found says what was
// looked for.
std::string model_directory(const std::string& path, const std::function<void()>& progress = {});
// The same of a job's ranks: one rank a host looks, `find`, and the others there take its answer.
// Every rank calls it, also with an empty path, which stays empty; what one finds wrong, all throw.
std::string shared_model_directory(const std::string& path, const World& world, Store& store,
                                   Deadline deadline,
                                   const std::function<std::string(const std::string&)>& find);

}  // namespace shoal::app
