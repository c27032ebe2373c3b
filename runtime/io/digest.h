// Message authentication codes and random bytes (OpenSSL).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace shoal {

std::string hmac_sha256(std::string_view key, std::string_view text);  // 32 bytes
// Compares in a time that depends only on the lengths.
bool equal_secrets(std::string_view first, std::string_view second);
// From the kernel's source of random numbers. Throws unavailable if it fails.
std::string random_bytes(std::size_t count);

}  // namespace shoal
