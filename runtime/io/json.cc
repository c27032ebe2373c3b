#include "shoal/runtime/io/json.h"

#include <algorithm>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/text_encoding.h"

namespace shoal {
namespace {

constexpr int kMaxDepth = 64;

// Builds the document from nlohmann's parser events, as nlohmann's own builder does, and checks it
// at the same time. nlohmann's parser callback could check it too, but takes quadratic time.
template <typename Json>
class DocumentBuilder {
 public:
  // Names that nlohmann's parser expects of a builder.
  using number_integer_t = typename Json::number_integer_t;
  using number_unsigned_t = typename Json::number_unsigned_t;
  using number_float_t = typename Json::number_float_t;
  using string_t = typename Json::string_t;
  using binary_t = typename Json::binary_t;

  // `quiet`: for invalid text, parsing ends without an exception, which would take longer than
  // parsing a short text.
  DocumentBuilder(Json& root, std::string_view text, std::string_view name, int max_depth,
                  JsonIntegers integers, bool quiet = false)
      : root_(root),
        text_(text),
        name_(name),
        max_depth_(static_cast<std::size_t>(max_depth)),
        integers_(integers),
        quiet_(quiet) {}

  bool null() { return add(nullptr) != nullptr; }
  bool boolean(bool value) { return add(value) != nullptr; }
  bool number_integer(number_integer_t value) { return add(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) { return add(value) != nullptr; }
  bool number_float(number_float_t value, const string_t& text) {
    if (integers_ == JsonIntegers::exact && text.find_first_of(".eE") == text.npos)
      throw Error(
          ErrorCode::corrupt_data,
          fmt::format("{}: the integer {} has more than 64 bits", name_, shortened(text, 80)),
          "it would be saved as another number: shorten it, or remove the field");
    return add(value) != nullptr;
  }
  bool string(string_t& value) { return add(std::move(value)) != nullptr; }
  bool binary(binary_t&) { SHOAL_ASSERT(false); }  // JSON text has no binary values

  bool start_object(std::size_t) { return start(Json::value_t::object); }
  bool start_array(std::size_t) { return start(Json::value_t::array); }
  bool end_array() {
    open_.pop_back();
    return true;
  }
  bool end_object() {
    if constexpr (kOrdered) keys_.pop_back();
    return end_array();
  }

  bool key(string_t& key) {
    auto& object = open_.back()->template get_ref<typename Json::object_t&>();
    bool is_new = true;
    if constexpr (kOrdered) {
      // nlohmann's emplace() would search all keys first.
      is_new = keys_.back().insert(key).second;
      if (is_new) member_ = &object.emplace_back(key, Json()).second;
    } else {
      const auto [place, added] = object.emplace(key, Json());
      is_new = added;
      member_ = &place->second;
    }
    if (!is_new && quiet_) return false;
    if (!is_new)
      throw_error(ErrorCode::corrupt_data, "{}: the key '{}' stands twice in one object", name_,
                  shortened(key));
    return true;
  }

  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception& problem) {
    if (quiet_) return false;
    // At a NUL byte, nlohmann reports that the text has ended.
    if (const std::size_t nul = text_.find('\0'); nul != text_.npos && nul + 1 == at)
      throw_error(ErrorCode::corrupt_data, "{}: a NUL byte within the JSON document, at byte {}",
                  name_, nul);
    const std::string_view rest =
        text_.substr(std::min(at - std::min<std::size_t>(at, 1), text_.size()));
    for (const std::string_view number : {"NaN", "Infinity"})
      if (rest.starts_with(number))
        throw Error(ErrorCode::corrupt_data,
                    fmt::format("{}: {} at byte {}, which Python writes but JSON does not have",
                                name_, number, at - 1),
                    "write null in its place, or leave the field out");
    // Strips the number from "[json.exception.parse_error.101] parse error at line 1, column 2:
    // ...".
    std::string_view what = problem.what();
    if (const auto end = what.find("] "); end != what.npos) what.remove_prefix(end + 2);
    throw Error(ErrorCode::corrupt_data, fmt::format("{}: {}", name_, shortened(what)),
                what.find("ill-formed UTF-8") == what.npos
                    ? ""
                    : "convert the file: iconv -f ITS-ENCODING -t UTF-8 (ISO-8859-1, most often)");
  }

 private:
  static constexpr bool kOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  template <typename Value>
  Json* add(Value&& value) {
    progress::made_of(1);
    if (open_.empty()) {
      root_ = Json(std::forward<Value>(value));
      return &root_;
    }
    if (open_.back()->is_array()) {
      auto& array = open_.back()->template get_ref<typename Json::array_t&>();
      return &array.emplace_back(std::forward<Value>(value));
    }
    *member_ = Json(std::forward<Value>(value));
    return member_;
  }

  bool start(typename Json::value_t kind) {
    if (open_.size() >= max_depth_ && quiet_) return false;
    if (open_.size() >= max_depth_)
      throw_error(ErrorCode::corrupt_data, "{}: JSON nested deeper than {}", name_, max_depth_);
    open_.push_back(add(kind));
    if constexpr (kOrdered)
      if (kind == Json::value_t::object) keys_.emplace_back();
    return true;
  }

  Json& root_;
  std::string_view text_, name_;
  std::size_t max_depth_;
  JsonIntegers integers_;
  bool quiet_;
  std::vector<Json*> open_;                            // arrays and objects that are not closed yet
  Json* member_ = nullptr;                             // value of the key that was read last
  std::vector<std::set<string_t, std::less<>>> keys_;  // keys of open objects, if they are ordered
};

void check_text(std::string_view text, std::string_view name) {
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    throw_error(ErrorCode::corrupt_data, "{} is empty, where a JSON document is expected", name);
  const std::string_view encoding = wide_encoding(text);
  if (encoding.empty()) return;
  throw Error(ErrorCode::corrupt_data, fmt::format("{} is {}, and JSON is UTF-8", name, encoding),
              fmt::format("convert the file: iconv -f {} -t UTF-8", encoding));
}

template <typename Json>
Json parse(std::string_view text, std::string_view name, int max_depth,
           JsonIntegers integers = JsonIntegers::any) {
  check_text(text, name);
  Json root;
  DocumentBuilder<Json> builder(root, text, name, max_depth, integers);
  Json::sax_parse(text, &builder);
  // The parser stops at a NUL byte after the document and ignores the rest.
  if (const std::size_t nul = text.find('\0'); nul != text.npos)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{}: a NUL byte after the JSON document, at byte {}", name, nul),
                "remove what follows the document");
  return root;
}

template <typename Json>
std::optional<Json> parse_if_valid(std::string_view text) {
  Json root;
  DocumentBuilder<Json> builder(root, text, "", kMaxDepth, JsonIntegers::any, true);
  if (!Json::sax_parse(text, &builder) || text.find('\0') != text.npos) return std::nullopt;
  return root;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view name, int max_depth) {
  return parse<nlohmann::json>(text, name, max_depth);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view name,
                                          JsonIntegers integers) {
  return parse<nlohmann::ordered_json>(text, name, kMaxDepth, integers);
}

nlohmann::json read_json_file(const std::string& path, JsonIntegers integers) {
  return parse<nlohmann::json>(read_text_file(path), path, kMaxDepth, integers);
}

std::optional<nlohmann::json> json_if_valid(std::string_view text) {
  return parse_if_valid<nlohmann::json>(text);
}

std::optional<nlohmann::ordered_json> ordered_json_if_valid(std::string_view text) {
  return parse_if_valid<nlohmann::ordered_json>(text);
}

}  // namespace shoal
