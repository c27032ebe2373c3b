#include "shoal/collectives/algorithm/exchange.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::algorithm {

Exchange Exchange::gather(int size, std::int64_t count, int root) {
  return {Kind::gather, size, count, root};
}

Exchange Exchange::scatter(int size, std::int64_t count, int root) {
  return {Kind::scatter, size, count, root};
}

Exchange Exchange::all_to_all(int size, std::int64_t count) {
  return {Kind::all_to_all, size, count, -1};
}

Exchange Exchange::all_gather(std::vector<std::int64_t> counts) {
  const int size = static_cast<int>(counts.size());
  Exchange exchange(Kind::all_gather, size, 0, -1);
  std::int64_t offset = 0;
  for (const std::int64_t count : counts) {
    exchange.transfers_.push_back({0, offset, count});
    offset += count;
  }
  return exchange;
}

Exchange Exchange::all_to_all_v(int size, const std::vector<std::int64_t>& counts) {
  SHOAL_CHECK(counts.size() == static_cast<std::size_t>(size) * static_cast<std::size_t>(size),
              "{} counts for {} ranks", counts.size(), size);
  Exchange exchange(Kind::all_to_all_v, size, 0, -1);
  std::vector<std::int64_t> received(static_cast<std::size_t>(size), 0);
  for (int sender = 0; sender < size; ++sender) {
    std::int64_t sent = 0;
    for (int receiver = 0; receiver < size; ++receiver) {
      const std::int64_t count = counts[static_cast<std::size_t>(sender * size + receiver)];
      std::int64_t& offset = received[static_cast<std::size_t>(receiver)];
      exchange.transfers_.push_back({sent, offset, count});
      sent += count;
      offset += count;
    }
  }
  return exchange;
}

Transfer Exchange::at(int sender, int receiver) const {
  switch (kind_) {
    case Kind::gather:
      return receiver == root_ ? Transfer{0, sender * count_, count_} : Transfer{};
    case Kind::scatter:
      return sender == root_ ? Transfer{receiver * count_, 0, count_} : Transfer{};
    case Kind::all_gather:
      return transfers_[static_cast<std::size_t>(sender)];
    case Kind::all_to_all:
      return {receiver * count_, sender * count_, count_};
    case Kind::all_to_all_v:
      break;
  }
  return transfers_[static_cast<std::size_t>(sender * size_ + receiver)];
}

std::int64_t Exchange::longest() const {
  std::int64_t most = 0;
  for (int sender = 0; sender < size_; ++sender)
    for (int receiver = 0; receiver < size_; ++receiver)
      most = std::max(most, at(sender, receiver).count);
  return most;
}

std::int64_t Exchange::sent(int sender) const {
  std::int64_t last = 0;
  for (int receiver = 0; receiver < size_; ++receiver) {
    const Transfer transfer = at(sender, receiver);
    last = std::max(last, transfer.from + transfer.count);
  }
  return last;
}

}  // namespace shoal::collectives::algorithm
