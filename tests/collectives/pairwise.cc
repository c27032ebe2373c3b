#include "pairwise.h"

#include <optional>
#include <set>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::test {
namespace {

using Value = std::pair<int, int>;  // axis, index
using Pair = std::pair<Value, Value>;

Pair ordered(Value x, Value y) { return x < y ? Pair{x, y} : Pair{y, x}; }

class Generator {
 public:
  using Allowed = std::function<bool(int, int, int, int)>;
  Generator(const std::vector<int>& sizes, const Allowed& allowed)
      : sizes_(sizes), allowed_(allowed) {
    const int axes = static_cast<int>(sizes.size());
    for (int a = 0; a < axes; ++a)
      for (int b = a + 1; b < axes; ++b)
        for (int i = 0; i < size(a); ++i)
          for (int j = 0; j < size(b); ++j)
            if (allowed(a, i, b, j)) open_.insert({{a, i}, {b, j}});
  }

  std::vector<Row> run(int variant) {
    std::vector<Row> rows;
    while (!open_.empty()) {
      const Pair seed = *open_.begin();
      Row row(sizes_.size(), -1);
      row[static_cast<std::size_t>(seed.first.first)] = seed.first.second;
      row[static_cast<std::size_t>(seed.second.first)] = seed.second.second;
      SHOAL_CHECK(complete(row, 0, variant + static_cast<int>(rows.size())),
                  "value {} of axis {} and value {} of axis {} fit no row", seed.first.second,
                  seed.first.first, seed.second.second, seed.second.first);
      close(row);
      rows.push_back(std::move(row));
    }
    return rows;
  }

 private:
  int size(int axis) const { return sizes_[static_cast<std::size_t>(axis)]; }

  bool fits(const Row& row, Value value) const {
    for (std::size_t b = 0; b < row.size(); ++b) {
      if (row[b] < 0 || static_cast<int>(b) == value.first) continue;
      const auto [x, y] = ordered(value, {static_cast<int>(b), row[b]});
      if (!allowed_(x.first, x.second, y.first, y.second)) return false;
    }
    return true;
  }

  int newly_covered(const Row& row, Value value) const {
    int number = 0;
    for (std::size_t b = 0; b < row.size(); ++b)
      if (row[b] >= 0) number += open_.contains(ordered(value, {static_cast<int>(b), row[b]}));
    return number;
  }

  // Fills the row from `axis` on, preferring values that cover most pairs. Backtracks if none fits.
  bool complete(Row& row, std::size_t axis, int turn) const {
    if (axis == row.size()) return true;
    if (row[axis] >= 0) return complete(row, axis + 1, turn);
    const int a = static_cast<int>(axis);
    std::set<std::pair<int, int>> candidates;  // ordered by covered pairs, then by turns
    for (int k = 0; k < size(a); ++k) {
      const int value = (turn + k) % size(a);
      if (fits(row, {a, value})) candidates.insert({-newly_covered(row, {a, value}), k});
    }
    for (const auto& [covered, k] : candidates) {
      row[axis] = (turn + k) % size(a);
      if (complete(row, axis + 1, turn)) return true;
    }
    row[axis] = -1;
    return false;
  }

  void close(const Row& row) {
    for (std::size_t a = 0; a < row.size(); ++a)
      for (std::size_t b = a + 1; b < row.size(); ++b)
        open_.erase({{static_cast<int>(a), row[a]}, {static_cast<int>(b), row[b]}});
  }

  const std::vector<int>& sizes_;
  const Allowed& allowed_;
  std::set<Pair> open_;  // allowed pairs that no row covers yet
};

}  // namespace

std::vector<Row> pairwise_rows(const std::vector<int>& sizes,
                               const std::function<bool(int, int, int, int)>& allowed,
                               int variant) {
  return Generator(sizes, allowed).run(variant);
}

}  // namespace shoal::collectives::test
