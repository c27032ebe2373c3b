#include "shoal/train/data/shards_of_rank.h"

#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal {

ShardsOfRank::ShardsOfRank(std::shared_ptr<const ShardSet> all, std::int64_t rank,
                           std::int64_t ranks)
    : all_(std::move(all)), rank_(rank), ranks_(ranks) {
  if (all_->is_sequential())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} passes by once and whole; ranks cannot have shards of their own",
                            all_->name(0)),
                "leave shard_by_rank out");
  if (all_->count() < ranks)
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} shards for {} ranks that each read their own", all_->count(), ranks),
        "give at least one shard a rank, or leave shard_by_rank out");
}

std::int64_t ShardsOfRank::count() const { return (all_->count() - rank_ + ranks_ - 1) / ranks_; }

}  // namespace shoal
