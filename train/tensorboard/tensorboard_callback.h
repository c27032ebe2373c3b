// What the trainer logs, as Hugging Face's TensorBoardCallback writes it (transformers,
// integrations/integration_utils.py): train/loss, train/learning_rate, eval/loss ...
#pragma once

#include <memory>
#include <string>

#include "shoal/train/trainer/arguments.h"
#include "shoal/train/trainer/callback.h"

namespace shoal {

class EventFile;

// Whether report_to asks for it: tensorboard, or all.
bool reports_to_tensorboard(const TrainingArguments& arguments);

// logging_dir, or where that is empty output_dir/runs/Nov23_14-05-09_HOST.
std::string tensorboard_directory(const TrainingArguments& arguments);

class TensorBoardCallback final : public TrainerCallback {
 public:
  // For rank 0 alone: the other ranks have no callback of this kind. The file is made when training
  // or evaluation first logs.
  explicit TensorBoardCallback(std::string directory);
  ~TensorBoardCallback() override;

  bool needs_every_step() const override { return false; }
  void on_log(const nlohmann::ordered_json& record) override;

 private:
  std::string directory_;
  std::unique_ptr<EventFile> file_;
};

// eval_loss becomes eval/loss, test_loss test/loss, anything else train/...
std::string tensorboard_tag(const std::string& key);

}  // namespace shoal
