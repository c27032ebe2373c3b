// The transfers between ranks in operations that only move data: pure arithmetic, the same on every
// rank.
#pragma once

#include <cstdint>
#include <vector>

namespace shoal::collectives::algorithm {

// One transfer: [from, from + count) of the sender's send buffer goes to [to, to + count) of the
// receiver's recv buffer.
struct Transfer {
  std::int64_t from = 0, to = 0, count = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

class Exchange {
 public:
  static Exchange gather(int size, std::int64_t count, int root);
  static Exchange scatter(int size, std::int64_t count, int root);
  static Exchange all_gather(std::vector<std::int64_t> counts);  // by rank
  static Exchange all_to_all(int size, std::int64_t count);
  // Row by row: counts[a * size + b] is what rank a sends to b.
  static Exchange all_to_all_v(int size, const std::vector<std::int64_t>& counts);

  int size() const { return size_; }
  Transfer at(int sender, int receiver) const;
  // Whether a sender sends the same elements to every receiver.
  bool shared() const { return kind_ == Kind::gather || kind_ == Kind::all_gather; }
  std::int64_t longest() const;         // of all transfers between two ranks
  std::int64_t sent(int sender) const;  // elements of its send buffer
  // True if senders should write instead of receivers reading. In a gather, the many senders then
  // share the work of the one receiver.
  bool rather_pushed() const { return kind_ == Kind::gather; }

 private:
  enum class Kind : std::uint8_t { gather, scatter, all_gather, all_to_all, all_to_all_v };
  Exchange(Kind kind, int size, std::int64_t count, int root)
      : kind_(kind), size_(size), count_(count), root_(root) {}

  Kind kind_;
  int size_;
  std::int64_t count_;
  int root_;
  std::vector<Transfer> transfers_;  // for kinds with counts, row by row
};

}  // namespace shoal::collectives::algorithm
