#include "shoal/sagemaker/rest/encode.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include <fmt/format.h>
#include <openssl/evp.h>

#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {
namespace {

using namespace std::chrono;

bool is_unreserved(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '_' || c == '.' || c == '~';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Consumes a number of exactly `digits` digits, then `after`.
bool take(std::string_view& text, std::size_t digits, std::string_view after, int& value) {
  if (text.size() < digits + after.size()) return false;
  const std::string_view number = text.substr(0, digits);
  const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (problem != std::errc{} || end != number.data() + number.size() || value < 0) return false;
  text.remove_prefix(digits);
  if (!text.starts_with(after)) return false;
  text.remove_prefix(after.size());
  return true;
}

struct Fields {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
};

// Moment counts nanoseconds in 64 bits. Within these bounds, differences of moments fit too.
constexpr sys_seconds kFirst = sys_days(year(1950) / 1 / 1), kLast = sys_days(year(2200) / 1 / 1);

std::optional<sys_seconds> time_of(const Fields& f) {
  const year_month_day date{year(f.year), month(static_cast<unsigned>(f.month)),
                            day(static_cast<unsigned>(f.day))};
  if (!date.ok() || f.hour > 23 || f.minute > 59 || f.second > 60) return std::nullopt;
  return sys_days(date) + hours(f.hour) + minutes(f.minute) + seconds(f.second);
}

Moment bounded(sys_seconds time) { return std::clamp(time, kFirst, kLast); }

Fields fields_of(Moment moment) {
  const auto day_start = floor<days>(moment);
  const year_month_day date(day_start);
  const hh_mm_ss time(floor<seconds>(moment - day_start));
  return {static_cast<int>(date.year()),
          static_cast<int>(static_cast<unsigned>(date.month())),
          static_cast<int>(static_cast<unsigned>(date.day())),
          static_cast<int>(time.hours().count()),
          static_cast<int>(time.minutes().count()),
          static_cast<int>(time.seconds().count())};
}

}  // namespace

std::string percent_encode(std::string_view text, bool keep_slash) {
  std::string encoded;
  encoded.reserve(text.size());
  for (const char c : text) {
    if (is_unreserved(c) || (keep_slash && c == '/'))
      encoded += c;
    else
      encoded += fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

std::string percent_decode(std::string_view text) {
  std::string decoded;
  decoded.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) {
      decoded += text[i];
      continue;
    }
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

std::string hex(std::string_view bytes) {
  static constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    text += digits[static_cast<unsigned char>(c) >> 4U];
    text += digits[static_cast<unsigned char>(c) & 15U];
  }
  return text;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first);
}

std::string sha256(std::string_view bytes) {
  std::array<char, 32> digest{};
  unsigned length = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()),
                 &length, EVP_sha256(), nullptr) != 1)
    throw Error(ErrorCode::unavailable, "OpenSSL does not compute SHA-256");
  return {digest.data(), digest.size()};
}

std::string sha256_hex(std::string_view bytes) { return hex(sha256(bytes)); }

std::string basic_time(Moment moment) {
  const Fields f = fields_of(moment);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", f.year, f.month, f.day, f.hour, f.minute,
                     f.second);
}

std::string extended_time(Moment moment) {
  const Fields f = fields_of(moment);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", f.year, f.month, f.day, f.hour,
                     f.minute, f.second);
}

std::optional<Moment> parse_time(std::string_view text) {
  Fields f;
  if (!take(text, 4, "-", f.year) || !take(text, 2, "-", f.month) || !take(text, 2, "T", f.day) ||
      !take(text, 2, ":", f.hour) || !take(text, 2, ":", f.minute) || !take(text, 2, "", f.second))
    return std::nullopt;
  if (text.starts_with('.'))
    text.remove_prefix(std::min(text.find_first_not_of("0123456789", 1), text.size()));
  const auto time = time_of(f);
  if (!time) return std::nullopt;
  if (text == "Z") return bounded(*time);
  if (!text.starts_with('+') && !text.starts_with('-')) return std::nullopt;
  const int sign = text.front() == '+' ? -1 : 1;
  text.remove_prefix(1);
  int zone_hours = 0, zone_minutes = 0;
  if (!take(text, 2, text.find(':') == text.npos ? "" : ":", zone_hours) ||
      !take(text, 2, "", zone_minutes) || !text.empty())
    return std::nullopt;
  return bounded(*time + sign * (hours(zone_hours) + minutes(zone_minutes)));
}

std::optional<Moment> parse_http_date(std::string_view text) {
  static constexpr std::array<std::string_view, 12> months = {
      "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::size_t comma = text.find(", ");
  if (comma == text.npos) return std::nullopt;
  text.remove_prefix(comma + 2);
  Fields f;
  if (!take(text, 2, " ", f.day) || text.size() < 4) return std::nullopt;
  const auto named = std::find(months.begin(), months.end(), text.substr(0, 3));
  f.month = static_cast<int>(named - months.begin()) + 1;
  text.remove_prefix(4);
  if (named == months.end() || !take(text, 4, " ", f.year) || !take(text, 2, ":", f.hour) ||
      !take(text, 2, ":", f.minute) || !take(text, 2, " GMT", f.second) || !text.empty())
    return std::nullopt;
  const auto time = time_of(f);
  return time ? std::optional(bounded(*time)) : std::nullopt;
}

Moment from_epoch(double seconds) {
  const duration<double> time(std::clamp(seconds, to_epoch(kFirst), to_epoch(kLast)));
  return Moment(duration_cast<Moment::duration>(time));
}

double to_epoch(Moment moment) { return duration<double>(moment.time_since_epoch()).count(); }

}  // namespace shoal::sagemaker
