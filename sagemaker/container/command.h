// Hyperparameters and channels as a command of `shoal train`.
#pragma once

#include <string>
#include <vector>

#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/pipes.h"

namespace shoal::sagemaker {

struct TrainCommand {
  std::vector<std::string> words;   // "shoal", "train", "run.json", "--learning_rate", "5e-05" ...
  std::string output_dir;           // checkpoints and, at the end, the model
  std::vector<std::string> notes;   // what was filled in
  std::vector<PipedChannel> pipes;  // to be looked after, in this order
  bool on_cpu = false;              // use_cpu is true: GPUs are left alone
};

// Decoded hyperparameters as the words of a command, "--learning_rate", "5e-05": all but those that
// are null, and output_dir, which train_command() decides.
std::vector<std::string> option_words(const Json& hyperparameters);

// `shoal`: the program. The job's code lies in `code` (its entry point, a JSON file of options,
// becomes the first word; another kind of entry point is refused). Filled in where neither the
// hyperparameters nor that file say otherwise:
//   output_dir              checkpoints/ (also instead of model/, which gets the finished model)
//   resume_from_checkpoint  true: a job that is interrupted and started again continues
//   train_file, validation_file, test_file   from the channels train or training; validation, eval,
//     dev or (without do_predict) test; test: where each holds one file, whatever its name, or with
//     `streaming` all files of the first. Otherwise `shoal train` looks for the usual names itself.
//   model_name_or_path      the channel model or pretrained
//   step_capture            on, with the training compiler
// Reads names of files below the channels. A channel in Pipe mode has none: with `streaming` the
// training set is read through its pipes, what else comes by one is copied to a file first; the
// channel's ContentType says what it brings. What a pipe cannot do, and on several hosts a channel
// whose files differ from host to host (ShardedByS3Key): invalid_argument.
TrainCommand train_command(const Contract& contract, const std::string& shoal,
                           const std::string& code);

}  // namespace shoal::sagemaker
