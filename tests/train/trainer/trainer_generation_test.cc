// Texts that evaluation generates: every search gives in every layout the texts of one rank.
#include <map>
#include <memory>
#include <mutex>
#include <ostream>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "support/temporary_directory.h"
#include "train/trainer/mesh_layout.h"
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include "shoal/train/tasks/encoder_decoder.h"

namespace shoal {
namespace {

using test::error_of;
using test::kOptimizerSharded;
using test::kParametersSharded;
using test::kShared;
using test::kSpeed;
using test::Layout;
using test::run_on;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;
using Texts = std::vector<std::vector<std::int32_t>>;

constexpr std::int64_t kSamples = 11, kPositions = 20;

std::unique_ptr<EncoderDecoderTask> make_toy_task(const char* family) {
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of(family);
  config.vocab_size = test::kToyVocabulary;
  config.d_model = 24;
  config.head_dim = 0;
  config.encoder_layers = 2;
  config.encoder_heads = 4;
  config.encoder_inner = 40;
  config.max_position_embeddings = kPositions;
  config.initializer = config.initializer < 1 ? 0.3 : 2;
  return std::make_unique<EncoderDecoderTask>(config);
}

// Sources of 3 to 10 ids, and targets of 4.
class Pairs final : public Dataset {
 public:
  std::int64_t size() const override { return kSamples; }
  Sample get(std::int64_t index) const override {
    Sample sample;
    std::uint32_t x = static_cast<std::uint32_t>(index) * 2654435761U + 17U;
    for (std::uint32_t left = 3 + (x >> 8U) % 8; left > 0; --left) {
      x = x * 1664525U + 1013904223U;
      sample.input_ids.push_back(3 + static_cast<std::int32_t>((x >> 16U) % 58U));
    }
    sample.labels = {sample.input_ids[0], sample.input_ids[1], sample.input_ids[2], 1};
    return sample;
  }
};

struct Search {
  const char* name;
  nn::GenerationOptions options;
  std::map<std::string, std::int64_t> ids{};  // of the model's generation_config.json
};

std::vector<Search> searches() {
  const std::vector<std::int32_t> stops = {4, 10, 16, 22, 28, 34, 40, 46, 52, 58};
  return {
      {"greedy", {.max_new_tokens = 10, .stop_tokens = stops}},
      {"sampling",
       {.max_new_tokens = 10,
        .do_sample = true,
        .temperature = 1.5,
        .top_k = 30,
        .top_p = 0.95,
        .stop_tokens = stops,
        .min_p = 0.01,
        .repetition_penalty = 1.5,
        .no_repeat_ngram_size = 2}},
      {"beams",
       {.max_new_tokens = 10,
        .stop_tokens = stops,
        .num_beams = 4,
        .length_penalty = 0.5,
        .early_stopping = nn::EarlyStopping::never,
        .no_repeat_ngram_size = 2,
        .min_length = 4}},
      {"beams between forced ids",
       {.max_new_tokens = 9, .stop_tokens = stops, .num_beams = 3},
       {{"forced_bos_token_id", 7}, {"forced_eos_token_id", 9}, {"decoder_start_token_id", 5}}}};
}

test::RunOptions options_for(const char* family, const Search& search) {
  test::RunOptions options;
  options.prepare = [family, search](CausalLmTask&, TrainerParts& parts) {
    parts.task = nullptr;
    parts.model_init = [=] {
      auto task = make_toy_task(family);
      for (const auto& [name, id] : search.ids) task->model().set_generation_id(name, id);
      return task;
    };
    parts.generation = search.options;
    parts.collator = std::make_shared<PaddingCollator>(0, 2, LabelsOf::sequence, 4);
    parts.train_dataset = parts.eval_dataset = std::make_shared<Pairs>();
  };
  return options;
}

TrainingArguments arguments_for(const TemporaryDirectory& output, std::int64_t eval_batch = 3) {
  TrainingArguments arguments = test::arguments_for(output.path(), 1);
  arguments.learning_rate = 0;  // keeps the initial weights
  arguments.per_device_eval_batch_size = eval_batch;
  return arguments;
}

// The texts of all samples, in order. All ranks have the same.
Texts texts_of(const Layout& layout, const char* family, const Search& search,
               std::int64_t eval_batch = 3) {
  const TemporaryDirectory output;
  std::mutex mutex;
  std::set<Texts> of_ranks;
  test::RunOptions options = options_for(family, search);
  options.after = [&](Trainer& trainer, int) {
    const Predictions predictions = trainer.predict(std::make_shared<Pairs>()).predictions;
    Texts texts;
    for (std::int64_t i = 0; i < std::ssize(predictions.samples); ++i) {
      const SamplePrediction& one = predictions.samples[static_cast<std::size_t>(i)];
      EXPECT_EQ(one.labels, Pairs().get(i).labels) << "sample " << i;
      texts.push_back(one.tokens);
    }
    const std::lock_guard lock(mutex);
    of_ranks.insert(texts);
  };
  run_on(layout, arguments_for(output, eval_batch), options);
  EXPECT_EQ(of_ranks.size(), 1U) << "ranks have different texts";
  return *of_ranks.begin();
}

struct Case {
  const char* name;
  Layout layout;
  friend void PrintTo(const Case& test, std::ostream* out) { *out << test.layout.text(); }
};
const std::vector<Case> kLayouts = {
    {"replicas", {.rdp = 2, .on_mesh = false}},
    {"tensor_rows", {.tp = 2}},
    {"tensor_positions", {.tp = 2, .more = kShared}},
    {"tensor_speed", {.tp = 2, .more = kSpeed}},
    {"stages", {.pp = 2, .microbatches = 2}},
    {"stages_replicas", {.rdp = 2, .pp = 2, .microbatches = 2, .accumulated = 2}},
    {"tensor_stages", {.pp = 2, .tp = 2, .microbatches = 2}},
    {"sharded_optimizer", {.rdp = 2, .more = kOptimizerSharded}},
    {"sharded_parameters", {.rdp = 2, .more = kParametersSharded}}};

class TrainerGeneration : public ::testing::TestWithParam<Case> {};

TEST_P(TrainerGeneration, GivesTheTextsOfOneRankWithEverySearch) {
  for (const char* family : {"t5", "bart"})
    for (const Search& search : searches()) {
      SCOPED_TRACE(fmt::format("{}, {}", family, search.name));
      EXPECT_EQ(texts_of(GetParam().layout, family, search),
                texts_of({.on_mesh = false}, family, search));
    }
}

INSTANTIATE_TEST_SUITE_P(Layouts, TrainerGeneration, ::testing::ValuesIn(kLayouts),
                         [](const auto& one) { return std::string(one.param.name); });

// Otherwise the test above would compare little.
TEST(TrainerGenerations, SearchesAndTextsDiffer) {
  for (const char* family : {"t5", "bart"}) {
    std::set<Texts> all;
    std::set<std::size_t> lengths;
    for (const Search& search : searches()) {
      SCOPED_TRACE(fmt::format("{}, {}", family, search.name));
      const Texts texts = texts_of({.on_mesh = false}, family, search);
      all.insert(texts);
      EXPECT_GT(std::set(texts.begin(), texts.end()).size(), 4U);
      for (const auto& text : texts) {
        lengths.insert(text.size());
        if (search.ids.empty()) continue;
        EXPECT_EQ(text.front(), 7);
        EXPECT_TRUE(text.size() < 9 || text.back() == 9);
      }
    }
    EXPECT_EQ(all.size(), searches().size());
    EXPECT_GT(lengths.size(), 4U);
  }
}

TEST(TrainerGenerations, SamplesDoNotDependOnTheBatches) {
  const Search sampling = searches()[1];
  const Texts texts = texts_of({.on_mesh = false}, "t5", sampling, 3);
  EXPECT_EQ(texts_of({.on_mesh = false}, "t5", sampling, 5), texts);
  EXPECT_EQ(texts_of({.pp = 2}, "t5", sampling, 5), texts);
}

// The start and 19 new tokens fill BART's 20 positions, which are no multiple of 8.
TEST(TrainerGenerations, TextsMayFillAllPositions) {
  const Search search{"long", {.max_new_tokens = kPositions}};
  const Texts texts = texts_of({.on_mesh = false}, "bart", search);
  EXPECT_EQ(texts.front().size(), static_cast<std::size_t>(kPositions));
  EXPECT_EQ(texts_of({.tp = 2, .more = kShared}, "bart", search), texts);
  EXPECT_EQ(texts_of({.pp = 2}, "bart", search), texts);
}

// No text is generated for the file alone, with or without metrics of the texts.
TEST(TrainerGenerations, TheFirstTextsOfEachEvaluationAreWritten) {
  const Search greedy = searches()[0];
  const Texts texts = texts_of({.on_mesh = false}, "t5", greedy);
  for (const bool metrics : {false, true})
    for (const Case& one : kLayouts) {
      SCOPED_TRACE(fmt::format("{}, metrics {}", one.name, metrics));
      const TemporaryDirectory output;
      TrainingArguments arguments = arguments_for(output);
      arguments.eval_strategy = Interval::steps;
      arguments.eval_steps = 1;
      test::RunOptions options = options_for("t5", greedy);
      options.prepare = [&, prepare = options.prepare](CausalLmTask& task, TrainerParts& parts) {
        prepare(task, parts);
        parts.samples.first_of_set = 3;
        parts.samples.text_of = [](std::span<const std::int32_t>,
                                   std::span<const std::int32_t> ids) {
          return fmt::format("{}", fmt::join(ids, " "));
        };
        if (metrics)
          parts.compute_metrics = [](const Predictions&) {
            return nlohmann::ordered_json::object();
          };
      };
      run_on(one.layout, arguments, options);
      std::istringstream lines(test::bytes_of(output / "samples.jsonl"));
      std::size_t index = 0;
      for (std::string line; std::getline(lines, line); ++index) {
        const Sample sample = Pairs().get(static_cast<std::int64_t>(index));
        EXPECT_EQ(line,
                  fmt::format(R"({{"step":1,"index":{},"source":"{}","reference":"{}",)"
                              R"("text":"{}"}})",
                              index, fmt::join(sample.input_ids, " "),
                              fmt::join(sample.labels, " "), fmt::join(texts.at(index), " ")));
      }
      EXPECT_EQ(index, 3U);
    }
}

TEST(TrainerGenerations, RefuseSeveralTextsOfASampleAndEmptyTexts) {
  const TemporaryDirectory output;
  for (const nn::GenerationOptions& options :
       {nn::GenerationOptions{.do_sample = true, .num_return_sequences = 2},
        nn::GenerationOptions{.max_new_tokens = 0}})
    for (const Layout& layout : {Layout{.on_mesh = false}, Layout{.pp = 2}}) {
      test::RunOptions run = options_for("t5", {"refused", options});
      run.after = [](Trainer& trainer, int) { trainer.predict(std::make_shared<Pairs>()); };
      run.ranks = layout.ranks();
      TrainingArguments arguments = arguments_for(output);
      layout.apply(arguments);
      EXPECT_THAT(error_of(arguments, run), HasSubstr("evaluation generates one text"));
    }
}

}  // namespace
}  // namespace shoal
