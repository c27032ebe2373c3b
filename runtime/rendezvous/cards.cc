#include "shoal/runtime/rendezvous/cards.h"

#include <algorithm>

#include "shoal/runtime/rendezvous/store_internal.h"

namespace shoal {

Error unreadable_card(int rank, std::string_view what, std::string_view why) {
  return Error(ErrorCode::corrupt_data,
               fmt::format("{}: the card of rank {} is unreadable: {}", what, rank,
                           store::printable(why)),
               "run the same build of Shoal on every rank")
      .with_peer(rank);
}

std::string_view CardFields::next(std::string_view name) {
  if (!left_) throw_error(ErrorCode::corrupt_data, "it ends before its {}", name);
  const std::string_view all = *left_;
  const std::size_t end = all.find(separator_);
  if (end == all.npos)
    left_.reset();
  else
    left_ = all.substr(end + 1);
  return all.substr(0, end);
}

std::string_view CardFields::rest(std::string_view name) {
  if (!left_) throw_error(ErrorCode::corrupt_data, "it ends before its {}", name);
  return std::exchange(left_, std::nullopt).value_or("");
}

void CardFields::end() const {
  if (left_) throw_error(ErrorCode::corrupt_data, "it goes on for {} bytes", left_->size());
}

void CardFields::refuse(std::string_view name, std::string_view text) {
  throw_error(ErrorCode::corrupt_data, "its {} is '{}'", name,
              store::printable(text.substr(0, 40)));
}

std::string card_name(std::string_view card) {
  constexpr std::size_t kLongest = 1024;
  if (card.empty() || card.size() > kLongest)
    throw_error(ErrorCode::corrupt_data, "a name of {} bytes, not 1 to {}", card.size(), kLongest);
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(card, is_control))
    throw_error(ErrorCode::corrupt_data, "a name with control characters: '{}'",
                store::printable(card.substr(0, 40)));
  return std::string(card);
}

std::string card_name_or_none(std::string_view card) { return card.empty() ? "" : card_name(card); }

}  // namespace shoal
