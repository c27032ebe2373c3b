// Base64 (RFC 4648) through OpenSSL.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace shoal {

std::string to_base64(std::string_view bytes);
// Returns nullopt if the text is not base64 with padding.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace shoal
