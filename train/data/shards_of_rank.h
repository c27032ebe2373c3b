// Every R-th shard of a set, starting at r: the part that rank r of R reads with shard_by_rank, as
// with SageMaker's ShardedByS3Key.
#pragma once

#include <memory>
#include <string>

#include "shoal/train/data/sample_stream.h"

namespace shoal {

class ShardsOfRank final : public ShardSet {
 public:
  // invalid_argument if there are fewer shards than ranks, or if the set is sequential.
  ShardsOfRank(std::shared_ptr<const ShardSet> all, std::int64_t rank, std::int64_t ranks);

  std::int64_t number(std::int64_t shard) const { return rank_ + shard * ranks_; }  // in the set
  std::int64_t count() const override;
  const std::string& name(std::int64_t shard) const override { return all_->name(number(shard)); }
  std::shared_ptr<const Dataset> open(std::int64_t shard) const override {
    return all_->open(number(shard));
  }
  int worth_opening_ahead() const override { return all_->worth_opening_ahead(); }

 private:
  std::shared_ptr<const ShardSet> all_;
  std::int64_t rank_, ranks_;
};

}  // namespace shoal
