#include "shoal/train/run/run_ranks.h"

#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal {

using collectives::WatchedStore;
using collectives::transport::ControlLinks;

RunRanks::RunRanks(World world)
    : world_(std::move(world)), store_(make_store(world_, deadlines::start())) {
  const int rank = world_.rank, size = world_.size;
  std::vector<std::string> hosts;
  if (size > 1) {
    settle_nodes(world_, *store_, deadlines::start());
    if (world_.nodes > 1)
      hosts = exchange_cards(*store_, "hosts", rank, size, world_.host, deadlines::start(), "hosts",
                             card_name_or_none);
    links_ = std::make_unique<ControlLinks>(rank, size, *store_, "run", deadlines::start(),
                                            ControlLinks::patience(deadlines::seconds()));
  }
  watched_ = std::make_unique<WatchedStore>(
      *store_, links_.get(), collectives::net::RankNames{rank, size, std::move(hosts)}, "setup");
}

RunRanks::~RunRanks() {
  if (!links_) return;
  links_->leave();
  const auto until = Deadline::in_seconds(deadlines::kTellFailures);
  const auto another_stays = [this] {
    for (int rank = 0; rank < world_.size; ++rank)
      if (rank != world_.rank && !links_->left(rank) && !is_gone(rank)) return true;
    return false;
  };
  while (!links_->all_left() && !links_->has_news() && another_stays() && !until.passed())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

bool RunRanks::is_gone(int rank) const {
  if (!links_) return false;
  using Kind = collectives::transport::ControlNews::Kind;
  const auto news = links_->news();
  if (news && news->rank == rank && (news->kind == Kind::died || news->kind == Kind::unreachable))
    return true;
  return links_->silent_seconds(rank).has_value();
}

}  // namespace shoal
