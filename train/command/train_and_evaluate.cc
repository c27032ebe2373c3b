#include "shoal/train/command/train_and_evaluate.h"

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "shoal/nn/models/adapter.h"
#include "shoal/parallel/predict/model_shape.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/train/command/console_of_rank.h"
#include "shoal/train/command/data_options.h"
#include "shoal/train/command/model_card.h"
#include "shoal/train/command/peak.h"
#include "shoal/train/command/run_settings.h"
#include "shoal/train/command/sample_texts.h"
#include "shoal/train/command/stop_signals.h"
#include "shoal/train/command/summary.h"
#include "shoal/train/data/unigram.h"
#include "shoal/train/tensorboard/tensorboard_callback.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"
#include "shoal/train/trainer/trainer.h"

namespace shoal::command {
namespace {

constexpr const char* kMismatched = "_mm";  // suffix of names for MNLI's mismatched set

// Writes the program's own files in output_dir, unless another run has taken the directory over.
class OutputFiles {
 public:
  explicit OutputFiles(std::string directory) : directory_(std::move(directory)) {}
  // Trainer::check_output_dir() is called before each write
  void ask(const Trainer& trainer) { trainer_ = &trainer; }
  const std::string& directory() const { return directory_; }
  void write(const std::vector<TaskData::File>& files) const {
    for (const TaskData::File& file : files) {
      if (trainer_ != nullptr) trainer_->check_output_dir();
      make_directories(directory_);
      write_file_atomically(directory_ + "/" + file.name, file.text);
    }
  }
  void write_results(const char* name, const nlohmann::ordered_json& metrics) const {
    write({{fmt::format("{}_results.json", name), metrics.dump(2) + "\n"}});
  }

 private:
  std::string directory_;
  const Trainer* trainer_ = nullptr;
};

// Records that training began; from then on no failure counts as a wrong option.
class TrainingBegan final : public TrainerCallback {
 public:
  explicit TrainingBegan(bool& began) : began_(began) {}
  bool needs_every_step() const override { return false; }
  void on_train_begin(const TrainerState&) override { began_ = true; }

 private:
  bool& began_;
};

// compute_metrics for a task with metrics. `asked`: the set that is being predicted; the caller
// changes it. Rank 0 writes the files of an evaluation.
ComputeMetrics metrics_of(const RankParts& rank, const OutputFiles& output,
                          std::shared_ptr<const Dataset>& asked) {
  if (!rank.setup.samples || rank.setup.samples->metric_names().empty()) return {};
  return [&rank, &output, &asked](const Predictions& predictions) {
    const TaskData& samples = *rank.setup.samples;
    if (rank.world.rank == 0 && asked == rank.setup.eval_dataset)
      output.write(samples.evaluated(*asked, predictions));
    return samples.metrics(*asked, predictions);
  };
}

// "predict_results.txt", "_mm" -> "predict_results_mm.txt"
std::string with_suffix(const std::string& file, const std::string& suffix) {
  const std::size_t dot = std::min(file.rfind('.'), file.size());
  return file.substr(0, dot) + suffix + file.substr(dot);
}

// Predicts one set. Appends `suffix` to the names of its metrics and files.
void predict(const RankParts& rank, Trainer& trainer, const OutputFiles& output,
             const std::shared_ptr<const Dataset>& dataset, const std::string& suffix,
             nlohmann::ordered_json& metrics, const std::function<void(const std::string&)>& say) {
  const PredictionOutput predicted = trainer.predict(dataset);
  if (rank.world.rank != 0) return;
  auto files = rank.setup.samples->predicted(*dataset, predicted.predictions);
  for (TaskData::File& file : files) file.name = with_suffix(file.name, suffix);
  output.write(files);
  if (rank.guest != nullptr && rank.guest->answers != nullptr)
    *rank.guest->answers = rank.setup.samples->answers(*dataset, predicted.predictions);
  OrderedFields all(std::move(metrics));
  for (const auto& [name, value] : predicted.metrics.items()) all[name + suffix] = value;
  metrics = std::move(all).json();
  output.write_results("predict", metrics);
  say(fmt::format("{} predictions in {}/{}", predicted.predictions.samples.size(),
                  output.directory(), files.at(0).name));
}

// Evaluates the validation set, or reuses its numbers if the last step was evaluated. Then
// evaluates MNLI's mismatched set, under names that end with _mm as in run_glue.
nlohmann::ordered_json evaluate(const RankParts& rank, Trainer& trainer,
                                std::shared_ptr<const Dataset>& asked) {
  asked = rank.setup.eval_dataset;
  nlohmann::ordered_json metrics = trainer.evaluate_once();
  if (rank.setup.eval_mismatched) {
    asked = rank.setup.eval_mismatched;
    metrics.update(trainer.evaluate(asked, kMismatched));
  }
  return metrics;
}

class RankRun {
 public:
  explicit RankRun(const RankParts& rank)
      : rank_(rank),
        a_(rank.arguments.training),
        main_rank_(rank.world.rank == 0),
        output_(a_.output_dir),
        asked_(rank.setup.eval_dataset),
        tensorboard_(tensorboard_directory(a_)),
        settings_(a_.output_dir, rank.recorded_options, rank.world),
        began_(rank.training_began) {
    if (main_rank_) console_ = std::make_unique<ConsoleCallback>(console_of_run());
    trainer_ = std::make_unique<Trainer>(a_, trainer_parts());
    output_.ask(*trainer_);
  }

  int run() {
    int stopped_by = 0;
    try {
      if (a_.do_train)
        stopped_by = train();
      else
        prepare_evaluation();
      if (stopped_by == 0) evaluate_and_predict();
    } catch (const StoppedBySignal& stopped) {
      stopped_by = stopped.signal;
    }
    nlohmann::ordered_json all = results_;
    if (main_rank_ && stopped_by == 0) {
      all = all_results();
      output_.write_results("all", all);
      if (a_.do_train) write_card(all);
    }
    if (all.is_null()) all = nlohmann::ordered_json::object();
    if (rank_.guest != nullptr) rank_.guest->metrics = std::move(all);
    for (const std::string& line : result_lines(trainer_->state(), results_, unigram_)) say(line);
    if (a_.do_train) say_speed();
    if (const std::string line = trainer_->describe_capture(); !line.empty()) say(line);
    for (const std::string& line : trainer_->predictions_missed())
      say("the prediction missed the last steps: " + line);
    say("memory of rank 0, now and at its peak:");
    for (const std::string& line : trainer_->memory_report()) say("  " + line);
    if (a_.do_train && stopped_by == 0) {
      say(fmt::format("model saved in {}, with metrics.jsonl and all_results.json", a_.output_dir));
      say(next_line(rank_.setup.kind, a_.output_dir));
    }
    return stopped_by == 0 ? 0 : 128 + stopped_by;
  }

 private:
  ConsoleCallback::Options console_of_run() const {
    const bool quiet = a_.disable_tqdm;
    if (rank_.guest == nullptr) return console_options(rank_.world, quiet);
    ConsoleCallback::Options options = rank_.guest->console;
    options.plain_progress = !quiet;
    if (quiet) options.bar = nullptr;
    return options;
  }
  void say(const std::string& line) {
    if (console_) console_->on_message(line);
  }
  void say_notices() {
    for (const auto* notices : {&rank_.notices, &rank_.setup.notices})
      for (const std::string& line : *notices) {
        say(line);
        if (main_rank_ && rank_.guest != nullptr) rank_.guest->notices.push_back(line);
      }
  }

  TrainerParts trainer_parts() {
    TrainerParts parts;
    parts.task = &rank_.task;
    parts.compute_metrics = metrics_of(rank_, output_, asked_);
    parts.kernels = rank_.compute.kernels.get();
    parts.threads = rank_.threads;
    parts.memory = &rank_.compute.memory;
    parts.host_memory = &rank_.compute.host();
    parts.pinned_memory = rank_.compute.pinned.get();
    parts.planned_memory = &rank_.compute.planned;
    parts.communicator = &rank_.communicator;
    parts.made_with = &rank_.made_with;
    parts.train_dataset = rank_.setup.train_dataset;
    parts.train_shards = rank_.setup.train_shards;
    parts.data_options = data_options(rank_.arguments, rank_.setup, rank_.world);
    parts.shuffle_buffer = rank_.arguments.data.shuffle_buffer_size;
    parts.shard_by_rank = rank_.arguments.data.shard_by_rank;
    parts.eval_dataset = rank_.setup.eval_dataset;
    parts.collator = rank_.setup.collator;
    parts.generation = rank_.setup.generation;
    parts.samples = with_texts_of_set(rank_.arguments, rank_.setup);
    parts.initial_weights = rank_.setup.initial_weights;
    if (main_rank_) parts.predicted = rank_.forecast.record;
    if (console_) parts.callbacks.push_back(console_.get());
    if (main_rank_ && reports_to_tensorboard(a_)) parts.callbacks.push_back(&tensorboard_);
    if (main_rank_) parts.callbacks.push_back(&settings_);
    parts.callbacks.push_back(&began_);
    parts.tracer = rank_.tracer;
    parts.stop_signal = &stop_signal;
    parts.stop_evaluations = rank_.guest != nullptr;
    return parts;
  }

  void say_header() {
    std::vector<std::string> header = trainer_->header();
    const auto* const limited = rank_.compute.limited.get();
    header.push_back(fmt::format(
        "device: {} ({}){}", to_string(rank_.device.device), rank_.device.why,
        limited == nullptr
            ? ""
            : fmt::format("; tensors of a rank may take {} ({})",
                          format_bytes(limited->limit().bytes), limited->limit().bound)));
    for (std::string& line : device_lines(rank_.devices)) header.push_back(std::move(line));
    if (!rank_.forecast.line.empty()) header.push_back("plan: " + rank_.forecast.line);
    for (const std::string& line : header) say(line);
    settings_.describe(*trainer_, header, rank_.forecast.record);
  }

  // The work of a token is that of one in a whole block; in shorter samples attention has less.
  void measure_peak() {
    nn::Chain* const chain = rank_.task.chain();
    if (chain == nullptr) return;
    const DType dtype = trainer_->dtype();
    const Peak peak = peak_of(
        {.compute = rank_.compute,
         .device = rank_.device.device,
         .description = rank_.devices[static_cast<std::size_t>(rank_.world.rank)].description,
         .machine = rank_.arguments.layout.machine,
         .dtype = dtype},
        rank_.communicator);
    if (peak.flops == 0) return;
    const auto length = rank_.setup.block_size;
    const double flops = parallel::training_flops(parallel::model_shape(*chain), 1, length) /
                         static_cast<double>(length);
    trainer_->set_peak(flops, peak.flops);
    say(fmt::format("peak: {:.4g} GFLOP/s in {}, {}; a token takes {:.4g} MFLOP", peak.flops * 1e-9,
                    to_string(dtype), peak.source, flops * 1e-6));
  }

  void say_speed() {
    const Trainer::Speed speed = trainer_->speed();
    if (speed.tokens_per_second == 0) return;
    std::string line =
        fmt::format("speed: {} tokens/s on average",
                    format_count(static_cast<std::int64_t>(speed.tokens_per_second)));
    if (speed.mfu > 0) line += fmt::format(", {:.1f} % of the peak", 100 * speed.mfu);
    say(line);
  }

  void measure_unigram() {
    if (!rank_.setup.train_dataset || !rank_.setup.eval_dataset || !rank_.task.predicts_tokens())
      return;
    trainer_->at_own_pace([&] {
      if (main_rank_)
        unigram_ = unigram_loss(*rank_.setup.train_dataset, *rank_.setup.eval_dataset,
                                rank_.task.vocabulary());
    });
    say(fmt::format("to beat: validation loss {:.4f} of a unigram model of the same tokens",
                    unigram_));
  }

  void prepare_evaluation() {
    say_notices();  // evaluation sets may have skipped rows, too
    trainer_->take_output_dir();
  }
  void write_card(const nlohmann::ordered_json& results) {
    constexpr const char* kCard = "README.md";
    const std::string path = a_.output_dir + "/" + kCard;
    if (path_exists(path) && !is_generated_card(read_text_file(path)))
      return say(fmt::format("note: {} is not generated and stays as it is", path));
    const std::string adapted = nn::is_adapter(a_.output_dir)
                                    ? nn::read_adapter_config(a_.output_dir).base_model_name_or_path
                                    : "";
    output_.write({{kCard, model_card(rank_.arguments, rank_.world.size, trainer_->state(), results,
                                      adapted)}});
  }
  // Like transformers' save_metrics(combined=True): a run that only evaluates adds its results to
  // those in output_dir. A training run replaces them.
  nlohmann::ordered_json all_results() const {
    const std::string path = a_.output_dir + "/all_results.json";
    if (a_.do_train || !path_exists(path)) return results_;
    auto all = ordered_json_if_valid(read_text_file(path));
    if (!all || !all->is_object()) {
      log::warn("{} is no JSON object and is replaced", path);
      return results_;
    }
    all->update(results_);
    return *std::move(all);
  }

  // Returns the signal that stopped the run; 0: none.
  int train() {
    if (a_.run_name) say(fmt::format("run: {}", *a_.run_name));
    say_header();
    say_notices();
    measure_peak();
    measure_unigram();
    trainer_->take_output_dir();  // may wait; a signal ends the wait at once
    if (const std::string hint = how_to_stop(rank_.world); !hint.empty()) say(hint);
    const TrainResult trained = [&] {
      StopSignals signals;
      TrainResult result = trainer_->train();
      if (result.stop_signal != 0 && rank_.guest == nullptr) signals.ignore_repeats();
      return result;
    }();
    results_ = trained.metrics;
    if (unigram_ > 0) results_["unigram_eval_loss"] = unigram_;
    if (trained.stop_signal != 0) {
      say_stopped(trained);
      return trained.stop_signal;
    }
    trainer_->save_model(a_.output_dir);
    if (main_rank_) output_.write_results("train", trained.metrics);
    // The signal came after the last step. The model is saved, so the signal ends the program.
    if (const int late = stop_signal; late != 0 && rank_.guest == nullptr) end_by(late);
    return 0;
  }

  void say_stopped(const TrainResult& trained) {
    if (trained.last_checkpoint.empty())
      return say(
          fmt::format("stopped by signal {} before the first step; nothing was changed in {}",
                      trained.stop_signal, a_.output_dir));
    say(fmt::format(
        "stopped by signal {} at step {} of {}; {}", trained.stop_signal, trained.global_step,
        trainer_->total_steps(),
        a_.save_only_model
            ? fmt::format("{} holds the model, but (save_only_model) no run to resume",
                          trained.last_checkpoint)
            : fmt::format("{} holds the run, --resume_from_checkpoint true continues it",
                          trained.last_checkpoint)));
  }

  void evaluate_and_predict() {
    if (a_.do_eval && rank_.setup.eval_dataset) {
      const nlohmann::ordered_json metrics = evaluate(rank_, *trainer_, asked_);
      if (main_rank_) output_.write_results("eval", metrics);
      results_.update(metrics);
    }
    if (a_.do_predict) predict_sets();
  }

  void predict_sets() {
    nlohmann::ordered_json metrics;
    for (const auto& [dataset, suffix] :
         {std::pair{rank_.setup.test_dataset, ""}, {rank_.setup.test_mismatched, kMismatched}}) {
      if (!dataset) continue;
      asked_ = dataset;
      predict(rank_, *trainer_, output_, dataset, suffix, metrics,
              [this](const std::string& line) { say(line); });
    }
  }

  const RankParts& rank_;
  const ResolvedRun& a_;
  const bool main_rank_;
  std::unique_ptr<ConsoleCallback> console_;  // null: not rank 0
  OutputFiles output_;
  std::shared_ptr<const Dataset> asked_;  // the set that is being evaluated or predicted
  TensorBoardCallback tensorboard_;
  RunSettings settings_;
  TrainingBegan began_;
  std::unique_ptr<Trainer> trainer_;
  nlohmann::ordered_json results_;
  double unigram_ = 0;  // 0: unknown
};

}  // namespace

int train_and_evaluate(const RankParts& rank) { return RankRun(rank).run(); }

}  // namespace shoal::command
