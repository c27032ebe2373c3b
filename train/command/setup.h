// Model, tokenizer and data, which `shoal train` builds from the arguments before it trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/collectives/watched_store.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/rendezvous/world.h"
#include "shoal/train/command/choose_model.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/data/batch.h"
#include "shoal/train/data/dataset.h"
#include "shoal/train/data/sample_stream.h"
#include "shoal/train/data/tokenizer/tokenizer.h"
#include "shoal/train/trainer/arguments.h"

namespace shoal::command {

// Where train_file and so on are that are not given.
struct NamedData {
  std::string data;                 // a directory, or the training file
  std::string dataset_name;         // a directory in it or elsewhere, or a channel of SageMaker
  std::string dataset_config_name;  // a directory in that
};

struct RunArguments {
  TrainingArguments training;
  ModelArguments model;
  DataArguments data;
  NamedData named;
};

struct RunSetup {
  TaskKind kind = TaskKind::causal_lm;
  std::unique_ptr<Task> task;
  std::string initial_weights;                 // a directory; empty: from the seed
  std::shared_ptr<const Tokenizer> tokenizer;  // may be absent where tokens are prepared
  std::shared_ptr<const TaskData> samples;     // null: language modelling
  std::shared_ptr<const Dataset> train_dataset, eval_dataset, test_dataset;
  std::shared_ptr<const Dataset> eval_mismatched, test_mismatched;  // MNLI's
  SourceRegistry sources;                        // what files may be read from besides this machine
  std::shared_ptr<const ShardSet> train_shards;  // with streaming, instead of train_dataset
  std::shared_ptr<const Collator> collator;
  std::int64_t block_size = 0;
  TokenId padding = 0;               // fills samples, or blocks, up
  std::vector<std::string> notices;  // for rank 0 to print
};

// False: resume_from_checkpoint is a word for yes or no, or not given.
bool names_checkpoint(const std::string& resume_from_checkpoint);
// Makes the directory where it is not there. invalid_argument, by the option that names it, where
// it cannot be made or this process may not write in it.
void make_writable(const char* option, const std::string& directory);
// Model, tokenizer and sizes: everything that may be wrong with the arguments is found here,
// without a word between the ranks and before anything takes memory.
using AddSources = std::function<void(SourceRegistry&)>;
RunSetup set_up_run(const RunArguments& arguments, const World& world, bool on_cpu,
                    const AddSources& add_sources);
// Then the data. Tokenizes text files; the first rank of a host does it, the others wait: every
// rank calls this. `threads`: of this rank (threads_of_rank()), for rows that each rank tokenizes.
void open_data(const RunArguments& arguments, const World& world, collectives::WatchedStore& ranks,
               int threads, RunSetup& setup);

}  // namespace shoal::command
