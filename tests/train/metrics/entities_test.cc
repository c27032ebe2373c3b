// Entities and their scores, computed by hand from conlleval's rules. The first case is seqeval's
// own.
#include "shoal/train/metrics/entities.h"

#include <cmath>
#include <sstream>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

std::vector<std::string> tags(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> result;
  for (std::string tag; stream >> tag;) result.push_back(tag);
  return result;
}

using Sentences = std::vector<std::vector<std::string>>;

TEST(Entities, BeginAndEndWhereConllevalSays) {
  struct Case {
    const char* tags;
    std::vector<Entity> entities;
  };
  const Case cases[] = {
      {"B-PER I-PER O B-LOC", {{"PER", 0, 1}, {"LOC", 3, 3}}},
      {"I-PER I-PER O I-LOC I-PER", {{"PER", 0, 1}, {"LOC", 3, 3}, {"PER", 4, 4}}},  // IOB1
      {"B-PER B-PER I-PER", {{"PER", 0, 0}, {"PER", 1, 2}}},
      {"B-PER I-LOC I-LOC", {{"PER", 0, 0}, {"LOC", 1, 2}}},
      {"S-PER B-LOC I-LOC E-LOC S-PER", {{"PER", 0, 0}, {"LOC", 1, 3}, {"PER", 4, 4}}},
      {"E-PER E-PER I-PER", {{"PER", 0, 0}, {"PER", 1, 1}, {"PER", 2, 2}}},
      {"O O", {}},
      {"", {}},
      {"B I O B", {{"_", 0, 1}, {"_", 3, 3}}},
      {"B-a-b I-a-b", {{"a-b", 0, 1}}},
  };
  for (const Case& row : cases) EXPECT_EQ(entities_of(tags(row.tags)), row.entities) << row.tags;
}

TEST(Entities, ScoreAsSeqevalsExample) {
  const Sentences labels = {tags("O O O B-MISC I-MISC I-MISC O"), tags("B-PER I-PER O")};
  const Sentences predictions = {tags("O O B-MISC I-MISC I-MISC I-MISC O"), tags("B-PER I-PER O")};
  const EntityScores scores = entity_scores(predictions, labels);
  EXPECT_DOUBLE_EQ(scores.overall.precision, 0.5);
  EXPECT_DOUBLE_EQ(scores.overall.recall, 0.5);
  EXPECT_DOUBLE_EQ(scores.overall.f1, 0.5);
  EXPECT_EQ(scores.overall.number, 2);
  EXPECT_DOUBLE_EQ(scores.accuracy, 0.8);
  EXPECT_EQ(scores.types.at("MISC").f1, 0);
  EXPECT_EQ(scores.types.at("PER").f1, 1);
  EXPECT_EQ(scores.types.at("PER").number, 1);
}

TEST(Entities, CountEachOnceAndBySentence) {
  const Sentences labels = {tags("B-A I-A B-A"), tags("I-A O B-B")};
  const Sentences predictions = {tags("B-A I-A I-A"), tags("B-A O B-C")};
  const EntityScores scores = entity_scores(predictions, labels);
  // The predictions are A 0-2 (wrong), A 0-0 (right: an entity ends with its sentence), and C.
  EXPECT_DOUBLE_EQ(scores.overall.precision, 1.0 / 3);
  EXPECT_DOUBLE_EQ(scores.overall.recall, 1.0 / 4);
  EXPECT_DOUBLE_EQ(scores.overall.f1, 2.0 / 7);
  EXPECT_EQ(scores.types.at("C").number, 0);
  EXPECT_EQ(scores.types.at("B").recall, 0);
  EXPECT_DOUBLE_EQ(scores.types.at("A").precision, 0.5);
}

TEST(Entities, AreEmptyWithoutTags) {
  EXPECT_EQ(entity_scores({}, {}).overall.f1, 0);
  EXPECT_TRUE(std::isnan(entity_scores({}, {}).accuracy));
  EXPECT_THROW(entity_scores(Sentences{{"O"}}, {}), Error);
  EXPECT_THROW(entity_scores(Sentences{{"O"}}, Sentences{{"O", "O"}}), Error);
}

}  // namespace
}  // namespace shoal
