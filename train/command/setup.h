// Model, tokenizer and data, which `shoal train` builds from the arguments before it trains.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shoal/collectives/watched_store.h"
#include "shoal/nn/models/generate.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/trainer/resolved_run.h"
#include "shoal/train/trainer/sample_texts.h"

namespace shoal::command {

// Data sets by name, in place of train_file and so on.
struct NamedData {
  std::string data;                 // a directory, or the training file
  std::string dataset_name;         // a directory in `data` or elsewhere, or SageMaker's channel
  std::string dataset_config_name;  // a directory in dataset_name
};

// The source of a run's layout, if its other options do not give one.
struct LayoutArguments {
  std::string plan;        // a file of `shoal plan --save`, whose options are read too
  bool automatic = false;  // choose the layout for these ranks
  std::string machine;     // where it runs (parallel/predict/machine.h); empty: not known
};

struct RunArguments {
  ResolvedRun training;
  ModelArguments model;
  DataArguments data;
  NamedData named;
  LayoutArguments layout;
};

struct RunSetup {
  TaskKind kind = TaskKind::causal_lm;
  std::unique_ptr<Task> task;
  std::string initial_weights;                 // a directory; empty: from the seed
  std::string model_files;                     // ChosenModel::files
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null if tokens are prepared
  std::shared_ptr<const TaskData> samples;     // null: language modelling
  std::shared_ptr<const Dataset> train_dataset, eval_dataset, test_dataset;
  std::shared_ptr<const Dataset> eval_mismatched, test_mismatched;  // MNLI's mismatched sets
  SourceRegistry sources;                                           // remote places to read from
  std::shared_ptr<const ShardSet> train_shards;  // with streaming, instead of train_dataset
  std::shared_ptr<const Collator> collator;
  std::optional<nn::GenerationOptions> generation;  // predictions are texts
  SampleTexts sample_texts;                         // without those of the validation set
  std::int64_t block_size = 0;                      // positions of a sample
  std::int64_t text_tokens = 0;      // tokens of a block of text; the same, but of span corruption
  TokenId padding = 0;               // pads samples, or blocks
  std::vector<std::string> notices;  // for rank 0 to print
};

// True if the validation set is a part of train_file.
bool splits_train_file(const DataArguments& data);
// True if resume_from_checkpoint is a path: neither empty nor a word for yes or no.
bool names_checkpoint(const std::string& resume_from_checkpoint);
// Makes the directory if it is missing. Throws invalid_argument, naming the option, if that fails
// or this process may not write in it.
void make_writable(const char* option, const std::string& directory);
using AddSources = std::function<void(SourceRegistry&)>;
// Chooses model, tokenizer and sizes. Reports all wrong arguments before ranks communicate and
// before memory is allocated. `add_sources` registers sources besides files.
RunSetup set_up_run(const RunArguments& arguments, const World& world, bool on_cpu,
                    const AddSources& add_sources);
// Opens the data. Collective: the first rank of each host tokenizes text files while the others
// wait. `threads`: threads_of_rank(), for rows that each rank tokenizes.
void open_data(const RunArguments& arguments, const World& world, collectives::WatchedStore& ranks,
               int threads, RunSetup& setup);

}  // namespace shoal::command
