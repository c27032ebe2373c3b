// Writes the trainer's log as Hugging Face's TensorBoardCallback does (transformers,
// integrations/integration_utils.py): train/loss, train/learning_rate, eval/loss, ...
#pragma once

#include <memory>
#include <string>

#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/callback.h"

namespace shoal {

class EventFile;

// True if report_to names tensorboard or all.
bool reports_to_tensorboard(const TrainingArguments& arguments);

// logging_dir; if empty, output_dir/runs/Nov23_14-05-09_HOST.
std::string tensorboard_directory(const TrainingArguments& arguments);

class TensorBoardCallback final : public TrainerCallback {
 public:
  // For rank 0 only; other ranks have no callback of this kind. The file is created at the first
  // log record.
  explicit TensorBoardCallback(std::string directory);
  ~TensorBoardCallback() override;

  bool needs_every_step() const override { return false; }
  void on_log(const nlohmann::ordered_json& record) override;

 private:
  std::string directory_;
  std::unique_ptr<EventFile> file_;
};

// eval_loss becomes eval/loss, test_loss test/loss; other keys go under train/.
std::string tensorboard_tag(const std::string& key);

}  // namespace shoal
