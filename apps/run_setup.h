// What `shoal train` builds before it trains: model, tokenizer, data, from the arguments.
#pragma once

#include <memory>
#include <string>

#include "shoal/nn/models/gpt2/config.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal::app {

struct RunArguments {
  TrainingArguments training;
  ModelArguments model;
  DataArguments data;
};

struct RunSetup {
  nn::Gpt2Config config;
  std::string initial_weights;                 // a directory; empty: from the seed
  std::shared_ptr<const Tokenizer> tokenizer;  // may be absent where tokens are prepared
  std::shared_ptr<const Dataset> train_dataset, eval_dataset;
  std::int64_t block_size = 0;
};

// Model, tokenizer and sizes: everything that may be wrong with the arguments is found here,
// without a word between the ranks and before anything takes memory.
RunSetup set_up_run(const RunArguments& arguments, const World& world);
// Then the data. Tokenizes text files; the first rank of a host does it, the others wait: every
// rank calls this.
void open_data(const RunArguments& arguments, const World& world, Store& store, RunSetup& setup);

// A Hugging Face directory: `path` itself, or its newest complete checkpoint where it only has
// checkpoints. not_found says what was looked for.
std::string model_directory(const std::string& path);

}  // namespace shoal::app
