// Text formats of the services: percent-encoding (RFC 3986), hexadecimal, times.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace shoal::sagemaker {

using Moment = std::chrono::system_clock::time_point;

// Encodes all but A-Z a-z 0-9 - _ . ~ as %XX; `keep_slash` also keeps '/'.
std::string percent_encode(std::string_view text, bool keep_slash = false);
// Decodes %XX; '+' is not decoded, and neither is '%' without two hex digits.
std::string percent_decode(std::string_view text);

std::string hex(std::string_view bytes);   // lower case
std::string lower(std::string_view text);  // ASCII
std::string_view trim(std::string_view text);

std::string sha256(std::string_view bytes);  // 32 bytes, not hexadecimal
std::string sha256_hex(std::string_view bytes);

std::string basic_time(Moment moment);     // 20150830T123600Z
std::string extended_time(Moment moment);  // 2015-08-30T12:36:00Z
// Parse times; nullopt for another form. Times before 1950 or after 2200 become those.
// ISO 8601 with date, time and zone: 2015-08-30T12:36:00[.123](Z|+00:00).
std::optional<Moment> parse_time(std::string_view text);
// RFC 9110's preferred form: Sun, 06 Nov 1994 08:49:37 GMT.
std::optional<Moment> parse_http_date(std::string_view text);
Moment from_epoch(double seconds);
double to_epoch(Moment moment);

}  // namespace shoal::sagemaker
