// Turns hyperparameters and channels into a `shoal train` command.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/pipes.h"

namespace shoal::sagemaker {

struct TrainCommand {
  std::vector<std::string> words;   // "shoal", "train", "run.json", "--learning_rate", "5e-05" ...
  std::string output_dir;           // checkpoints and, at the end, the model
  std::vector<std::string> notes;   // options that were filled in
  std::vector<PipedChannel> pipes;  // pipes to serve, in this order
  bool on_cpu = false;              // use_cpu is true: GPUs are not used
};

// Formats decoded hyperparameters as words of a command: "--learning_rate", "5e-05". Skips null
// values and output_dir, which train_command() decides.
std::vector<std::string> option_words(const Json& hyperparameters);

// `shoal`: the program. `code`: directory of the job's code. Its entry point, a JSON file of
// options, becomes the first word; other entry points are refused. Options that neither the
// hyperparameters nor that file set are filled in:
//   output_dir              checkpoints/ (replaces model/, too, which gets only the finished model)
//   resume_from_checkpoint  true: an interrupted job continues when it is started again
//   train_file, validation_file, test_file   from the channels train or training; validation, eval,
//     dev or (without do_predict) test; and test. Each must hold a single file, of any name; with
//     `streaming` train_file may name all files. Otherwise `shoal train` looks for the usual names.
//   model_name_or_path      the channel model or pretrained
//   step_capture            on, with the training compiler
//
// Reads file names below the channels. A channel in Pipe mode has no files: with `streaming` the
// training set is read from the pipes, and other channels are first copied to a file. The channel's
// ContentType gives the format. Throws invalid_argument if a pipe cannot provide the data, or on
// several hosts if a channel's files differ between hosts (ShardedByS3Key).
TrainCommand train_command(const Contract& contract, const std::string& shoal,
                           const std::string& code);

}  // namespace shoal::sagemaker
