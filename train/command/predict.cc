#include "shoal/train/command/predict.h"

#include <utility>

#include "shoal/runtime/io/scratch_directory.h"
#include "shoal/train/command/train.h"

namespace shoal::command {
namespace {

Answered run(const PredictOptions& options, const char* file, bool predicts,
             const ConsoleCallback::Options& console) {
  const ScratchDirectory scratch;  // for prepared tokens and the files that a run writes
  Answered answered;
  Guest guest;
  guest.console = console;
  guest.answers = &answered.answers;
  guest.options = options.options;
  guest.options.update({{"model_name_or_path", options.model},
                        {file, options.file},
                        {"do_train", false},
                        {"do_eval", !predicts},
                        {"do_predict", predicts},
                        {"output_dir", scratch.path()}});
  answered.status = train(guest);
  answered.problem = std::move(guest.problem);
  answered.notices = std::move(guest.notices);
  answered.metrics = std::move(guest.metrics);
  return answered;
}

}  // namespace

Answered predict(const PredictOptions& options, const ConsoleCallback::Options& console) {
  return run(options, "test_file", true, console);
}

Answered evaluate(const PredictOptions& options, const ConsoleCallback::Options& console) {
  return run(options, "validation_file", false, console);
}

}  // namespace shoal::command
