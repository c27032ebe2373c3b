// Numbers in text, read strictly.
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

// The number that all of `text` denotes. Nothing if it is anything else (a blank, a
// '+', nothing at all) or a number that does not fit. tools/check_rules keeps std::stoi and its
// like, which throw "stoi" or read a prefix, out of the tree.
template <TextNumber Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, number);
  if (problem != std::errc{} || at != end) return std::nullopt;
  return number;
}

// The same of digits in another base than ten.
template <std::integral Number>
std::optional<Number> parse_number(std::string_view text, int base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [at, problem] = std::from_chars(text.data(), end, number, base);
  if (problem != std::errc{} || at != end) return std::nullopt;
  return number;
}

}  // namespace shoal
