// How numbers and log records look: as Hugging Face's Trainer prints them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace shoal {

// Python's repr of a float: shortest text that reads back the same, 1.0, 4.44e-05, nan.
std::string python_repr(double value);
// A flat record as Python prints a dict: {'loss': 1.1406, 'epoch': 0.26}. null reads None.
std::string python_dict(const nlohmann::ordered_json& record);
// To so many digits after the point, half to even as Python's round() does on the exact value.
double round_to(double value, int digits);

std::string format_count(std::int64_t value);  // 124,439,808
std::string format_bytes(std::int64_t bytes);  // 1.46 GiB
std::string format_seconds(double seconds);    // 05:07, 1:02:03

// One line of a terminal, at most `width` columns:
//   12%|███▌      | 30/250 [00:21<02:34, 1.43 step/s, loss 3.21, lr 4.4e-05, 11,712 tok/s]
// `detail` is what stands after the rate; left out where the width is small. Amounts of the unit
// "B" are written as format_bytes() does.
std::string progress_line(std::int64_t done, std::int64_t total, double seconds,
                          std::string_view unit, std::string_view detail, int width);

}  // namespace shoal
