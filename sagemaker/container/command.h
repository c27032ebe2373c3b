// Turns hyperparameters and channels into the command that each rank runs: `shoal train`, or the
// job's Python script.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/pipes.h"

namespace shoal::sagemaker {

struct TrainCommand {
  std::vector<std::string> words;   // "shoal", "train", "run.json", "--learning_rate", "5e-05" ...
  std::string script;               // the Python script that runs; empty: `shoal train`
  std::string directory;            // the command's directory; empty: the current one
  std::string rank_name;            // name of a rank's process once it handles signals
  std::string output_dir;           // of `shoal train`: checkpoints and, at the end, the model
  std::vector<std::string> notes;   // options that were filled in
  std::vector<PipedChannel> pipes;  // pipes to serve, in this order
  bool on_cpu = false;              // use_cpu is true: GPUs are not used
};

// Formats decoded hyperparameters as words of a command: "--learning_rate", "5e-05". Skips null
// values and output_dir, which train_command() decides.
std::vector<std::string> option_words(const Json& hyperparameters);

struct Programs {
  std::string shoal = "shoal", python = "python3";
  std::string train = "train";  // starts a rank of a script under mpirun (rank.h)
};

// `code`: directory of the job's code. If its entry point is a Python script, the command is the
// script with the hyperparameters as arguments (user_arguments()), started in `code`; with a
// distribution, each rank of it is started by `train rank`.
//
// Otherwise the command is `shoal train`. The entry point, a JSON file of options, becomes its
// first word; other entry points are refused. These options are filled in unless the
// hyperparameters or that file set them:
//   output_dir              checkpoints/. It also replaces a given model/ and folders below it,
//     because model/ gets only the finished model
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
TrainCommand train_command(const Contract& contract, const Programs& programs,
                           const std::string& code);

}  // namespace shoal::sagemaker
