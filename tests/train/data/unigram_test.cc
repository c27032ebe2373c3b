#include "shoal/train/data/unigram.h"

#include <cmath>
#include <string>
#include <vector>

#include "temporary_folder.h"
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal {
namespace {

std::shared_ptr<const TokenFile> write(const std::string& path, const std::vector<TokenId>& ids) {
  TokenFileWriter writer(path, 2, std::string(64, '0'));
  writer.append_document(ids);
  writer.commit();
  return TokenFile::open(path);
}

TEST(UnigramLoss, IsTheCrossEntropyUnderSmoothedCounts) {
  const testing::TemporaryFolder folder;
  const auto train = write(folder / "train", {0, 0, 0, 1});
  const auto validation = write(folder / "validation", {0, 1, 2, 2});
  // Counts plus one: 4, 2, 1, 1 of 8.
  const double expected = -(std::log(4.0 / 8) + std::log(2.0 / 8) + 2 * std::log(1.0 / 8)) / 4;
  EXPECT_NEAR(unigram_loss(*train, *validation, 4), expected, 1e-12);
}

TEST(UnigramLoss, RefusesIdsBeyondTheVocabularyAndEmptyFiles) {
  const testing::TemporaryFolder folder;
  const auto some = write(folder / "some", {0, 5});
  const auto empty = write(folder / "empty", {});
  EXPECT_THROW(unigram_loss(*some, *some, 5), Error);
  EXPECT_THROW(unigram_loss(*some, *empty, 6), Error);
}

}  // namespace
}  // namespace shoal
