// Console output of a run: a progress bar on a terminal, plain lines elsewhere.
#pragma once

#include <cstdio>
#include <string>

#include "shoal/runtime/base/clock.h"
#include "shoal/train/trainer/callback.h"

namespace shoal {

// Writes records (as Python dicts) and messages to `out` and the bar to `bar`. Only one rank
// creates it; the others print nothing.
class ConsoleCallback final : public TrainerCallback {
 public:
  struct Options {
    std::FILE* out = nullptr;
    std::FILE* bar = nullptr;     // null: no bar
    int columns = 0;              // width of the bar; 0: the terminal's width
    bool plain_progress = false;  // without a bar, report progress about twice a minute
  };
  explicit ConsoleCallback(const Options& options);
  ~ConsoleCallback() override;

  bool needs_every_step() const override { return false; }  // the bar shows the last known loss
  void on_step_end(const StepReport& report, TrainerControl& control) override;
  void on_log(const nlohmann::ordered_json& record) override;
  void on_evaluate_progress(std::int64_t batch, std::int64_t batches) override;
  void on_message(const std::string& line) override;
  void on_train_end(const TrainerState& state) override;

 private:
  void line(const std::string& text);
  void clear();
  int columns() const;
  void draw(const std::string& text);

  Options options_;
  Clock::time_point last_drawn_{}, last_said_{}, evaluation_began_{};
  std::size_t drawn_ = 0;
  std::string loss_;  // "loss 3.2, " of the last known step
};

// A progress bar for other long work. Redrawn at most ten times a second; erased by the destructor.
class ProgressBar {
 public:
  // `stream` null: silent.
  ProgressBar(std::FILE* stream, std::string unit);
  ~ProgressBar();
  void update(std::int64_t done, std::int64_t total, const std::string& detail = {});

 private:
  std::FILE* stream_;
  std::string unit_;
  Clock::time_point began_, last_{};
  bool drawn_ = false;
};

// Width in columns of the terminal that `stream` writes to; 0 if it is not a terminal.
int terminal_width(std::FILE* stream);
int terminal_width(int descriptor);

}  // namespace shoal
