#include "shoal/collectives/select/rule.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal::collectives {
namespace {

// The operations that have algorithms, and their names.
constexpr auto kOperations = [] {
  std::array<std::pair<std::string_view, Operation>, 9> named{};
  std::size_t known = 0;
  for (const OperationTraits& row : kOperationTraits)
    if (row.name == to_string(row.base) && !is_message(row.base) && row.base != Operation::split)
      named.at(known++) = {row.name, row.base};
  return named;
}();
constexpr std::array kMemory{std::pair{"host", MemoryKind::host},
                             std::pair{"symmetric", MemoryKind::symmetric},
                             std::pair{"cuda", MemoryKind::cuda}};

template <typename Table>
auto find_word(const Table& table, std::string_view word)
    -> std::optional<decltype(table[0].second)> {
  for (const auto& [name, value] : table)
    if (word == name) return value;
  return std::nullopt;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const auto first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find_first_of(separators);
    parts.push_back(trimmed(text.substr(0, end)));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Parses one field after another and writes the error messages.
class RuleParser {
 public:
  RuleParser(std::string_view text, std::string_view source, int number)
      : text_(text), source_(source), number_(number) {}

  Rule parse() {
    bool scored = false, named = false;
    for (const std::string_view field : split(text_, ":")) {
      field_ = field;
      ++place_;
      if (field.empty()) refuse("is empty", "leave it out");
      const char first = field[0];
      if (first == '[') {
        once(ranks_, "ranks");
        rule_.ranks = whole_span(field, ']');
      } else if (first == '{') {
        once(nodes_, "nodes");
        rule_.nodes = whole_span(field, '}');
      } else if (first == '@' || first == '^') {
        once(named, "algorithm");
        read_algorithm(field);
        if (first == '^') once(scored, "score");
      } else if (std::isdigit(static_cast<unsigned char>(first)) || field == "inf") {
        if (field.find('-') != std::string_view::npos) {
          once(bytes_, "byte range");
          rule_.bytes = byte_span(field);
        } else {
          once(scored, "score");
          rule_.score = score(field);
        }
      } else {
        read_words(field);
      }
    }
    if (!named && !scored) refuse("says neither algorithm nor score", "add @ring or a score");
    return rule_;
  }

 private:
  [[noreturn]] void refuse(std::string_view problem, std::string_view remedy) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: rule {} '{}', field {} '{}' {}", source_, number_,
                            shortened(text_), place_, shortened(field_), problem),
                std::string(remedy));
  }
  void once(bool& seen, std::string_view what) const {
    if (seen) refuse(fmt::format("is a second {}", what), "write another rule");
    seen = true;
  }

  std::int64_t number(std::string_view text, bool bytes) const {
    if (text == "inf") return Span::kEnd;
    std::int64_t value = 0;
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
    std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
    int shift = 0;
    if (bytes && unit.size() == 1) {
      const auto at = std::string_view("kmgt").find(
          static_cast<char>(std::tolower(static_cast<unsigned char>(unit[0]))));
      if (at != std::string_view::npos) {
        shift = 10 * (static_cast<int>(at) + 1);
        unit = {};
      }
    }
    if (problem != std::errc{} || value < 0 || !unit.empty() || value > (Span::kEnd >> shift))
      refuse(fmt::format("has no number '{}'", shortened(text)),
             bytes ? "write bytes, with k, m or g if you like, or inf" : "write a number or inf");
    return value << shift;
  }

  Span byte_span(std::string_view text) const {
    const auto dash = text.find('-');
    const Span span{number(text.substr(0, dash), true), number(text.substr(dash + 1), true)};
    if (span.low >= span.high) refuse("is an empty range", "write the smaller number first");
    return span;
  }
  Span whole_span(std::string_view text, char close) const {
    if (text.back() != close) refuse(fmt::format("does not end with '{}'", close), "close it");
    text = text.substr(1, text.size() - 2);
    const auto dash = text.find('-');
    const std::int64_t low = number(text.substr(0, dash), false);
    const std::int64_t last =
        dash == std::string_view::npos ? low : number(text.substr(dash + 1), false);
    if (low > last) refuse("is an empty range", "write the smaller number first");
    return {low, last == Span::kEnd ? last : last + 1};
  }
  double score(std::string_view text) const {
    if (text == "inf") return kAlways;
    const auto value = parse_number<double>(text);
    if (!value || !std::isfinite(*value))
      refuse("is no score", "write a number or inf; a byte range is written 0-4k");
    return *value;
  }

  void read_algorithm(std::string_view field) {
    const bool excludes = field[0] == '^' || field.starts_with("@^");
    std::string_view name = field.substr(field.starts_with("@^") ? 2 : 1);
    const auto slash = name.find('/');
    if (slash != std::string_view::npos) {
      rule_.slice = number(name.substr(slash + 1), true);
      if (rule_.slice == 0 || rule_.slice == Span::kEnd || excludes)
        refuse("cannot have that message size", "write @ring/256k, or leave it out");
      name = name.substr(0, slash);
    }
    if (excludes) rule_.score = 0;
    std::vector<std::string> names;
    for (const Algorithm algorithm : all_algorithms()) {
      if (name == to_string(algorithm)) rule_.algorithm = algorithm;
      names.push_back(fmt::format("@{}", to_string(algorithm)));
    }
    if (rule_.algorithm == Algorithm::automatic)
      refuse("is not an algorithm", names_there_are(fmt::format("@{}", name), names));
  }

  void read_words(std::string_view field) {
    for (const std::string_view word : split(field, ",")) {
      if (const auto operation = find_word(kOperations, word)) {
        rule_.operations.push_back(*operation);
        continue;
      }
      if (const auto memory = find_word(kMemory, word)) {
        rule_.memory.push_back(*memory);
        continue;
      }
      std::vector<std::string> names;
      for (const auto& [name, value] : kOperations) names.emplace_back(name);
      for (const auto& [name, value] : kMemory) names.emplace_back(name);
      std::string meant = names_there_are(word, names);
      for (const Algorithm algorithm : all_algorithms())
        if (word == to_string(algorithm)) meant = fmt::format("did you mean @{}?", word);
      refuse(fmt::format("has '{}', neither operation nor memory", shortened(word)), meant);
    }
  }

  std::string_view text_, source_, field_;
  int number_ = 0, place_ = 0;
  bool ranks_ = false, nodes_ = false, bytes_ = false;
  Rule rule_;
};

std::string in_bytes(std::int64_t bytes) {
  if (bytes == Span::kEnd) return "inf";
  constexpr std::string_view kUnits = "tgmk";
  for (std::size_t i = 0; i < kUnits.size(); ++i) {
    const int shift = 40 - 10 * static_cast<int>(i);
    if (bytes > 0 && bytes % (std::int64_t{1} << shift) == 0)
      return fmt::format("{}{}", bytes >> shift, kUnits[i]);
  }
  return fmt::format("{}", bytes);
}

std::string whole(const Span& span, char open, char close) {
  if (span.high != Span::kEnd && span.high == span.low + 1)
    return fmt::format("{}{}{}", open, span.low, close);
  return fmt::format("{}{}-{}{}", open, span.low,
                     span.high == Span::kEnd ? "inf" : fmt::format("{}", span.high - 1), close);
}

}  // namespace

std::vector<Rule> parse_rules(std::string_view text, std::string_view source) {
  std::vector<Rule> rules;
  int number = 0;
  for (std::string_view line : split(text, "\n"))
    for (const std::string_view rule : split(line.substr(0, line.find("//")), "#")) {
      if (rule.empty()) continue;
      rules.push_back(RuleParser(rule, source, ++number).parse());
    }
  return rules;
}

std::string to_string(const Rule& rule) {
  std::vector<std::string> fields;
  const auto words = [&](const auto& table, const auto& values) {
    std::vector<std::string_view> names;
    for (const auto value : values)
      for (const auto& [name, meaning] : table)
        if (meaning == value) names.emplace_back(name);
    if (!names.empty()) fields.push_back(fmt::format("{}", fmt::join(names, ",")));
  };
  words(kOperations, rule.operations);
  if (rule.bytes != Span{})
    fields.push_back(in_bytes(rule.bytes.low) + "-" + in_bytes(rule.bytes.high));
  words(kMemory, rule.memory);
  if (rule.ranks != Span{}) fields.push_back(whole(rule.ranks, '[', ']'));
  if (rule.nodes != Span{}) fields.push_back(whole(rule.nodes, '{', '}'));
  fields.push_back(std::isinf(rule.score) ? "inf" : fmt::format("{}", rule.score));
  if (rule.algorithm != Algorithm::automatic)
    fields.push_back(rule.slice > 0
                         ? fmt::format("@{}/{}", to_string(rule.algorithm), in_bytes(rule.slice))
                         : fmt::format("@{}", to_string(rule.algorithm)));
  return fmt::format("{}", fmt::join(fields, ":"));
}

}  // namespace shoal::collectives
