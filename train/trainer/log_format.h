// Formats of numbers and log records, as Hugging Face's Trainer prints them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace shoal {

// Python's repr of a float: the shortest text that parses to the same value, such as 1.0, 4.44e-05
// or nan.
std::string python_repr(double value);
// A flat record as Python prints a dict: {'loss': 1.1406, 'epoch': 0.26}. null becomes None.
std::string python_dict(const nlohmann::ordered_json& record);
// Rounds to `digits` decimals, half to even like Python's round() on the exact value.
double round_to(double value, int digits);

std::string format_count(std::int64_t value);  // 124,439,808
std::string format_bytes(std::int64_t bytes);  // 1.46 GiB
std::string format_seconds(double seconds);    // 05:07, 1:02:03

// One line of a terminal, at most `width` columns:
//   12%|███▌      | 30/250 [00:21<02:34, 1.43 step/s, loss 3.21, lr 4.4e-05, 11,712 tok/s]
// `detail` follows the rate; it is omitted if the width is small. Amounts of unit "B" are formatted
// by format_bytes().
std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                          std::string_view unit, std::string_view detail, int width);

}  // namespace shoal
