#include "shoal/train/data/packing.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <random>
#include <utility>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"
#include "shoal/train/data/batch.h"

namespace shoal {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Numbers = std::vector<std::int64_t>;

std::int64_t bins_in(const Numbers& bin_of) {
  return bin_of.empty() ? 0 : *std::max_element(bin_of.begin(), bin_of.end()) + 1;
}

// Each item has one bin. No bin is overfull or empty, and bins are numbered in order of appearance.
void expect_packed(const Numbers& lengths, std::int64_t capacity, const Numbers& bin_of) {
  ASSERT_EQ(bin_of.size(), lengths.size());
  Numbers filled(static_cast<std::size_t>(bins_in(bin_of)));
  std::int64_t next = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] == 0) {
      EXPECT_EQ(bin_of[i], -1);
      continue;
    }
    ASSERT_GE(bin_of[i], 0);
    EXPECT_LE(bin_of[i], next);
    next = std::max(next, bin_of[i] + 1);
    filled[static_cast<std::size_t>(bin_of[i])] += lengths[i];
  }
  for (const std::int64_t sum : filled) {
    EXPECT_GT(sum, 0);
    EXPECT_LE(sum, capacity);
  }
}

// The fewest bins possible, by exhaustive search.
std::int64_t fewest_bins(const Numbers& lengths, std::int64_t capacity) {
  std::int64_t best = std::ssize(lengths);
  Numbers room;
  const auto place = [&](const auto& self, std::size_t item) -> void {
    if (std::ssize(room) >= best) return;
    if (item == lengths.size()) {
      best = std::ssize(room);
      return;
    }
    for (std::size_t bin = 0; bin < room.size(); ++bin) {
      if (room[bin] < lengths[item]) continue;
      room[bin] -= lengths[item];
      self(self, item + 1);
      room[bin] += lengths[item];
    }
    room.push_back(capacity - lengths[item]);
    self(self, item + 1);
    room.pop_back();
  };
  place(place, 0);
  return lengths.empty() ? 0 : best;
}

// Best fit decreasing in its simplest form: a list of bins, searched for each item.
std::int64_t plain_bins(Numbers lengths, std::int64_t capacity) {
  std::sort(lengths.rbegin(), lengths.rend());
  Numbers room;
  for (const std::int64_t length : lengths) {
    if (length == 0) continue;
    auto best = room.end();
    for (auto bin = room.begin(); bin != room.end(); ++bin)
      if (*bin >= length && (best == room.end() || *bin < *best)) best = bin;
    if (best == room.end())
      room.push_back(capacity - length);
    else
      *best -= length;
  }
  return std::ssize(room);
}

TEST(BestFitDecreasing, EdgeCases) {
  EXPECT_THAT(best_fit_decreasing({}, 4), IsEmpty());
  EXPECT_THAT(best_fit_decreasing(Numbers{0}, 4), ElementsAre(-1));
  EXPECT_THAT(best_fit_decreasing(Numbers{1}, 1), ElementsAre(0));
  EXPECT_THAT(best_fit_decreasing(Numbers{4}, 4), ElementsAre(0));
  EXPECT_THAT(best_fit_decreasing(Numbers{4, 0, 4}, 4), ElementsAre(0, -1, 1));
  // Best fit: 4 joins 6, which it fills, rather than 5. 3 joins 7 for the same reason.
  EXPECT_THAT(best_fit_decreasing(Numbers{3, 4, 5, 6, 7}, 10), ElementsAre(0, 1, 2, 1, 0));
  EXPECT_THROW(best_fit_decreasing(Numbers{3, 5}, 4), Error);
  EXPECT_THROW(best_fit_decreasing(Numbers{-1}, 4), Error);
  EXPECT_THROW(best_fit_decreasing({}, 0), Error);
}

TEST(BestFitDecreasing, IsNearTheFewestBins) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const std::int64_t capacity = 1 + static_cast<std::int64_t>(random() % 20);
    Numbers lengths(random() % 9);
    for (std::int64_t& length : lengths)
      length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(capacity + 1));
    const Numbers bin_of = best_fit_decreasing(lengths, capacity);
    expect_packed(lengths, capacity, bin_of);
    std::erase(lengths, 0);
    const std::int64_t fewest = fewest_bins(lengths, capacity);
    EXPECT_GE(bins_in(bin_of), fewest);
    EXPECT_LE(9 * bins_in(bin_of), 11 * fewest + 6);  // 11/9 of the fewest + 6/9 (Dosa, 2007)
  }
}

// Capacities beyond 64 need more than one word of the index.
TEST(BestFitDecreasing, GivesWhatALookAtEveryBinGives) {
  std::mt19937 random(11);
  for (const std::int64_t capacity : {63, 64, 65, 127, 128, 1000, 5000}) {
    Numbers lengths(400);
    for (std::int64_t& length : lengths)
      length = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(capacity + 1));
    const Numbers bin_of = best_fit_decreasing(lengths, capacity);
    expect_packed(lengths, capacity, bin_of);
    EXPECT_EQ(bins_in(bin_of), plain_bins(lengths, capacity)) << capacity;
  }
}

class Packing : public ::testing::Test {
 protected:
  // Documents with these numbers of tokens; ids count from 1.
  std::shared_ptr<const TokenFile> file(const std::vector<std::int64_t>& documents) {
    const std::string path = folder_ / std::to_string(files_++);
    TokenFileWriter writer(path, 2, std::string(64, 'a'));
    TokenId next = 1;
    for (const std::int64_t length : documents) {
      std::vector<TokenId> ids(static_cast<std::size_t>(length));
      std::iota(ids.begin(), ids.end(), next);
      next += static_cast<TokenId>(length);
      writer.append_document(ids);
    }
    writer.commit();
    return TokenFile::open(path);
  }
  PackedDataset packed(const std::vector<std::int64_t>& documents, PackingStrategy strategy,
                       std::int64_t block) {
    return {file(documents), {.strategy = strategy, .block_size = block, .pad_id = 9}};
  }

  testing::TemporaryDirectory folder_;
  int files_ = 0;
};

TEST_F(Packing, WholeDocumentsBestFitDecreasing) {
  // 1..3, 4..8, -, 9, 10..14, 15..21 (its last token is cut off), 22..23
  const PackedDataset dataset = packed({3, 5, 0, 1, 5, 7, 2}, PackingStrategy::bfd, 6);
  ASSERT_EQ(dataset.size(), 4);
  const Sample both = dataset.get(0);
  EXPECT_THAT(both.input_ids, ElementsAre(1, 2, 3, 22, 23, 9));
  EXPECT_THAT(both.labels, ElementsAre(-100, 2, 3, -100, 23, -100));
  EXPECT_THAT(both.sequences, ElementsAre(0, 3, 5));
  const Sample one = dataset.get(1);
  EXPECT_THAT(one.input_ids, ElementsAre(4, 5, 6, 7, 8, 9));
  EXPECT_THAT(one.sequences, ElementsAre(0, 5, 6));
  EXPECT_THAT(dataset.get(2).input_ids, ElementsAre(10, 11, 12, 13, 14, 9));
  const Sample full = dataset.get(3);
  EXPECT_THAT(full.input_ids, ElementsAre(15, 16, 17, 18, 19, 20));
  EXPECT_THAT(full.labels, ElementsAre(-100, 16, 17, 18, 19, 20));
  EXPECT_THAT(full.sequences, ElementsAre(0, 6, 6));
  const PackingReport& report = dataset.report();
  EXPECT_EQ(report.documents, 7);
  EXPECT_EQ(report.padding, 3);
  EXPECT_EQ(report.cut, 1);
  EXPECT_EQ(report.dropped, 2);
  EXPECT_EQ(report.left_out, 1);
  EXPECT_EQ(dataset.describe(),
            "packing bfd: 7 documents in 4 blocks of 6, at most 3 sequences in one; 12.5 % is "
            "padding; 1 longer than a block lose their rest; 1 of one token are left out; 2 tokens "
            "(8.7 %) are in no block");
  EXPECT_THROW(dataset.get(4), Error);
  EXPECT_THROW(dataset.get(-1), Error);
}

TEST_F(Packing, LongDocumentsAreSplit) {
  // 1..13 becomes 1..6, 7..12 and 13; 14..20 becomes 14..19 and 20; 21..28 becomes 21..26 and
  // 27..28.
  const PackedDataset dataset = packed({13, 7, 8}, PackingStrategy::bfd_split, 6);
  ASSERT_EQ(dataset.size(), 5);
  EXPECT_THAT(dataset.get(1).input_ids, ElementsAre(7, 8, 9, 10, 11, 12));
  EXPECT_THAT(dataset.get(1).labels, ElementsAre(-100, 8, 9, 10, 11, 12));
  EXPECT_THAT(dataset.get(4).input_ids, ElementsAre(27, 28, 9, 9, 9, 9));
  EXPECT_THAT(dataset.get(4).sequences, ElementsAre(0, 2));
  EXPECT_EQ(dataset.report().cut, 3);
  EXPECT_EQ(dataset.report().left_out, 2);
  EXPECT_EQ(dataset.report().dropped, 2);
}

TEST_F(Packing, WrappedBlocksAreThoseOfGroupTexts) {
  const std::vector<std::int64_t> documents = {4, 0, 5, 0, 0, 1, 1, 9, 3};
  for (const std::int64_t block : {2, 3, 4, 5, 23}) {
    const PackedDataset dataset = packed(documents, PackingStrategy::wrapped, block);
    const CausalLmDataset plain(file(documents), block, 0);
    ASSERT_EQ(dataset.size(), plain.size());
    std::size_t most = 0, least = 100;
    for (std::int64_t i = 0; i < plain.size(); ++i) {
      const Sample sample = dataset.get(i);
      EXPECT_EQ(sample.input_ids, plain.get(i).input_ids);
      // A sequence begins at the start of the block and at each document.
      std::vector<std::int32_t> begins = {0};
      std::int64_t at = 0;
      for (const std::int64_t length : documents) {
        if (length > 0 && at > i * block && at < (i + 1) * block)
          begins.push_back(static_cast<std::int32_t>(at - i * block));
        at += length;
      }
      std::vector<std::int32_t> labels = sample.input_ids;
      for (const std::int32_t begin : begins) labels[static_cast<std::size_t>(begin)] = -100;
      EXPECT_EQ(sample.labels, labels);
      most = std::max(most, begins.size());
      least = std::min(least, begins.size());
      EXPECT_EQ(std::ssize(sample.sequences), dataset.report().sequences);
      begins.resize(sample.sequences.size(), static_cast<std::int32_t>(block));
      EXPECT_EQ(sample.sequences, begins) << "block " << i << " of " << block;
    }
    EXPECT_EQ(static_cast<std::int64_t>(most), dataset.report().sequences) << "no more than needed";
    EXPECT_EQ(dataset.report().dropped, 23 % block);
    EXPECT_EQ(dataset.report().padding, 0);
    if (block == 5) {
      EXPECT_LT(least, most) << "the test has no empty sequences";
    }
  }
}

// Blocks are compared as sets. TRL lists blocks, and the documents of a block, in the order in
// which it filled them.
using Part = std::pair<std::int64_t, std::int64_t>;  // first token of all, tokens
using Blocks = std::vector<std::vector<Part>>;
Blocks sorted(Blocks blocks) {
  for (std::vector<Part>& parts : blocks) std::sort(parts.begin(), parts.end());
  std::erase(blocks, std::vector<Part>());
  std::sort(blocks.begin(), blocks.end());
  return blocks;
}
Blocks blocks_of(const PackedDataset& dataset) {
  Blocks blocks;
  for (std::int64_t i = 0; i < dataset.size(); ++i) {
    const Sample sample = dataset.get(i);
    std::vector<Part>& parts = blocks.emplace_back();
    for (std::size_t s = 0; s < sample.sequences.size(); ++s) {
      const auto begin = static_cast<std::size_t>(sample.sequences[s]),
                 end = s + 1 < sample.sequences.size()
                           ? static_cast<std::size_t>(sample.sequences[s + 1])
                           : sample.input_ids.size();
      if (begin < end && sample.input_ids[begin] != 0)  // 0: padding
        parts.emplace_back(sample.input_ids[begin] - 1, end - begin);
    }
  }
  return sorted(std::move(blocks));
}

// See tools/golden/make_packing.py. TRL keeps parts of one token, which have nothing to predict.
// They are placed last, so leaving them out moves no other part.
TEST_F(Packing, SharesBlocksAsTrlDoes) {
  const nlohmann::json cases = read_json_file(testing::golden_path("packing.json"));
  ASSERT_EQ(cases.size(), 12);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.dump());
    const auto documents = one["documents"].get<Numbers>();
    const auto block = one["block"].get<std::int64_t>();
    const auto theirs = [&](const char* strategy, bool with_single) {
      auto blocks = one[strategy].get<Blocks>();
      for (std::vector<Part>& parts : blocks)
        std::erase_if(parts, [&](const Part& part) { return part.second == 1 && !with_single; });
      return sorted(std::move(blocks));
    };
    const auto ours = [&](PackingStrategy strategy) {
      return blocks_of({file(documents), {.strategy = strategy, .block_size = block}});
    };
    EXPECT_EQ(ours(PackingStrategy::bfd), theirs("bfd", false));
    EXPECT_EQ(ours(PackingStrategy::bfd_split), theirs("bfd_split", false));
    // The lengths include single tokens.
    Numbers lengths;
    std::vector<Part> all;
    std::int64_t begin = 0;
    for (const std::int64_t length : documents) {
      lengths.push_back(std::min(length, block));
      all.emplace_back(begin, lengths.back());
      begin += length;
    }
    const Numbers block_of = best_fit_decreasing(lengths, block);
    Blocks blocks(static_cast<std::size_t>(bins_in(block_of)));
    for (std::size_t i = 0; i < all.size(); ++i)
      if (block_of[i] >= 0) blocks[static_cast<std::size_t>(block_of[i])].push_back(all[i]);
    EXPECT_EQ(sorted(std::move(blocks)), theirs("bfd", true));
    // Each of TRL's wrapped blocks is one text. The last block may be short.
    Blocks whole = theirs("wrapped", true), joined;
    if (whole.back()[0].second < block) whole.pop_back();
    for (const std::vector<Part>& parts : blocks_of(
             {file(documents), {.strategy = PackingStrategy::wrapped, .block_size = block}})) {
      std::int64_t tokens = 0;
      for (const Part& part : parts) tokens += part.second;
      joined.push_back({{parts[0].first, tokens}});
    }
    EXPECT_EQ(joined, whole);
  }
}

// The rows that transformers received (tools/golden/make_packed.py).
TEST_F(Packing, MakesTheRowsOfTheGoldenModels) {
  const auto golden =
      SafetensorsFile::open(testing::golden_path("packed/llama_tied/case.safetensors"));
  const auto values = [](const Tensor& tensor) {
    const auto* const first = tensor.const_data<std::int32_t>();
    return std::vector<std::int32_t>(first, first + tensor.count());
  };
  const std::vector<std::int32_t> ids = values(golden->tensor("input_ids"));
  // The documents in the order of their file: row, position in the row, tokens.
  const std::string path = folder_ / "golden";
  TokenFileWriter writer(path, 2, std::string(64, 'a'));
  for (const auto& [row, begin, length] : std::initializer_list<std::array<std::ptrdiff_t, 3>>{
           {0, 0, 5}, {1, 0, 7}, {2, 0, 16}, {0, 5, 3}, {1, 7, 8}, {0, 8, 4}}) {
    const auto first = ids.begin() + row * 16 + begin;
    writer.append_document(std::vector<TokenId>(first, first + length));
  }
  writer.commit();
  const PackedDataset dataset(TokenFile::open(path), {.block_size = 16, .vocab_size = 37});
  std::vector<Sample> samples;
  for (std::int64_t i = 0; i < dataset.size(); ++i) samples.push_back(dataset.get(i));
  const auto memory = make_host_memory();
  const Batch batch = PaddingCollator().collate(samples, *memory);
  EXPECT_EQ(values(batch.input_ids), ids);
  EXPECT_EQ(values(batch.labels), values(golden->tensor("labels")));
  EXPECT_EQ(values(batch.sequences), values(golden->tensor("sequences")));
}

TEST_F(Packing, RefusesWhatFillsNoBlock) {
  using enum PackingStrategy;
  for (const auto& [documents, strategy] : {std::pair{std::vector<std::int64_t>{}, bfd},
                                            {{0, 0}, bfd_split},
                                            {{1, 1, 1}, bfd},
                                            {{}, wrapped},
                                            {{1, 2, 3}, wrapped}})
    EXPECT_THAT(
        [&] {
          try {
            packed(documents, strategy, 7);
          } catch (const Error& error) {
            return std::string(error.what());
          }
          return std::string("no error");
        }(),
        HasSubstr("which fill no block of 7"));
  EXPECT_THROW(packed({3}, bfd, 1), Error);
  EXPECT_THROW(PackedDataset(file({3}), {.block_size = 4, .vocab_size = 3}), Error) << "id 3 of 3";
  EXPECT_THROW(PackedDataset(file({3}), {.block_size = 4, .vocab_size = 8, .pad_id = 8}), Error);
}

// A block that is exactly full has no padding. A block of one sequence has at most one padding
// token.
TEST_F(Packing, ExactBlocks) {
  for (const PackingStrategy strategy :
       {PackingStrategy::bfd, PackingStrategy::bfd_split, PackingStrategy::wrapped}) {
    const PackedDataset dataset = packed({4, 4, 4}, strategy, 4);
    ASSERT_EQ(dataset.size(), 3);
    EXPECT_THAT(dataset.get(2).sequences, ElementsAre(0));
    EXPECT_THAT(dataset.get(2).input_ids, ElementsAre(9, 10, 11, 12));
    EXPECT_EQ(dataset.report().padding, 0);
    EXPECT_EQ(dataset.report().cut, 0);
  }
}

TEST(PackedBatch, SequencesOfSamples) {
  const auto memory = make_host_memory();
  const std::vector<Sample> samples = {{.input_ids = {1, 2, 3, 4}, .sequences = {0, 2, 4}},
                                       {.input_ids = {5, 6}, .sequences = {0, 1}},
                                       {.input_ids = {7, 8, 9}}};
  const Batch batch = PaddingCollator().collate(samples, *memory);
  ASSERT_TRUE(batch.sequences.defined());
  EXPECT_EQ(batch.sequences.shape(), (Shape{3, 3}));
  const auto* const begins = batch.sequences.const_data<std::int32_t>();
  EXPECT_THAT(std::vector(begins, begins + 9), ElementsAreArray({0, 2, 4, 0, 1, 2, 0, 3, 4}));
  EXPECT_FALSE(PaddingCollator().collate({{samples[2]}}, *memory).sequences.defined());
  for (const std::vector<std::int32_t>& wrong :
       {std::vector<std::int32_t>{1}, {0, 2, 1}, {0, 4}, {-1, 0}}) {
    const std::vector<Sample> one = {{.input_ids = {1, 2, 3}, .sequences = wrong}};
    EXPECT_THROW(PaddingCollator().collate(one, *memory), Error);
  }
}

}  // namespace
}  // namespace shoal
