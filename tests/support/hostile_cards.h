// Cards that a rank of another build, or a foreign process, might leave in the store.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/forwarding_store.h"

namespace shoal::test {

// None of them is valid as a card with more than one field.
inline std::vector<std::string> hostile_cards() {
  using namespace std::string_literals;
  return {"",
          "x",
          "-1",
          "9223372036854775808",
          "1e400",
          "\0"s,
          "7\0\n8"s,
          "\n",
          "\n\n",
          "[]",
          "{}",
          "{",
          "null",
          "[1]",
          "\"text\"",
          "\xff\xfe",
          "!",
          "![1]",
          "![]x",
          std::string(100'000, '7'),
          std::string(100'000, '\n')};
}

// A store that returns `card` for every key that ends with `end`.
class PlantedStore final : public ForwardingStore {
 public:
  PlantedStore(Store& store, std::string end, std::string card)
      : ForwardingStore(store), end_(std::move(end)), card_(std::move(card)) {}
  std::string get(std::string_view key, Deadline deadline) override {
    return key.ends_with(end_) ? card_ : ForwardingStore::get(key, deadline);
  }

 private:
  const std::string end_, card_;
};

// Returns the Error that `body` throws, or an internal error "nothing" if it throws none.
template <typename Body>
Error error_from(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  } catch (const std::exception& other) {
    return {ErrorCode::internal, fmt::format("unexpected: {}", other.what())};
  }
  return {ErrorCode::internal, "nothing"};
}

// The card, shortened for a failure message.
inline std::string shown(const std::string& card) {
  return fmt::format("{} bytes: {}", card.size(), card.substr(0, 200));
}

}  // namespace shoal::test
