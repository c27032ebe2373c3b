#include "shoal/sagemaker/job/python_text.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "shoal/runtime/io/ordered_fields.h"

namespace shoal::sagemaker {
namespace {

using Json = nlohmann::ordered_json;

// fmt's shortest form equals repr() except for whole numbers.
std::string python_float(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string quoted(const std::string& text) {
  return Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
}

struct Style {
  std::string_view comma, colon;
  bool sorted;
};

std::string write(const Json& value, const Style& style) {
  if (value.is_number_float()) return python_float(value.get<double>());
  if (value.is_string()) return quoted(value.get<std::string>());
  if (!value.is_structured()) return value.dump();
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) {
      if (!text.empty()) text += style.comma;
      text += write(item, style);
    }
    return "[" + text + "]";
  }
  const auto add = [&](std::string_view key, const Json& item) {
    if (!text.empty()) text += style.comma;
    text += quoted(std::string(key));
    text += style.colon;
    text += write(item, style);
  };
  if (style.sorted)
    for (const auto& [key, item] : sorted_fields(value)) add(key, *item);
  else
    for (const auto& [key, item] : value.items()) add(key, item);
  return "{" + text + "}";
}

// repr() of a string. Of the escapes, only quotes, backslashes, \n, \t and \r are implemented.
std::string python_quoted(const std::string& text) {
  const bool single = text.find('\'') == std::string::npos || text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == '\\' || c == quote) out += '\\';
    if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else
      out += c;
  }
  return out + quote;
}

std::string python_repr_of(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_string()) return python_quoted(value.get<std::string>());
  if (value.is_number_float()) return python_float(value.get<double>());
  if (!value.is_structured()) return value.dump();
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) text += (text.empty() ? "" : ", ") + python_repr_of(item);
    return "[" + text + "]";
  }
  for (const auto& [key, item] : value.items())
    text += (text.empty() ? "" : ", ") + python_quoted(key) + ": " + python_repr_of(item);
  return "{" + text + "}";
}

}  // namespace

std::string python_json(const Json& value) {
  return write(value, {.comma = ", ", .colon = ": ", .sorted = false});
}

std::string compact_python_json(const Json& value) {
  return write(value, {.comma = ",", .colon = ":", .sorted = true});
}

std::string python_str(const Json& value) {
  return value.is_string() ? value.get<std::string>() : python_repr_of(value);
}

}  // namespace shoal::sagemaker
