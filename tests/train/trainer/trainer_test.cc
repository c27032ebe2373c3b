#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <tuple>
#include <utility>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/runtime/trace/step_clock.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/tasks/targets.h"

namespace shoal {
namespace {

using test::bytes_of;
using test::error_of;
using test::expect_close;
using test::Recorder;
using test::run;
using test::RunOptions;
using test::toy_arguments;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TemporaryDirectory;

TEST(Trainer, LearnsAndRepeatsToTheBit) {
  const TemporaryDirectory output;
  const auto first = run(toy_arguments(output / "a"));
  const auto second = run(toy_arguments(output / "b"));
  ASSERT_EQ(first.main.losses.size(), 50U);
  EXPECT_LT(first.main.losses.back(), 0.97 * first.main.losses.front());  // random ids: memory
  EXPECT_EQ(first.main.losses, second.main.losses);
  EXPECT_EQ(first.main.norms, second.main.norms);
}

TEST(Trainer, DropoutChangesTheCurve) {  // so that the tests below are meaningful
  const TemporaryDirectory output;
  RunOptions still;
  still.config.hidden_dropout = still.config.embedding_dropout = still.config.attention_dropout = 0;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 3;
  EXPECT_NE(run(arguments).main.losses, run(arguments, still).main.losses);
}

// An option that parses but has no effect is worse than no option.
TEST(Trainer, EachOptionOfTheUpdateHasItsEffect) {
  const TemporaryDirectory output;
  using Change = std::function<void(TrainingArguments&)>;
  const auto losses = [&](const std::string& optim, const Change& change) {
    auto arguments = toy_arguments(output.path());
    arguments.max_steps = 7;
    arguments.warmup_steps = 1;
    arguments.optim = optim;
    arguments.learning_rate = optim == "sgd" ? 0.1 : 3e-3;
    if (change) change(arguments);
    return run(arguments).main.losses;
  };
  const std::vector<std::pair<const char*, Change>> of_all = {
      {"learning_rate", [](auto& a) { a.learning_rate /= 2; }},
      {"weight_decay", [](auto& a) { a.weight_decay = 0.5; }},
      {"max_grad_norm", [](auto& a) { a.max_grad_norm = 0.01; }},
      {"label_smoothing_factor", [](auto& a) { a.label_smoothing_factor = 0.2; }},
      {"neftune_noise_alpha", [](auto& a) { a.neftune_noise_alpha = 5; }},
      {"lr_scheduler_type", [](auto& a) { a.lr_scheduler_type = "cosine"; }},
      {"lr_scheduler_kwargs",
       [](auto& a) {
         a.lr_scheduler_type = "cosine_with_min_lr";
         a.lr_scheduler_kwargs = {{"min_lr", 1e-3}};
       }},
      {"warmup_steps", [](auto& a) { a.warmup_steps = 3; }},
      {"warmup_ratio",
       [](auto& a) {
         a.warmup_steps = 0;
         a.warmup_ratio = 0.5;
       }},
      {"seed", [](auto& a) { a.seed = 43; }},
      {"data_seed", [](auto& a) { a.data_seed = 43; }},
      {"gradient_accumulation_steps", [](auto& a) { a.gradient_accumulation_steps = 2; }},
      {"bf16", [](auto& a) { a.bf16 = true; }},
      {"fp16", [](auto& a) { a.fp16 = true; }},
      {"stochastic_rounding", [](auto& a) { a.bf16 = a.stochastic_rounding = true; }},
      {"dataloader_drop_last", [](auto& a) { a.dataloader_drop_last = true; }},
  };
  const std::vector<std::pair<const char*, Change>> of_adam = {
      {"adam_beta1", [](auto& a) { a.adam_beta1 = 0.5; }},
      {"adam_beta2", [](auto& a) { a.adam_beta2 = 0.9; }},
      {"adam_epsilon", [](auto& a) { a.adam_epsilon = 1e-2; }},
      {"weight_decay", [](auto& a) { a.weight_decay = 0.5; }},
  };
  const std::vector<std::pair<const char*, Change>> of_sgd = {
      {"weight_decay", [](auto& a) { a.weight_decay = 0.5; }},
      {"sgd_momentum", [](auto& a) { a.sgd_momentum = 0.9; }}};
  const auto usual = losses("adamw", {}), lamb = losses("lamb", {}), sgd = losses("sgd", {}),
             lion = losses("lion", {}), adafactor = losses("adafactor", {});
  EXPECT_NE(usual, lamb);
  EXPECT_NE(usual, lion);
  EXPECT_NE(usual, adafactor);
  EXPECT_NE(adafactor, losses("adafactor", [](auto& a) { a.weight_decay = 0.5; }));
  EXPECT_EQ(adafactor, losses("adafactor", [](auto& a) { a.adam_beta2 = 0.9; })) << "it has none";
  for (const auto& [name, change] : of_all) EXPECT_NE(usual, losses("adamw", change)) << name;
  for (const auto& [name, change] : of_adam) {
    EXPECT_NE(usual, losses("adamw", change)) << name;
    EXPECT_NE(lamb, losses("lamb", change)) << name << " of LAMB";
    if (std::string(name) != "adam_epsilon") {
      EXPECT_NE(lion, losses("lion", change)) << name << " of Lion";
    }
  }
  for (const auto& [name, change] : of_sgd) EXPECT_NE(sgd, losses("sgd", change)) << name;
}

TEST(Trainer, RanksAndAccumulationChangeOnlyRounding) {
  const TemporaryDirectory output;
  // With 48 samples an epoch ends with a full global batch in every layout.
  const auto with = [&](int ranks, std::int64_t batch, std::int64_t accumulated) {
    auto arguments = toy_arguments(output / fmt::format("{}-{}", ranks, batch));
    arguments.per_device_train_batch_size = batch;
    arguments.gradient_accumulation_steps = accumulated;
    return run(arguments, {.ranks = ranks, .samples = 48}).main;
  };
  const Recorder one = with(1, 8, 1);
  for (const auto& [ranks, batch, accumulated] :
       {std::tuple{2, 4, 1}, {4, 2, 1}, {1, 2, 4}, {2, 2, 2}, {4, 1, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks x {} x {}", ranks, batch, accumulated));
    const Recorder other = with(ranks, batch, accumulated);
    expect_close(one.losses, other.losses, 2e-5);
    expect_close(one.norms, other.norms, 1e-3);
  }
}

TEST(Trainer, LoaderWorkersChangeNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 20;
  const auto none = run(arguments);
  arguments.dataloader_num_workers = 3;
  EXPECT_EQ(none.main.losses, run(arguments).main.losses);
}

TEST(Trainer, StepCaptureChangesNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "off");
  arguments.gradient_accumulation_steps = 2;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 9;
  RunOptions options;
  options.eval_samples = 7;
  const auto direct = run(arguments, options);
  arguments.output_dir = output / "on";
  arguments.step_capture = StepCaptureMode::on;
  const auto planned = run(arguments, options);
  EXPECT_EQ(planned.main.losses, direct.main.losses);
  EXPECT_EQ(planned.main.norms, direct.main.norms);
  EXPECT_EQ(planned.result.train_loss, direct.result.train_loss);
  EXPECT_THAT(planned.main.messages, HasSubstr("step capture: a plan with"));
  EXPECT_THAT(planned.main.messages, Not(HasSubstr("differs")));
  EXPECT_THAT(direct.main.messages, Not(HasSubstr("step capture")));
  EXPECT_THAT(planned.main.messages,
              ContainsRegex("chains left to fuse among [0-9]+ operations: 2 x layer_norm.backward "
                            "with its branch: layer_norm.backward, dropout.backward"))
      << "of two microbatches the embeddings' dropout";
}

// Sums over ranks run between the kernels of a step whose memory is planned.
TEST(Trainer, StepCaptureOfTwoRanksChangesNothing) {
  const TemporaryDirectory output;
  for (const double norm : {1.0, 0.0}) {  // without a norm, updates overlap the next forward pass
    SCOPED_TRACE(norm);
    auto arguments = toy_arguments(output / "off");
    arguments.overwrite_output_dir = true;
    arguments.gradient_accumulation_steps = 2;
    arguments.max_grad_norm = norm;
    arguments.max_steps = 12;
    RunOptions options{.ranks = 2};
    options.save_model_to = output / "direct";
    const auto direct = run(arguments, options);
    arguments.output_dir = output / "on";
    arguments.step_capture = StepCaptureMode::on;
    options.save_model_to = output / "planned";
    const auto planned = run(arguments, options);
    EXPECT_EQ(planned.main.losses, direct.main.losses);
    EXPECT_EQ(nlohmann::ordered_json(planned.main.norms).dump(),
              nlohmann::ordered_json(direct.main.norms).dump());
    EXPECT_EQ(bytes_of(output / "planned/model.safetensors"),
              bytes_of(output / "direct/model.safetensors"));
    EXPECT_THAT(planned.main.messages, HasSubstr("step capture: a plan with"));
    EXPECT_THAT(planned.main.messages, Not(HasSubstr("differs")));
  }
}

// Every batch has the same number of targets, so all steps have the same shape.
class EvenDataset final : public Dataset {
 public:
  std::int64_t size() const override { return 48; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    for (std::int64_t t = 0; t < 12; ++t)
      sample.input_ids.push_back(static_cast<std::int32_t>((7 * index + t * t) % 59));
    sample.labels = sample.input_ids;
    return sample;
  }
};

TEST(Trainer, StepCaptureOfAMeshChangesNothing) {
  const TemporaryDirectory output;
  RunOptions options{.ranks = 2};
  options.config.num_attention_heads = 4;
  options.prepare = [](CausalLmTask&, TrainerParts& parts) {
    parts.train_dataset = std::make_shared<EvenDataset>();
  };
  for (const nlohmann::json& mesh : std::vector<nlohmann::json>{
           {{"ddp", true}, {"tensor_parallel_degree", 2}},
           {{"ddp", true}, {"tensor_parallel_degree", 2}, {"prescaled_batch", true}},
           {{"pipeline_parallel_degree", 2}, {"microbatches", 4}, {"skip_tracing", true}},
           {{"ddp", true}, {"sharding_strategy", "FULL_SHARD"}}}) {
    SCOPED_TRACE(mesh.dump());
    auto arguments = toy_arguments(output / "off");
    arguments.overwrite_output_dir = true;
    arguments.mp_parameters = mesh;
    arguments.max_steps = 12;
    options.save_model_to = output / "direct";
    const auto direct = run(arguments, options);
    arguments.output_dir = output / "on";
    arguments.step_capture = StepCaptureMode::on;
    options.save_model_to = output / "planned";
    const auto planned = run(arguments, options);
    EXPECT_EQ(planned.main.losses, direct.main.losses);
    EXPECT_EQ(planned.main.norms, direct.main.norms);
    EXPECT_EQ(bytes_of(output / "planned/model.safetensors"),
              bytes_of(output / "direct/model.safetensors"));
    EXPECT_THAT(planned.main.messages, HasSubstr("step capture: a plan with"));
    EXPECT_THAT(planned.main.messages, Not(HasSubstr("differs")));
  }
}

TEST(Trainer, GradientCheckpointingChangesNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 10;
  const auto kept = run(arguments);
  arguments.gradient_checkpointing = true;
  const auto recomputed = run(arguments);
  expect_close(kept.main.losses, recomputed.main.losses, 1e-6);
}

TEST(Trainer, ActivationOffloadingChangesNoBitAndSavesWhatLeaves) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 3;
  arguments.gradient_checkpointing = true;
  RunOptions options{.config = test::toy_config()};
  options.config.num_hidden_layers = 8;
  options.config.hidden_size = 192;
  const auto kept = run(arguments, options);
  arguments.activation_offloading = true;
  const auto offloaded = run(arguments, options);
  EXPECT_EQ(offloaded.main.losses, kept.main.losses);
  EXPECT_EQ(offloaded.main.norms, kept.main.norms);
  // There are inputs of eight blocks: two are in flight and one is in use.
  const std::int64_t input = std::int64_t{8} * 12 * 192 * 4;
  EXPECT_LE(offloaded.memory_peaks[0], kept.memory_peaks[0] - (8 - 4) * input);
}

TEST(TrainerEvaluation, CountsEverySampleOnceWhateverTheRanks) {
  const TemporaryDirectory output;
  std::vector<double> losses;
  for (const int ranks : {1, 2, 3, 4}) {
    auto arguments = toy_arguments(output / std::to_string(ranks));
    arguments.max_steps = 1;
    arguments.learning_rate = 0;
    arguments.eval_strategy = Interval::steps;
    arguments.eval_steps = 1;
    const auto outcome = run(arguments, {.ranks = ranks, .eval_samples = 7});
    ASSERT_EQ(outcome.main.evaluations.size(), 1U);
    losses.push_back(outcome.main.evaluations[0]["eval_loss"].get<double>());
    EXPECT_NEAR(outcome.main.evaluations[0]["eval_perplexity"].get<double>(),
                std::exp(losses.back()), 1e-9);
  }
  for (const double loss : losses) EXPECT_NEAR(loss, losses[0], 1e-6 * losses[0]);
  EXPECT_NEAR(losses[0], std::log(test::kToyVocabulary), 0.1);  // untrained
}

// The loss is divided by the number of targets.
TEST(TrainerEvaluation, MissingNumbersAreNotTargets) {
  const auto memory = make_host_memory();
  const Tensor numbers = Tensor::zeros({2, 2}, DType::f32, *memory, MemoryTag::data);
  numbers.data<float>()[2] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(count_targets(numbers), 3);
}

TEST(TrainerEvaluation, FewerSamplesThanRanks) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 1;
  arguments.eval_strategy = Interval::steps;
  arguments.eval_steps = 1;
  const auto outcome = run(arguments, {.ranks = 4, .eval_samples = 2});
  EXPECT_TRUE(std::isfinite(outcome.main.evaluations.at(0)["eval_loss"].get<double>()));
}

TEST(TrainerEvaluation, TheBestModelIsKeptAndLoaded) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 8;
  arguments.learning_rate = 0.5;  // the loss increases
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_steps = 2;
  arguments.save_total_limit = 1;
  arguments.load_best_model_at_end = true;
  arguments.metric_for_best_model = "perplexity";
  const auto outcome = run(arguments, {.eval_samples = 7});
  double best = INFINITY;
  std::size_t at = 0;
  for (std::size_t i = 0; i < outcome.main.evaluations.size(); ++i) {
    const double value = outcome.main.evaluations[i]["eval_perplexity"].get<double>();
    if (value < best) {
      best = value;
      at = i;
    }
  }
  const std::string path = checkpoint_path(output.path(), 2 * static_cast<std::int64_t>(at + 1));
  EXPECT_EQ(checkpoint_problem(path, true), std::nullopt);
  EXPECT_THAT(outcome.main.messages, HasSubstr("loaded the best model, " + path));
}

// There are more evaluations than checkpoints, and neither interval includes the last step.
TEST(TrainerEvaluation, TheBestModelIsSavedWheneverItIs) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 9;
  arguments.learning_rate = 0.5;  // the loss increases
  arguments.eval_strategy = arguments.save_strategy = Interval::steps;
  arguments.eval_steps = 2;
  arguments.save_steps = 4;
  arguments.load_best_model_at_end = true;
  const auto outcome = run(arguments, {.eval_samples = 7});
  ASSERT_EQ(outcome.main.evaluations.size(), 5U);
  for (std::size_t i = 1; i < 5; ++i)
    ASSERT_LT(outcome.main.evaluations[0]["eval_loss"], outcome.main.evaluations[i]["eval_loss"]);
  EXPECT_EQ(outcome.main.saves, (std::vector<std::int64_t>{2, 4, 8, 9}));
  std::vector<std::int64_t> steps;  // the steps at which TensorBoard shows an evaluation
  for (const auto& record : outcome.main.logs)
    if (record.contains("eval_loss")) steps.push_back(record.at("step"));
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2, 4, 6, 8, 9}));
  EXPECT_THAT(outcome.main.messages,
              HasSubstr("loaded the best model, " + checkpoint_path(output.path(), 2)));
}

// If the last step was evaluated, its record is logged again, including the times. If the weights
// changed since, or that step was not evaluated, the evaluation runs.
TEST(TrainerEvaluation, TheLastStepIsEvaluatedOnce) {
  const TemporaryDirectory output;
  nlohmann::ordered_json once, anew;
  RunOptions options{.ranks = 2, .eval_samples = 7};
  options.after = [&](Trainer& trainer, int rank) {
    const auto first = trainer.evaluate_once();
    const auto second = trainer.evaluate();
    if (rank == 0) std::tie(once, anew) = std::pair(first, second);
  };
  const auto trained = [&](const char* name, const auto& change) {
    auto arguments = toy_arguments(output / name);
    arguments.max_steps = 4;
    arguments.eval_strategy = Interval::steps;
    arguments.eval_steps = 2;
    change(arguments);
    return run(arguments, options).main;
  };
  const auto last = trained("last", [](TrainingArguments&) {});
  ASSERT_EQ(last.evaluations.size(), 4U);  // steps 2 and 4, step 4 again, and evaluate()
  EXPECT_EQ(once, last.evaluations[1]);
  EXPECT_EQ(last.evaluations[2], last.evaluations[1]);
  EXPECT_EQ(anew["eval_loss"], once["eval_loss"]);
  EXPECT_NE(anew["eval_runtime"], once["eval_runtime"]);
  int told = 0;
  for (const auto& record : last.logs) told += record.contains("eval_loss") ? 1 : 0;
  EXPECT_EQ(told, 4);

  const auto best = trained("best", [](TrainingArguments& a) {
    a.learning_rate = 0.5;  // the loss increases
    a.save_strategy = Interval::steps;
    a.save_steps = 2;
    a.load_best_model_at_end = true;
  });
  ASSERT_LT(best.evaluations[0]["eval_loss"], best.evaluations[1]["eval_loss"]);
  EXPECT_EQ(once["eval_loss"], best.evaluations[0]["eval_loss"]);

  const auto early = trained("early", [](TrainingArguments& a) { a.max_train_minutes = 1e-9; });
  ASSERT_EQ(early.evaluations.size(), 2U);
  EXPECT_EQ(once["eval_loss"], anew["eval_loss"]);
}

TEST(TrainerLog, WindowsMeansAndFilesAgree) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 15;
  const auto outcome = run(arguments);
  ASSERT_EQ(outcome.main.logs.size(), 4U);  // steps 7 and 14, the last step, the end
  double sum = 0;
  for (int i = 0; i < 7; ++i) sum += outcome.main.losses[static_cast<std::size_t>(i)];
  EXPECT_DOUBLE_EQ(outcome.main.logs[0]["loss"].get<double>(), sum / 7);
  EXPECT_EQ(outcome.main.logs[0]["step"], 7);
  EXPECT_NEAR(outcome.main.logs[1]["epoch"].get<double>(), 2 + 2.0 / 6, 1e-12);  // 6 batches
  EXPECT_TRUE(outcome.main.logs[3].contains("train_runtime"));
  std::ifstream file(output / "metrics.jsonl");
  std::string line;
  std::size_t lines = 0;
  while (std::getline(file, line)) {
    const auto record = nlohmann::json::parse(line);
    EXPECT_EQ(record["step"], outcome.main.logs[lines]["step"]);
    ++lines;
  }
  EXPECT_EQ(lines, 4U);
}

// The steps after the last full interval are logged too, however the run ends.
TEST(TrainerLog, EndsWithTheLastStep) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 17;  // logging_steps is 7
  const auto last_loss = [&](std::int64_t from, const test::Outcome& outcome) {
    double sum = 0;
    for (std::size_t i = static_cast<std::size_t>(from); i < outcome.main.losses.size(); ++i)
      sum += outcome.main.losses[i];
    return sum / static_cast<double>(outcome.main.losses.size() - static_cast<std::size_t>(from));
  };
  const auto whole = run(arguments, {});
  ASSERT_EQ(whole.main.logs.size(), 4U);
  EXPECT_EQ(whole.main.logs[2]["step"], 17);
  EXPECT_DOUBLE_EQ(whole.main.logs[2]["loss"].get<double>(), last_loss(14, whole));
  EXPECT_TRUE(whole.main.logs[3].contains("train_runtime"));
  // A callback ended this run.
  const auto stopped = run(arguments, {.stop_after = 9});
  ASSERT_EQ(stopped.main.logs.size(), 3U);
  EXPECT_EQ(stopped.main.logs[1]["step"], 9);
  EXPECT_DOUBLE_EQ(stopped.main.logs[1]["loss"].get<double>(), last_loss(7, stopped));
  arguments.logging_strategy = Interval::no;
  EXPECT_EQ(run(arguments, {}).main.logs.size(), 1U);
}

// Buckets of any size, and any number in flight, give the same bits. The log has the hidden share.
TEST(TrainerLog, LogsExposedCommunicationAndBucketsChangeNothing) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output / "large");
  arguments.max_steps = 14;
  const auto large = run(arguments, {.ranks = 2});
  arguments.output_dir = output / "small";
  arguments.ddp_bucket_cap_mb = 0.01;
  arguments.ddp_first_bucket_cap_mb = 1e-9;
  arguments.ddp_buckets_in_flight = 1;
  const auto small = run(arguments, {.ranks = 2});
  EXPECT_EQ(large.main.losses, small.main.losses);
  EXPECT_EQ(large.main.norms, small.main.norms);
  std::ifstream file(output / "small/metrics.jsonl");
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  const auto record = nlohmann::json::parse(line);
  EXPECT_GT(record.at("exposed_communication_seconds").get<double>(), 0);
  EXPECT_GE(record.at("hidden_communication_share").get<double>(), 0);
  EXPECT_LE(record.at("hidden_communication_share").get<double>(), 1);
  EXPECT_GT(record.at("processor_cores_rank1").get<double>(), 0);
  EXPECT_GT(record.at("resident_bytes_rank1").get<double>(), 1 << 20);
}

TEST(TrainerLog, LogsTheTimeAndTheMemoryOfAStep) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 14;
  arguments.max_grad_norm = 0;  // two ranks: updates overlap the next forward pass
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(ranks);
    run(arguments, {.ranks = ranks});
    std::ifstream file(output / "metrics.jsonl");
    std::string line;
    double steps_took = 0, elapsed = 0;
    for (int record_number = 0; record_number < 2; ++record_number) {
      ASSERT_TRUE(std::getline(file, line));
      const auto record = nlohmann::json::parse(line);
      double phases = 0;
      for (const char* phase : {"data", "forward", "backward", "optimizer"}) {
        phases += record.at(fmt::format("{}_seconds", phase)).get<double>();
        EXPECT_GT(record.at(fmt::format("{}_seconds", phase)).get<double>(), 0) << phase;
      }
      EXPECT_EQ(record.contains("communication_seconds"), ranks == 2);
      if (ranks == 2) phases += record.at("communication_seconds").get<double>();
      EXPECT_LE(phases, record.at("step_seconds").get<double>() * (1 + 1e-9));
      steps_took += 7 * record.at("step_seconds").get<double>();
      elapsed = record.at("elapsed").get<double>();
      EXPECT_FALSE(record.contains("pipeline_wait_seconds"));
      EXPECT_GT(record.at("memory_bytes").get<std::int64_t>(), 0);
      EXPECT_GT(record.at("memory_peak_bytes"), record.at("memory_bytes"));
      EXPECT_GT(record.at("memory_peak_by_tag").at("activations").get<std::int64_t>(), 0);
    }
    EXPECT_LE(steps_took, elapsed * (1 + 1e-9));
  }
}

TEST(StepClock, APhaseInsideAnotherInterruptsIt) {
  StepClock clock;
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); };
  {
    const PhaseSpan before_start(clock, StepPhase::data);
    pause();
  }
  EXPECT_EQ(clock.times().total(), 0);
  const auto began = Clock::now();
  clock.start();
  {
    const PhaseSpan outer(clock, StepPhase::forward);
    pause();
    {
      const PhaseSpan inner(clock, StepPhase::optimizer);
      pause();
    }
    pause();
  }
  clock.stop();
  const double whole = seconds_since(began);
  const StepTimes times = clock.times();
  EXPECT_GE(times.of(StepPhase::forward), 0.004);
  EXPECT_GE(times.of(StepPhase::optimizer), 0.002);
  EXPECT_LE(times.total(), whole);
  EXPECT_NEAR(clock.times().total(), times.total(), 1e-12);
}

TEST(TrainerLog, AWindowWithoutAFiniteLossIsNotZero) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.max_steps = 14;
  arguments.warmup_steps = 0;
  arguments.learning_rate = 1e30;
  const auto outcome = run(arguments);
  EXPECT_TRUE(std::isfinite(outcome.main.logs.at(0)["loss"].get<double>()));
  EXPECT_TRUE(std::isnan(outcome.main.logs.at(1)["loss"].get<double>()));
}

TEST(TrainerData, RefusesWhatCannotFillABatch) {
  const TemporaryDirectory output;
  auto arguments = toy_arguments(output.path());
  arguments.dataloader_drop_last = true;
  EXPECT_THAT(error_of(arguments, {.samples = 7}), HasSubstr("fewer than one batch of 8 x 1"));
  EXPECT_THAT(error_of(arguments, {.samples = 0}), HasSubstr("empty"));
  // Without drop_last a short batch counts as a batch.
  arguments.dataloader_drop_last = false;
  arguments.max_steps = 2;
  EXPECT_EQ(run(arguments, {.samples = 3}).main.losses.size(), 2U);
}

}  // namespace
}  // namespace shoal
