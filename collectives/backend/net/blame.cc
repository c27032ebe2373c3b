#include "shoal/collectives/backend/net/blame.h"

#include <fmt/ranges.h>

#include "shoal/runtime/base/error_code.h"

namespace shoal::collectives::net {

Error error_of(const transport::ControlNews& news, const RankNames& names,
               const std::string& operation, Blame& blame) {
  ErrorCode code = ErrorCode::peer_lost;
  std::string text, remedy = "look at that rank's own output for the cause";
  switch (news.kind) {
    case transport::ControlNews::Kind::died:
      text = fmt::format("{} died", names.named(news.rank));
      blame = {Blame::Kind::died, {news.rank}};
      break;
    case transport::ControlNews::Kind::unreachable:
      blame.kind = Blame::Kind::unreachable;
      text = fmt::format("{} cannot be reached: nothing has come from there for {} s",
                         names.named_with_neighbours(news.rank, blame.ranks), news.text);
      remedy = "look at that host and at the network between";
      break;
    case transport::ControlNews::Kind::failed:
      code = error_code_of(news.code).value_or(ErrorCode::peer_lost);
      text = fmt::format("{} failed (its last words: {})", names.named(news.rank), news.text);
      break;
    case transport::ControlNews::Kind::aborted:
      code = ErrorCode::aborted;
      text = fmt::format("rank {} aborted: {}", news.rank, news.text);
      remedy.clear();
      break;
  }
  return Error(code, text, remedy).at_rank(names.own).with_peer(news.rank).in_operation(operation);
}

std::string RankNames::named(int rank) const {
  if (hosts.empty()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} (host {})", rank, hosts[static_cast<std::size_t>(rank)]);
}

std::string RankNames::named_with_neighbours(int rank, std::vector<int>& ranks) const {
  ranks = {rank};
  if (hosts.empty()) return named(rank);
  const auto& host = hosts[static_cast<std::size_t>(rank)];
  if (host == hosts[static_cast<std::size_t>(own)]) return named(rank);
  ranks.clear();
  for (int other = 0; other < size; ++other)
    if (hosts[static_cast<std::size_t>(other)] == host) ranks.push_back(other);
  if (ranks.size() == 1) return named(rank);
  return fmt::format("ranks {} on host {}", fmt::join(ranks, ", "), host);
}

}  // namespace shoal::collectives::net
