#include "shoal/train/report/html.h"

#include <cstdint>

#include <fmt/format.h>

namespace shoal::report {
namespace {

// Bytes of the well-formed UTF-8 character at `at`; 0 if there is none (Unicode, table 3-7).
std::size_t character_bytes(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> std::uint8_t {
    return at + i < text.size() ? static_cast<std::uint8_t>(text[at + i]) : 0;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const std::uint8_t first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0;
    const bool surrogate = first == 0xED && second > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90;
    const bool beyond = first == 0xF4 && second > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !beyond ? 4 : 0;
  }
  return 0;
}

constexpr const char* kReplacement = "\xEF\xBF\xBD";

}  // namespace

std::string escape(std::string_view text) {
  std::string safe;
  safe.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = character_bytes(text, at);
    const char c = text[at];
    if (bytes == 0 || (bytes == 1 && (c == '\x7F' || (c >= 0 && c < ' ' && c != '\n'))))
      safe += kReplacement;
    else if (c == '&')
      safe += "&amp;";
    else if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '"')
      safe += "&quot;";
    else if (c == '\'')
      safe += "&#39;";
    else
      safe += text.substr(at, bytes);
    at += bytes == 0 ? 1 : bytes;
  }
  return safe;
}

std::string Table::html() const {
  const auto row = [&](const char* tag, const std::vector<std::string>& cells) {
    std::string text = "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i)
      text +=
          fmt::format("<{0}{1}>{2}</{0}>", tag, i > 0 && !all_text ? " class=\"n\"" : "", cells[i]);
    return text + "</tr>\n";
  };
  std::string text =
      fmt::format("<div class=\"scroll\"><table class=\"{}\">\n", all_text ? "text"
                                                                  : bars   ? "bars"
                                                                           : "numbers");
  if (!head.empty()) text += "<thead>" + row("th", head) + "</thead>\n";
  text += "<tbody>\n";
  for (const auto& cells : rows) text += row("td", cells);
  return text + "</tbody></table></div>\n";
}

std::string swatch(int colour, bool dashed, bool area) {
  if (area)
    return fmt::format(
        "<svg class=\"sw\" viewBox=\"0 0 12 12\" aria-hidden=\"true\"><rect width=\"12\" "
        "height=\"12\" rx=\"2\" class=\"f{}\"/></svg>",
        colour);
  return fmt::format(
      "<svg class=\"sw l\" viewBox=\"0 0 24 12\" aria-hidden=\"true\"><path d=\"M1 6h22\" "
      "class=\"c c{}{}\"/></svg>",
      colour, dashed ? " dash" : "");
}

}  // namespace shoal::report
