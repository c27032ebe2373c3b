// Streams in which each rank has its own shards.
#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/sample_stream.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;

// Tests check which shards were opened. A sample's value is its position.
class SizedShards final : public ShardSet {
 public:
  explicit SizedShards(std::vector<std::int64_t> sizes) : sizes_(std::move(sizes)) {
    for (std::size_t i = 0; i < sizes_.size(); ++i) names_.push_back("part-" + std::to_string(i));
  }
  std::int64_t count() const override { return std::ssize(sizes_); }
  const std::string& name(std::int64_t shard) const override {
    return names_.at(static_cast<std::size_t>(shard));
  }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    class Samples final : public Dataset {
     public:
      explicit Samples(std::int64_t size) : size_(size) {}
      std::int64_t size() const override { return size_; }
      Sample get(std::int64_t) const override { return {}; }

     private:
      std::int64_t size_;
    };
    opened.insert(shard);
    return std::make_shared<Samples>(sizes_.at(static_cast<std::size_t>(shard)));
  }

  mutable std::multiset<std::int64_t> opened;

 private:
  std::vector<std::int64_t> sizes_;
  std::vector<std::string> names_;
};

using Places = std::vector<std::string>;

Places take(SampleStream& stream, std::int64_t samples, StreamState* after = nullptr) {
  const auto claim = stream.claim(samples);
  Places places;
  for (const auto& item : claim->items) places.push_back(stream.name(item));
  if (after != nullptr) *after = claim->after;
  return places;
}

StreamOptions of_rank(std::int64_t rank, std::int64_t ranks, std::int64_t buffer = 6) {
  return {.ranks = ranks, .rank = rank, .seed = 5, .buffer = buffer, .shard_by_rank = true};
}

const std::vector<std::int64_t> kSizes = {5, 3, 11, 1, 0, 4, 7};

TEST(ShardByRank, ARankSeesItsOwnShardsOnceAnEpochAndOpensNoOther) {
  for (std::int64_t rank = 0; rank < 3; ++rank) {
    const auto shards = std::make_shared<SizedShards>(kSizes);
    SampleStream stream(shards, of_rank(rank, 3));
    std::map<std::string, int> expected, seen;
    std::int64_t size = 0;
    for (std::int64_t shard = rank; shard < std::ssize(kSizes); shard += 3)
      for (std::int64_t i = 0; i < kSizes[static_cast<std::size_t>(shard)]; ++i, ++size)
        expected["sample " + std::to_string(i) + " of part-" + std::to_string(shard)] = 3;
    StreamState after;
    for (const std::string& place : take(stream, 3 * size, &after)) ++seen[place];
    EXPECT_EQ(seen, expected) << "rank " << rank;
    EXPECT_EQ(after.epoch, 3);
    EXPECT_EQ(after.position, 9 * size);  // of all ranks
    for (const std::int64_t shard : shards->opened) EXPECT_EQ(shard % 3, rank);
  }
}

TEST(ShardByRank, NumbersSamplesOfAllRanksDifferently) {
  SampleStream one(std::make_shared<SizedShards>(kSizes), of_rank(1, 2));
  take(one, 3);
  const auto claim = one.claim(2);
  EXPECT_EQ(claim->ordinals.first, 7);
  EXPECT_EQ(claim->ordinals.stride, 2);
}

TEST(ShardByRank, EveryRankResumesFromOneState) {
  for (const std::int64_t buffer : {0, 1, 6, 50})
    for (const std::int64_t at : {1, 4, 9, 17, 40}) {
      std::vector<Places> rest;
      std::vector<std::int64_t> known(kSizes.size(), -1);
      StreamState state;
      for (std::int64_t rank = 1; rank >= 0; --rank) {  // the checkpoint keeps rank 0's state
        SampleStream whole(std::make_shared<SizedShards>(kSizes), of_rank(rank, 2, buffer));
        take(whole, at, &state);
        for (std::size_t i = 0; i < known.size(); ++i)
          known[i] = std::max(known[i], (*state.known)[i]);
        rest.insert(rest.begin(), take(whole, 30));
      }
      state.known = std::make_shared<const std::vector<std::int64_t>>(known);
      state = StreamState::from_json(state.to_json());
      for (std::int64_t rank = 0; rank < 2; ++rank) {
        const auto shards = std::make_shared<SizedShards>(kSizes);
        SampleStream resumed(shards, of_rank(rank, 2, buffer));
        resumed.seek(state);
        EXPECT_TRUE(shards->opened.empty());  // the sizes of its shards are known
        EXPECT_EQ(take(resumed, 30), rest[static_cast<std::size_t>(rank)])
            << "rank " << rank << " at " << at << ", buffer " << buffer;
      }
    }
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ShardByRank, ErrorsAreOneLine) {
  const auto shards = std::make_shared<SizedShards>(kSizes);
  EXPECT_THAT(refusal([&] { SampleStream(shards, of_rank(0, 8)); }),
              HasSubstr("7 shards for 8 ranks that each read their own"));
  SampleStream two(shards, of_rank(0, 2));
  StreamState state;
  take(two, 3, &state);
  SampleStream three(shards, of_rank(0, 3));
  EXPECT_THAT(refusal([&] { three.seek(state); }), HasSubstr("or by other ranks"));
  SampleStream shared(shards, {.ranks = 2, .rank = 0, .seed = 5, .buffer = 6});
  EXPECT_THAT(refusal([&] { shared.seek(state); }), HasSubstr("of other shards"));
  const auto uneven = std::make_shared<SizedShards>(std::vector<std::int64_t>{4, 0, 2, 0});
  SampleStream empty(uneven, of_rank(1, 2));
  EXPECT_THAT(refusal([&] { empty.claim(1); }), HasSubstr("2 shards, part-1 and so on, have no"));
  state.known = std::make_shared<const std::vector<std::int64_t>>(3, 1);
  EXPECT_THAT(refusal([&] { two.seek(state); }), HasSubstr("sizes of 3 shards, and there are 7"));
}

}  // namespace
}  // namespace shoal
