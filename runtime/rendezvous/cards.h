// Cards: messages by which ranks describe themselves at start-up, through the store or a socket.
// Another rank may run another build, so every field of a card is checked.
//
//   const Place place = read_card(peer, "native", text, [](std::string_view card) {
//     CardFields fields(card, '\n');
//     return Place{std::string(fields.next("host")), fields.number<int>("port", 1, 65535)};
//   });
#pragma once

#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal {

// A one-line corrupt_data error that names the rank, the `what` that its card describes, the
// reason, and the remedy.
Error unreadable_card(int rank, std::string_view what, std::string_view why);

// Returns parse(card) for a card of `rank`. Exceptions from parse() become unreadable_card(),
// except out of memory. If a card can report a failure, check that outside of parse().
template <typename Parse>
auto read_card(int rank, std::string_view what, std::string_view card, const Parse& parse)
    -> std::invoke_result_t<const Parse&, std::string_view> {
  try {
    return parse(card);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const Error& problem) {
    throw unreadable_card(rank, what, problem.message());
  } catch (const std::exception& problem) {
    throw unreadable_card(rank, what, problem.what());
  }
}

// exchange() of cards. Returns what read_card() makes of each, in rank order.
template <typename Parse>
auto exchange_cards(Store& store, std::string_view label, int rank, int size, std::string_view own,
                    Deadline deadline, std::string_view what, const Parse& parse) {
  std::vector<std::invoke_result_t<const Parse&, std::string_view>> read;
  for (const std::string& card : exchange(store, label, rank, size, own, deadline))
    read.push_back(read_card(static_cast<int>(read.size()), what, card, parse));
  return read;
}

// Reads the fields of a card in order, inside read_card(). Each call throws corrupt_data, naming
// the field, if it is missing or invalid. The card must outlive this object.
class CardFields {
 public:
  CardFields(std::string_view card, char separator) : left_(card), separator_(separator) {}

  std::string_view next(std::string_view name);
  // The rest of the card, including separators.
  std::string_view rest(std::string_view name);
  template <TextNumber Number>
  Number number(std::string_view name, Number least = std::numeric_limits<Number>::lowest(),
                Number most = std::numeric_limits<Number>::max()) {
    const std::string_view text = next(name);
    const auto number = parse_number<Number>(text);
    if (!number || !(*number >= least && *number <= most)) refuse(name, text);
    return *number;
  }
  bool at_end() const { return !left_; }
  void end() const;  // throws if fields are left

 private:
  [[noreturn]] static void refuse(std::string_view name, std::string_view text);

  std::optional<std::string_view> left_;
  const char separator_;
};

// A name that a card gives, such as a host's: 1 to 1024 bytes, none of them a control character.
std::string card_name(std::string_view card);
std::string card_name_or_none(std::string_view card);  // may also be empty

}  // namespace shoal
