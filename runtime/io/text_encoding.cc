#include "shoal/runtime/io/text_encoding.h"

#include <array>
#include <cstddef>

#include "shoal/runtime/base/error.h"

namespace shoal {

std::string_view wide_encoding(std::string_view text) {
  using namespace std::string_view_literals;
  if (text.starts_with("\xff\xfe\0\0"sv) || text.starts_with("\0\0\xfe\xff"sv)) return "UTF-32";
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")) return "UTF-16";
  constexpr std::size_t kLooksAt = 4'096;
  const std::size_t pairs = text.substr(0, kLooksAt).size() / 2;
  if (pairs < 2) return {};
  std::array<std::size_t, 2> zeros = {0, 0};
  for (std::size_t i = 0; i < 2 * pairs; ++i)
    if (text[i] == '\0') ++zeros[i % 2];
  // In UTF-16, nearly every pair of bytes of Latin text has a zero; in Cyrillic text, only spaces
  // and line ends do.
  const auto is_at = [&](std::size_t place) {
    const std::size_t here = zeros[place], others = zeros[1 - place];
    return others * 16 <= here && (here * 2 > pairs || (here >= 8 && here * 16 >= pairs));
  };
  return is_at(1) ? "UTF-16LE" : is_at(0) ? "UTF-16BE" : "";
}

void refuse_unmarked_utf16(std::string_view text, std::string_view name) {
  const std::string_view encoding = wide_encoding(text);
  if (encoding != "UTF-16LE" && encoding != "UTF-16BE") return;
  throw Error(
      ErrorCode::corrupt_data,
      fmt::format("{} has zero bytes among its characters: it looks like {}", name, encoding),
      fmt::format("convert the file: iconv -f {} -t UTF-8", encoding));
}

}  // namespace shoal
