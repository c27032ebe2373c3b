// Shared by the stores. Private to runtime/rendezvous.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shoal/runtime/rendezvous/store.h"

namespace shoal::store {

// Throw invalid_argument above the limits of store.h.
void check_key(std::string_view key);
void check_value(std::string_view key, std::string_view value);

// A key for messages: unprintable bytes as \xNN, long keys cut.
std::string printable(std::string_view key);

[[noreturn]] void throw_missing_key(std::string_view key, const std::string& store,
                                    double waited_seconds);

// Returns the counter in `text` plus `amount`. Throws corrupt_data if it is not a number or exceeds
// 64 bits.
std::int64_t add_to_counter(std::string_view key, std::string_view text, std::int64_t amount);

}  // namespace shoal::store
