// Against rouge-score, sacrebleu and NLTK (tools/golden/make_text_metrics.py).
#include "support/golden.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/metrics/bleu.h"
#include "shoal/train/metrics/porter_stemmer.h"
#include "shoal/train/metrics/rouge.h"

namespace shoal {
namespace {

using nlohmann::json;
using Texts = std::vector<std::string>;

constexpr double kTolerance = 1e-12;

const json& golden() {
  static const json all = json::parse(read_text_file(testing::golden_path("text_metrics.json")));
  return all;
}

Texts texts(const char* name) {
  Texts all;
  for (const json& row : golden()["rows"]) all.push_back(row[name]);
  return all;
}

TEST(TextMetrics, StemsEqualNltks) {
  for (const json& pair : golden()["stems"])
    EXPECT_EQ(porter_stem(pair[0].get<std::string>()), pair[1].get<std::string>()) << pair;
}

TEST(TextMetrics, RougeOfATextEqualsRougeScores) {
  for (const json& row : golden()["rows"])
    for (const bool stemmed : {false, true}) {
      const RougeScores scores =
          rouge_of(row["prediction"].get<std::string>(), row["reference"].get<std::string>(),
                   {.use_stemmer = stemmed});
      const json& wanted = row[stemmed ? "stemmed" : "plain"];
      EXPECT_NEAR(scores.rouge1, wanted[0], kTolerance) << row;
      EXPECT_NEAR(scores.rouge2, wanted[1], kTolerance) << row;
      EXPECT_NEAR(scores.rouge_l, wanted[2], kTolerance) << row;
      EXPECT_NEAR(scores.rouge_lsum, wanted[3], kTolerance) << row;
    }
}

TEST(TextMetrics, RougeOfACorpusIsTheMean) {
  double sum = 0;
  for (const json& row : golden()["rows"]) sum += row["stemmed"][2].get<double>();
  const RougeScores scores = rouge(texts("prediction"), texts("reference"), {.use_stemmer = true});
  EXPECT_NEAR(scores.rouge_l, sum / static_cast<double>(golden()["rows"].size()), kTolerance);
  EXPECT_EQ(rouge({}, {}).rouge1, 0);
}

TEST(TextMetrics, WordsEqualThoseOfTokenizer13a) {
  for (const json& row : golden()["rows"])
    EXPECT_EQ(tokenized_13a(row["prediction"].get<std::string>()), row["tokens"].get<std::string>())
        << row;
}

TEST(TextMetrics, BleuAndChrfOfATextEqualSacrebleus) {
  for (const json& row : golden()["rows"]) {
    const Texts said{row["prediction"].get<std::string>()},
        wanted{row["reference"].get<std::string>()};
    EXPECT_NEAR(bleu(said, wanted).score, row["bleu"], 1e-10) << row;
    EXPECT_NEAR(chrf(said, wanted), row["chrf"], 1e-10) << row;
  }
}

TEST(TextMetrics, BleuAndChrfOfACorpusEqualSacrebleus) {
  const json& wanted = golden()["corpus"];
  const Bleu scores = bleu(texts("prediction"), texts("reference"));
  EXPECT_NEAR(scores.score, wanted["bleu"], 1e-10);
  for (std::size_t n = 0; n < 4; ++n)
    EXPECT_NEAR(scores.precisions[n], wanted["precisions"][n], 1e-10);
  EXPECT_NEAR(scores.brevity_penalty, wanted["brevity_penalty"], kTolerance);
  EXPECT_EQ(scores.length, wanted["length"]);
  EXPECT_EQ(scores.reference_length, wanted["reference_length"]);
  EXPECT_NEAR(chrf(texts("prediction"), texts("reference")), wanted["chrf"], 1e-10);
}

TEST(TextMetrics, RefuseUnequalNumbersOfTexts) {
  const Texts one{"a"}, none;
  EXPECT_THROW(rouge(one, none), Error);
  EXPECT_THROW(bleu(one, none), Error);
  EXPECT_THROW(chrf(one, none), Error);
}

}  // namespace
}  // namespace shoal
