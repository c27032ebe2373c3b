// Strict parsing of numbers.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>
#include <system_error>

namespace shoal {

template <typename Number>
concept TextNumber =
    std::floating_point<Number> || (std::integral<Number> && !std::same_as<Number, bool>);

// Parses the whole text as a number. Returns nullopt for anything else (white space, a '+', an
// empty text) and for a number that does not fit. tools/check_rules bans std::stoi and similar
// functions, which throw unhelpful errors or ignore trailing text.
template <TextNumber Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc{} || at != end) return std::nullopt;
  return number;
}

// The same for digits in another base.
template <std::integral Number>
std::optional<Number> parse_number(std::string_view text, int base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, number, base);
  if (problem != std::errc{} || at != end) return std::nullopt;
  return number;
}

}  // namespace shoal
