// Reads cards (runtime/rendezvous/cards.h) that are JSON lists, for use in read_card().
#pragma once

#include <concepts>
#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {

inline nlohmann::json json_list(std::string_view card, std::size_t count) {
  nlohmann::json list = parse_json(card, "it");
  if (!list.is_array() || list.size() != count)
    throw_error(ErrorCode::corrupt_data, "it is {} of {} values, not a list of {}",
                list.type_name(), list.size(), count);
  return list;
}

template <std::integral Number>
Number json_integer(const nlohmann::json& list, std::size_t at, Number least,
                    Number most = std::numeric_limits<Number>::max()) {
  const auto value = integer_in<Number>(list.at(at));
  if (!value || *value < least || *value > most)
    throw_error(ErrorCode::corrupt_data, "its value {} is {}, not an integer from {} to {}", at,
                list.at(at).type_name(), least, most);
  return *value;
}

inline std::string json_text(const nlohmann::json& list, std::size_t at) {
  return list.at(at).get<std::string>();
}

}  // namespace shoal
