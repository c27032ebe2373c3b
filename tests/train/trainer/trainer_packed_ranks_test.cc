// PackedDataset with several data-parallel ranks. Rows have different numbers of targets, so a mean
// of the ranks' means would differ from the mean over all targets.
#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "support/temporary_directory.h"
#include "train/trainer/toy_training.h"
#include <gmock/gmock.h>

#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/data/packing.h"

namespace shoal {
namespace {

using test::expect_close;
using test::kToyVocabulary;
using test::Outcome;
using test::run;
using test::RunOptions;
using testing::TemporaryDirectory;

constexpr std::int64_t kBlock = 16, kGlobalBatch = 8;

// A token file with documents of 2 to 15 tokens, and the PackedDataset of it.
class PackedFile {
 public:
  explicit PackedFile(std::int64_t documents, PackingStrategy strategy = PackingStrategy::bfd) {
    TokenFileWriter writer(folder_ / "tokens", 2, std::string(64, 'a'));
    std::mt19937 random(17);
    for (std::int64_t i = 0; i < documents; ++i) {
      std::vector<TokenId> ids(2 + random() % 14);
      auto next = static_cast<TokenId>(random() % kToyVocabulary);
      for (TokenId& id : ids) id = next = (next * 5 + 3) % kToyVocabulary;  // learnable
      writer.append_document(ids);
      documents_.push_back({.input_ids = std::move(ids)});
    }
    writer.commit();
    blocks_ = std::make_shared<PackedDataset>(
        TokenFile::open(folder_ / "tokens"),
        PackingOptions{.strategy = strategy, .block_size = kBlock, .vocab_size = kToyVocabulary});
  }
  std::int64_t rows() const { return blocks_->size(); }
  std::int64_t documents() const { return std::ssize(documents_); }
  std::int64_t targets(std::int64_t row) const {
    const std::vector<std::int32_t> labels = blocks_->get(row).labels;
    return std::ranges::count_if(labels, [](std::int32_t label) { return label >= 0; });
  }
  // Unpacked: each row is one document.
  class Alone final : public Dataset {
   public:
    explicit Alone(const PackedFile& file) : file_(file) {}
    std::int64_t size() const override { return file_.documents(); }
    Sample get(std::int64_t index) const override {
      return file_.documents_.at(static_cast<std::size_t>(index));
    }

   private:
    const PackedFile& file_;
  };
  RunOptions options(int ranks, bool packed = true) const {
    RunOptions options{.ranks = ranks};
    options.config.num_attention_heads = 4;
    std::shared_ptr<const Dataset> dataset = blocks_;
    if (!packed) dataset = std::make_shared<Alone>(*this);
    options.prepare = [dataset](CausalLmTask&, TrainerParts& parts) {
      parts.train_dataset = dataset;
    };
    return options;
  }

 private:
  TemporaryDirectory folder_;
  std::vector<Sample> documents_;
  std::shared_ptr<const PackedDataset> blocks_;
};

TrainingArguments arguments_for(const std::string& output, std::int64_t batch,
                                std::int64_t accumulated) {
  TrainingArguments a = test::toy_arguments(output);
  a.overwrite_output_dir = true;
  a.max_steps = 16;
  a.per_device_train_batch_size = batch;
  a.gradient_accumulation_steps = accumulated;
  return a;
}

// The relative distance between the weights of two saved models, over all tensors together.
double apart(const std::string& have, const std::string& want) {
  const auto a = SafetensorsFile::open(have + "/model.safetensors"),
             b = SafetensorsFile::open(want + "/model.safetensors");
  double difference = 0, whole = 0;
  for (const SafetensorsEntry& entry : b->entries()) {
    const Tensor is = a->tensor(entry.name), was = b->tensor(entry.name);
    for (std::int64_t i = 0; i < was.count(); ++i) {
      const double value = was.const_data<float>()[i];
      difference += std::pow(is.const_data<float>()[i] - value, 2);
      whole += value * value;
    }
  }
  return std::sqrt(difference / whole);
}

// Cases with dropout, and with an epoch whose last update has fewer rows.
TEST(TrainerPackedRanks, TrainAsOneDoes) {
  const TemporaryDirectory output;
  for (const auto& [documents, strategy, rows, last] :
       std::initializer_list<std::tuple<std::int64_t, PackingStrategy, std::int64_t, std::int64_t>>{
           {62, PackingStrategy::bfd, 34, 2}, {83, PackingStrategy::wrapped, 44, 4}}) {
    const PackedFile file(documents, strategy);
    ASSERT_EQ(file.rows(), rows);
    ASSERT_EQ(rows % kGlobalBatch, last);
    std::vector<std::int64_t> targets(static_cast<std::size_t>(rows));
    for (std::int64_t row = 0; row < rows; ++row)
      targets[static_cast<std::size_t>(row)] = file.targets(row);
    const auto [fewest, most] = std::ranges::minmax(targets);
    ASSERT_LT(fewest, most) << "ranks would count alike";
    RunOptions options = file.options(1);
    options.save_model_to = output / "one/model";
    const Outcome one = run(arguments_for(output / "one", kGlobalBatch, 1), options);
    EXPECT_LT(one.main.losses.back(), one.main.losses.front());
    struct Layout {
      int ranks;
      std::int64_t batch, accumulated;
    };
    for (const Layout& layout : {Layout{2, 4, 1}, {2, 2, 2}, {2, 1, 4}, {4, 2, 1}, {1, 2, 4}}) {
      if (layout.ranks == 4 && last == 2) continue;  // they would fill up with earlier rows
      SCOPED_TRACE(fmt::format("{} rows on {} ranks x {} x {}", rows, layout.ranks, layout.batch,
                               layout.accumulated));
      options = file.options(layout.ranks);
      options.save_model_to = output / "ranks/model";
      const Outcome ranks =
          run(arguments_for(output / "ranks", layout.batch, layout.accumulated), options);
      expect_close(one.main.losses, ranks.main.losses, 2e-5);
      expect_close(one.main.norms, ranks.main.norms, 1e-3);
      EXPECT_LT(apart(output / "ranks/model", output / "one/model"), 1e-4);
    }
  }
}

// A step over all packed blocks, half on each rank, equals a step over all documents in padded rows
// of their own. Each target has the same weight in both.
TEST(TrainerPackedRanks, TargetsCountAsInPaddedRuns) {
  const TemporaryDirectory output;
  const PackedFile file(62);
  const auto trained = [&](int ranks, bool packed) {
    const std::int64_t rows = packed ? file.rows() : file.documents();
    TrainingArguments a = arguments_for(output / "run", rows / ranks, 1);
    a.max_steps = 3;
    RunOptions options = file.options(ranks, packed);
    options.config.embedding_dropout = options.config.attention_dropout =
        options.config.hidden_dropout = 0;
    const Outcome outcome = run(a, options);
    std::vector<double> numbers = outcome.main.losses;
    numbers.insert(numbers.end(), outcome.main.norms.begin(), outcome.main.norms.end());
    return numbers;
  };
  const std::vector<double> padded = trained(1, false);
  expect_close(padded, trained(2, false), 1e-5);
  expect_close(padded, trained(2, true), 1e-5);
}

// The run resumes in the middle of an epoch of 5 updates, whose last has 2 rows.
TEST(TrainerPackedRanks, ResumeIsBitIdentical) {
  const TemporaryDirectory output;
  const PackedFile file(62);
  ASSERT_EQ(file.rows(), 34);
  TrainingArguments a = arguments_for("", 2, 2);
  a.overwrite_output_dir = false;
  a.dataloader_num_workers = 2;
  const auto went = test::stop_and_go_on(a, file.options(2), output.path());
  EXPECT_EQ(went.rest.main.losses.size(), 8U);
  EXPECT_THAT(went.rest.main.messages, ::testing::Not(::testing::HasSubstr("warning: ")));
}

}  // namespace
}  // namespace shoal
