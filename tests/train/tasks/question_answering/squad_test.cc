// Features, predictions and scores against Hugging Face's tokenizers and the algorithms of run_qa
// and utils_qa (tools/golden/make_tasks.py).
#include <bit>
#include <cmath>

#include "support/budget.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/tasks/question_answering/answers.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Ids = std::vector<std::int32_t>;
using Feature = SquadDataset::Feature;

const json& golden() {
  static const json all = json::parse(read_text_file(testing::golden_path("tasks.json")));
  return all;
}

// The values of make_tasks.py's logit(): exact multiples of 2^-20.
float logit(std::uint32_t kind, std::uint32_t feature, std::uint32_t position) {
  std::uint32_t x = (feature * 1000003U + position * 7919U + kind * 104729U + 12345U) * 2654435761U;
  x ^= x >> 16;
  x *= 0x45D9F3BU;
  x ^= x >> 16;
  return static_cast<float>(static_cast<double>(x >> 8) / 0x1p20 - 8);
}

struct Logits {
  std::vector<std::vector<float>> start, end;
  std::vector<AnswerLogits> views;
};

// `padding` more positions than a feature has tokens. Their logits are far above all others,
// and must not be read.
Logits logits_of(const SquadDataset& data, std::int64_t padding) {
  Logits logits;
  for (std::int64_t f = 0; f < data.size(); ++f) {
    const Feature feature = data.feature(f);
    auto& start = logits.start.emplace_back();
    auto& end = logits.end.emplace_back();
    for (std::int64_t i = 0; i < feature.tokens; ++i) {
      start.push_back(logit(1, static_cast<std::uint32_t>(f), static_cast<std::uint32_t>(i)));
      end.push_back(logit(2, static_cast<std::uint32_t>(f), static_cast<std::uint32_t>(i)));
    }
    if (f % 3 != 0 && feature.start > 0) {
      start[static_cast<std::size_t>(feature.start)] = 9.5F;
      end[static_cast<std::size_t>(feature.end)] = 9.5F;
    }
    start.insert(start.end(), static_cast<std::size_t>(padding), 100.0F);
    end.insert(end.end(), static_cast<std::size_t>(padding), 100.0F);
  }
  for (std::size_t f = 0; f < logits.start.size(); ++f)
    logits.views.push_back({logits.start[f], logits.end[f]});
  return logits;
}

std::int32_t characters_before(const std::string& text, std::int64_t bytes) {
  return static_cast<std::int32_t>(
      std::count_if(text.begin(), text.begin() + bytes, [](char c) { return (c & 0xC0) != 0x80; }));
}

// For each context token of a feature, its first and last character.
Ids offsets_of(const SquadDataset& data, const Feature& feature) {
  const auto& question = data.file().questions[static_cast<std::size_t>(feature.question)];
  const std::string& context = data.file().contexts[static_cast<std::size_t>(question.context)];
  Ids offsets;
  for (std::int64_t i = 0; i < feature.tokens; ++i) {
    if (!data.is_context(feature, i)) continue;
    const TextSpan bytes = data.bytes(feature, i);
    offsets.push_back(characters_before(context, bytes.begin));
    offsets.push_back(characters_before(context, bytes.end));
  }
  return offsets;
}

class SquadTest : public ::testing::Test {
 protected:
  std::shared_ptr<const SquadFile> small() {
    write_file_atomically(folder_ / "small.json", golden().at("squad").at("file").dump());
    return std::make_shared<SquadFile>(
        read_squad(folder_ / "small.json", {.version_2_with_negative = true}));
  }
  static std::shared_ptr<const Tokenizer> tokenizer(const std::string& name) {
    const std::string path = testing::golden_path("tokenizer/" + name + ".json");
    if (name != "roberta") return load_tokenizer(path);
    json definition = json::parse(read_text_file(path));  // as make_tasks.py changes it
    definition["pre_tokenizer"]["add_prefix_space"] = false;
    definition["post_processor"]["add_prefix_space"] = false;
    return tokenizer_from_json(definition.dump(), path);
  }
  testing::TemporaryDirectory folder_;
};

TEST_F(SquadTest, FeaturesEqualHuggingFaces) {
  for (const json& run : golden().at("squad").at("runs")) {
    const SquadDataset data(small(), *tokenizer(run["tokenizer"]),
                            {.max_seq_length = run["max_length"], .doc_stride = run["stride"]});
    ASSERT_EQ(data.size(), static_cast<std::int64_t>(run["features"].size()));
    for (std::int64_t f = 0; f < data.size(); ++f) {
      const json& expected = run["features"][static_cast<std::size_t>(f)];
      SCOPED_TRACE(expected.dump());
      const Feature feature = data.feature(f);
      const Sample sample = data.get(f);
      EXPECT_EQ(feature.question, expected["question"]);
      EXPECT_EQ(sample.input_ids, expected["ids"].get<Ids>());
      EXPECT_EQ(feature.tokens, static_cast<std::int64_t>(sample.input_ids.size()));
      Ids types = sample.token_type_ids;
      types.resize(sample.input_ids.size(), 0);
      EXPECT_EQ(types, expected["types"].get<Ids>());
      EXPECT_EQ(offsets_of(data, feature), expected["offsets"].get<Ids>());
      EXPECT_EQ(feature.first_context, expected["first"]);
      EXPECT_EQ(sample.labels, Ids({expected["start"], expected["end"]}));
    }
  }
}

TEST_F(SquadTest, AnswersEqualUtilsQas) {
  for (const json& run : golden().at("squad").at("runs")) {
    const SquadDataset data(small(), *tokenizer(run["tokenizer"]),
                            {.max_seq_length = run["max_length"], .doc_stride = run["stride"]});
    const Logits logits = logits_of(data, 3);
    for (const bool negative : {false, true}) {
      const char* mode = negative ? "negative" : "plain";
      if (!run.contains(mode)) continue;
      const auto answers = predict_answers(
          data, logits.views,
          {.n_best_size = 5, .max_answer_length = 6, .version_2_with_negative = negative});
      const json& expected = run[mode]["answers"];
      ASSERT_EQ(answers.size(), expected.size());
      for (std::size_t i = 0; i < answers.size(); ++i) {
        SCOPED_TRACE(expected[i].dump());
        EXPECT_EQ(answers[i].text, expected[i][0].get<std::string>());
        EXPECT_EQ(answers[i].null_score_difference, expected[i][1]);
        const json& best = expected[i][2];
        ASSERT_EQ(answers[i].best.size(), best.size());
        for (std::size_t k = 0; k < best.size(); ++k) {
          EXPECT_EQ(answers[i].best[k].text, best[k][0].get<std::string>());
          EXPECT_EQ(answers[i].best[k].start_logit, best[k][1]);
          EXPECT_EQ(answers[i].best[k].end_logit, best[k][2]);
          EXPECT_NEAR(answers[i].best[k].probability, best[k][3], 1e-8);
        }
      }
      const auto metrics = squad_metrics(data.file(), answers, negative);
      EXPECT_NEAR(metrics.at(negative ? "exact" : "exact_match"), run[mode]["scores"][0], 1e-9);
      EXPECT_NEAR(metrics.at("f1"), run[mode]["scores"][1], 1e-9);
      EXPECT_EQ(metrics.count("NoAns_exact"), negative ? 1u : 0u);
    }
  }
}

// The order is that of numpy's argsort, read from its end.
TEST_F(SquadTest, EqualLogitsPreferTheLaterPosition) {
  const json& run = golden().at("squad").at("runs")[0];
  const SquadDataset data(small(), *tokenizer(run["tokenizer"]),
                          {.max_seq_length = run["max_length"], .doc_stride = run["stride"]});
  Logits logits;
  for (std::int64_t f = 0; f < data.size(); ++f) {
    const auto tokens = static_cast<std::size_t>(data.feature(f).tokens);
    logits.start.emplace_back(tokens, 0.0F);
    logits.end.emplace_back(tokens, 0.0F);
  }
  const Feature feature = data.feature(0);
  const auto first = static_cast<std::size_t>(feature.first_context);
  logits.start[0][first] = logits.start[0][first + 1] = logits.end[0][first + 1] = 5;
  for (std::size_t f = 0; f < logits.start.size(); ++f)
    logits.views.push_back({logits.start[f], logits.end[f]});
  const auto answers = predict_answers(data, logits.views, {.n_best_size = 1});
  const TextSpan second = data.bytes(feature, feature.first_context + 1);
  const auto context = static_cast<std::size_t>(data.file().questions[0].context);
  EXPECT_EQ(answers[0].text, data.file().contexts[context].substr(
                                 static_cast<std::size_t>(second.begin),
                                 static_cast<std::size_t>(second.end - second.begin)));
}

TEST_F(SquadTest, FilesHaveTheirFormOfUtilsQa) {
  const SquadFile file{.path = "x",
                       .contexts = {"c"},
                       .questions = {{.id = "b", .text = "q"}, {.id = "a", .text = "q"}}};
  const std::vector<PredictedAnswer> answers = {
      {.text = "\xC3\xA9", .best = {{"\xC3\xA9", 1.5F, -2, 0.75}}, .null_score_difference = -1},
      {.text = "", .best = {}}};
  EXPECT_EQ(predictions_json(file, answers), "{\n    \"b\": \"\\u00e9\",\n    \"a\": \"\"\n}\n");
  EXPECT_EQ(null_odds_json(file, answers), "{\n    \"b\": -1.0,\n    \"a\": 0.0\n}\n");
  EXPECT_EQ(nbest_json(file, answers),
            "{\n    \"b\": [\n        {\n            \"start_logit\": 1.5,\n"
            "            \"end_logit\": -2.0,\n            \"text\": \"\\u00e9\",\n"
            "            \"probability\": 0.75\n        }\n    ],\n    \"a\": []\n}\n");
  EXPECT_THROW(predictions_json(file, std::span(answers).first(1)), Error);
}

TEST_F(SquadTest, LongQuestionsAreCut) {
  const auto file = small();
  const SquadDataset whole(file, *tokenizer("word_piece"), {}),
      cut(file, *tokenizer("word_piece"), {.max_query_length = 2});
  for (std::int64_t f = 0; f < cut.size(); ++f) {
    const Ids ids = whole.get(f).input_ids, shorter = cut.get(f).input_ids;
    EXPECT_EQ(cut.feature(f).first_context,
              std::min<std::int64_t>(whole.feature(f).first_context, 4));
    EXPECT_EQ(Ids(shorter.begin(), shorter.begin() + 2), Ids(ids.begin(), ids.begin() + 2));
    if (cut.feature(f).start > 0) {
      EXPECT_EQ(whole.feature(f).start - cut.feature(f).start,
                whole.feature(f).first_context - cut.feature(f).first_context);
    }
  }
}

TEST_F(SquadTest, RefusesInvalidOptions) {
  const auto error_of = [&](const SquadFeatureOptions& options) -> std::string {
    try {
      SquadDataset(small(), *tokenizer("word_piece"), options);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(
      error_of({.max_seq_length = 30, .doc_stride = 25}),
      HasSubstr("question q0: beside its 5 tokens, max_seq_length 30 leaves 22 to the context, no "
                "more than doc_stride 25; lower doc_stride"));
  EXPECT_THAT(error_of({.max_seq_length = 5, .doc_stride = 0}),
              HasSubstr("leaves 0 to the context"));
  EXPECT_THAT(error_of({.max_query_length = 0}), HasSubstr("max_query_length is 0"));
  EXPECT_THROW(SquadDataset(small(), *tokenizer("plain"), {.max_seq_length = 30, .doc_stride = 29}),
               Error);
  const SquadDataset data(small(), *tokenizer("word_piece"), {});
  Logits logits = logits_of(data, 0);
  EXPECT_THROW(predict_answers(data, std::span(logits.views).first(2)), Error);
  logits.views[1].end = logits.views[1].end.first(logits.views[1].end.size() - 1);
  EXPECT_THROW(predict_answers(data, logits.views), Error);
  logits = logits_of(data, 0);
  logits.start[1][2] = std::nanf("");
  EXPECT_THROW(predict_answers(data, logits.views), Error);
  EXPECT_THROW(data.feature(data.size()), Error);
}

// Commit 39c9efe0 held every window of every question: 300 MB here.
TEST_F(SquadTest, HoldsNoWindowsOfAManyTimesReadContext) {
  std::string questions, words;
  for (int i = 0; i < 400; ++i)
    questions += fmt::format(R"({{"id": "{}", "question": "the the the the the"}},)", i);
  questions.pop_back();
  for (int i = 0; i < 20'000; ++i) words += "the ";
  const std::string text = R"({"data": [{"paragraphs": [{"context": ")" + words + R"(", "qas": [)" +
                           questions + "]}]}]}";
  write_file_atomically(folder_ / "a.json", text);
  const auto file =
      std::make_shared<const SquadFile>(read_squad(folder_ / "a.json", {.needs_answers = false}));
  const auto words_of = tokenizer("word_piece");
  EXPECT_EQ(testing::within_budget(text.size(), "windows",
                                   [&] {
                                     const SquadDataset data(
                                         file, *words_of, {.max_seq_length = 24, .doc_stride = 15});
                                     ASSERT_EQ(data.size(), 400 * 19'985);
                                     const Feature last = data.feature(data.size() - 1);
                                     EXPECT_EQ(last.question, 399);
                                     EXPECT_EQ(last.context, (TextSpan{19'984, 20'000}));
                                     EXPECT_EQ(data.get(data.size() - 1).input_ids.size(), 24U);
                                   }),
            "");
}

std::string digest(const Ids& numbers) {
  return to_hex(sha256({reinterpret_cast<const char*>(numbers.data()), 4 * numbers.size()}))
      .substr(0, 16);
}

// Compares every feature and prediction of 473 questions.
TEST(SquadSample, EqualsHuggingFaces) {
  SHOAL_SHARED_DATA_OR_SKIP(vocab, "bert-base-uncased-vocab.txt");
  SHOAL_SHARED_DATA_OR_SKIP(path, "squad-v1.1-sample.json");
  static_assert(std::endian::native == std::endian::little);
  const auto file = std::make_shared<const SquadFile>(read_squad(path));
  const auto tokenizer = load_tokenizer(vocab);
  for (const json& run : golden().at("sample")) {
    const SquadDataset data(file, *tokenizer,
                            {.max_seq_length = run["max_length"], .doc_stride = run["stride"]});
    EXPECT_EQ(file->questions.size(), run["questions"]);
    EXPECT_EQ(data.size(), run["features"]);
    Ids ids, types, offsets, positions;
    const auto append = [](Ids& to, const Ids& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (std::int64_t f = 0; f < data.size(); ++f) {
      const Sample sample = data.get(f);
      append(ids, sample.input_ids);
      append(types, sample.token_type_ids);
      append(offsets, offsets_of(data, data.feature(f)));
      append(positions, {static_cast<std::int32_t>(data.feature(f).first_context), sample.labels[0],
                         sample.labels[1]});
    }
    EXPECT_EQ(digest(ids), run["ids"].get<std::string>());
    EXPECT_EQ(digest(types), run["types"].get<std::string>());
    EXPECT_EQ(digest(offsets), run["offsets"].get<std::string>());
    EXPECT_EQ(digest(positions), run["positions"].get<std::string>());
    const Logits logits = logits_of(data, 0);
    const auto answers = predict_answers(data, logits.views);
    std::string texts;
    for (const PredictedAnswer& answer : answers)
      for (const AnswerCandidate& candidate : answer.best)
        texts += (texts.empty() ? "" : "\n") + candidate.text;
    EXPECT_EQ(to_hex(sha256(texts)).substr(0, 16), run["texts"].get<std::string>());
    const auto metrics = squad_metrics(*file, answers);
    EXPECT_NEAR(metrics.at("exact_match"), run["scores"][0], 1e-9);
    EXPECT_NEAR(metrics.at("f1"), run["scores"][1], 1e-9);
  }
}

}  // namespace
}  // namespace shoal
