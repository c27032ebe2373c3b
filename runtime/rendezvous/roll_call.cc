#include "shoal/runtime/rendezvous/roll_call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/rendezvous/cards.h"

namespace shoal {
namespace {

// Stands in the place of a missing rank's value, before the numbers of all missing ranks.
constexpr std::string_view kMissing = "\nshoal: did not come ";

std::vector<int> parse_missing(std::string_view text, int size) {
  return read_card(-1, "roll call", text, [&](std::string_view card) {
    CardFields fields(card, ' ');
    std::vector<int> missing;
    while (!fields.at_end()) missing.push_back(fields.number<int>("rank", 0, size - 1));
    return missing;
  });
}

}  // namespace

RollCall call_roll(Store& store, std::string_view label, int rank, int size, std::string_view value,
                   Deadline deadline,
                   const std::function<void(int rank, std::string_view value)>& see) {
  const auto key = [&](int of) { return fmt::format("{}/{}", label, of); };
  store.set(key(rank), value);
  RollCall roll;
  for (int other = 0; other < size; ++other) {
    std::optional<std::string> text;
    if (roll.missing.empty()) try {
        text = store.get(key(other), deadline);
      } catch (const Error& late) {
        if (late.code() != ErrorCode::timeout) throw;
        roll.missing.push_back(other);  // too late, even if its value is there now
      }
    if (!text) text = store.try_get(key(other));
    if (!text) {
      if (!roll.missing.empty() && roll.missing.back() != other) roll.missing.push_back(other);
    } else if (text->starts_with(kMissing)) {
      roll.missing = parse_missing(std::string_view(*text).substr(kMissing.size()), size);
      return roll;
    } else {
      if (see) see(other, *text);
      roll.values.push_back(*std::move(text));
    }
  }
  if (!roll.missing.empty())
    store.compare_set(key(roll.missing.front()), std::nullopt,
                      fmt::format("{}{}", kMissing, fmt::join(roll.missing, " ")));
  return roll;
}

}  // namespace shoal
