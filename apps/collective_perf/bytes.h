// Parses sizes.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::perf {

// "8", "64k", "3M", "2G", "128MB", "1GiB" (powers of 1024); invalid_argument otherwise.
std::int64_t parse_bytes(const std::string& text);

}  // namespace shoal::perf
