#include "shoal/train/data/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include <unicode/regex.h>
#include <unicode/utext.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

// Costs of a search for the next match and of a saved backtracking position, in units of Work.
struct PatternCosts {
  std::int64_t search = 2, position = 3;
};

}  // namespace

struct SplitPattern::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
  std::string text, source;  // for messages
  PatternCosts costs;
};

namespace {

using Range = SplitRange;

constexpr std::size_t kLongestPattern = 1'024, kShownPattern = 120;
constexpr std::int64_t kMostGroups = 64;
// ICU saves positions in a stack that doubles: 4 MB of positions take 8 MB, and 12 MB while it
// grows.
constexpr std::int32_t kMostPositionBytes = 4'000'000;

[[noreturn]] void refuse(const std::string& source, std::string_view what) {
  throw Error(
      ErrorCode::unavailable,
      fmt::format("{}: the pattern holds {}, which is not supported", source, shortened(what)),
      "use GPT-2's pattern, or one of literals, classes, \\p{..}, \\s, \\d, groups and "
      "quantifiers");
}

// ICU's spelling of Oniguruma's '\' and `letter`; null if it is the same or unsupported.
const char* icu_escape(char letter) {
  switch (letter) {
    case 's':
      return "\\p{White_Space}";
    case 'S':
      return "\\P{White_Space}";
    case 'w':
      return "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u00B2\\u00B3\\u00B9\\u00BC-\\u00BE]";
    case 'W':
      return "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\u00B2\\u00B3\\u00B9\\u00BC-\\u00BE]";
    case 'Z':
      return "(?=\\n?\\z)";
    default:
      return nullptr;
  }
}

// The same for single characters outside a set. In Oniguruma, only "\n" ends a line.
const char* icu_anchor(char c) {
  switch (c) {
    case '^':
      return "(?:\\A|(?<=\\n)(?!\\z))";
    case '$':
      return "(?=\\n|\\z)";
    case '.':
      return "[^\\n]";
    default:
      return nullptr;
  }
}

// A search may enter all groups, so its cost grows with them. A saved position costs a copy of the
// groups, and the comparisons until the next position is saved: at most the longest run of
// characters without | * + ? { (.
PatternCosts costs_of(std::string_view pattern, const std::string& source) {
  std::int64_t groups = 0, straight = 0, longest = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\') {
      const std::string_view name = pattern.substr(i + 1, 2);
      const bool named = name == "p{" || name == "P{";
      i = named ? std::min(pattern.find('}', i), pattern.size()) : i + 1;
    } else if (c == '[') {
      while (i < pattern.size() && pattern[i] != ']') i += pattern[i] == '\\' ? 2 : 1;
    } else if (std::string_view("|*+?{(").find(c) != std::string_view::npos) {
      if (c == '(') ++groups;
      straight = 0;
      continue;
    }
    longest = std::max(longest, ++straight);
  }
  if (groups > kMostGroups)
    refuse(source, fmt::format("{} groups, more than {}", groups, kMostGroups));
  // A longer run of characters reads several pieces of text, which watch() counts.
  constexpr std::int64_t kLongest = 32;
  return {.search = 2 + 8 * groups,
          .position = 3 + std::max(groups / 2, std::min<std::int64_t>(groups, 1)) +
                      std::min(longest, kLongest) / 4};
}

// Adds up what ICU takes to compile the classes of a pattern. A unit is one \p{..}, 0.1 ms. In a
// group "(?i:", ICU adds the other cases of every character of a class.
class ClassCosts {
 public:
  explicit ClassCosts(const std::string& source) : source_(source) {}

  void open_group(bool ignores_case) {
    ignores_case_.push_back(ignores_case_.back() || ignores_case);
  }
  void close_group() {
    if (ignores_case_.size() > 1) ignores_case_.pop_back();
  }
  void add_property() { add(ignores_case_.back() ? 12 : 1); }
  void add_word() { add(ignores_case_.back() ? 32 : 4); }
  // A character of a set that may end a range of many thousand characters.
  void add_beyond_ascii() { add(ignores_case_.back() ? kMost + 1 : 0); }

 private:
  static constexpr std::int64_t kMost = 64;

  void add(std::int64_t units) {
    sum_ += units;
    if (sum_ <= kMost) return;
    refuse(source_, ignores_case_.back()
                        ? "more classes or characters beyond ASCII in '(?i:' than compile in time"
                        : "more classes than compile in time");
  }

  const std::string& source_;
  std::vector<bool> ignores_case_{false};
  std::int64_t sum_ = 0;
};

// Rewrites syntax that ICU spells differently (Oniguruma's \s is White_Space, ICU's is not).
// Rejects syntax that ICU would interpret differently.
std::string to_icu(std::string_view pattern, const std::string& source) {
  std::string icu;
  ClassCosts classes(source);
  int set_depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      if (next == 'w' || next == 'W') classes.add_word();
      if (next == 'x' && set_depth > 0) classes.add_beyond_ascii();
      if (const char* spelling = icu_escape(next)) {
        icu += spelling;
      } else if ((next == 'p' || next == 'P') && pattern.substr(i + 2).starts_with('{')) {
        const std::size_t close = std::min(pattern.find('}', i), pattern.size() - 1);
        icu += pattern.substr(i, close + 1 - i);
        classes.add_property();
        i = close;
        continue;
      } else if (std::isalnum(static_cast<unsigned char>(next)) == 0 ||
                 std::string_view("dDrntfxAz").find(next) != std::string_view::npos) {
        icu += {c, next};
      } else {
        refuse(source, fmt::format("'\\{}'", next));
      }
      ++i;
      continue;
    }
    if (c == '[' && next == ':') refuse(source, "a POSIX bracket '[:'");
    if (c == '[') ++set_depth;
    if (c == ']' && set_depth > 0) --set_depth;
    if (set_depth > 0 && ((c == '&' && next == '&') || (c == '-' && next == '-')))
      refuse(source, fmt::format("the set operation '{}{}'", c, next));
    if (const char* spelling = set_depth == 0 ? icu_anchor(c) : nullptr) {
      icu += spelling;
      continue;
    }
    if (set_depth == 0 && c == '}' && next == '+') refuse(source, "'}+'");
    if (set_depth > 0 && static_cast<unsigned char>(c) >= 0x80) classes.add_beyond_ascii();
    if (set_depth == 0 && c == '(') classes.open_group(pattern.substr(i + 1).starts_with("?i:"));
    if (set_depth == 0 && c == ')') classes.close_group();
    if (c == '(' && next == '?') {
      const std::string_view rest = pattern.substr(i + 2);
      bool known = false;
      for (const std::string_view group : {":", "=", "!", "<=", "<!", ">", "i:"})
        known = known || rest.starts_with(group);
      if (!known) refuse(source, fmt::format("the group '(?{}'", rest.substr(0, 2)));
    }
    icu += c;
  }
  return icu;
}

// ICU counts down the backtracking positions that it saves, and calls back at each 10,000th. It
// restarts the count for each text, so work on short texts would not be seen; this function gives
// access to the counter. It is private, but an explicit template instantiation may name it.
std::int32_t& ticks_to_next(icu::RegexMatcher& matcher);
template <std::int32_t icu::RegexMatcher::* Counter>
struct TickCounter {
  friend std::int32_t& ticks_to_next(icu::RegexMatcher& matcher) { return matcher.*Counter; }
};
template struct TickCounter<&icu::RegexMatcher::fTickCounter>;

constexpr std::int64_t kUnitsOfARun = 60, kUnitsOfAPiece = 8, kTicks = 10'000;

// Makes `input` count the pieces of text that it provides, and their characters.
void watch(UText& input) {
  static const UTextFuncs plain = *input.pFuncs;
  static const UTextFuncs counted = [] {
    UTextFuncs functions = plain;
    functions.access = [](UText* text, std::int64_t index, UBool forward) {
      const UBool found = plain.access(text, index, forward);
      Work::spend(kUnitsOfAPiece + text->chunkLength);
      return found;
    };
    return functions;
  }();
  input.pFuncs = &counted;
}

// Makes `matcher` count every 10,000 saved positions, and stop there or at a start position if the
// work is too much.
void watch(icu::RegexMatcher& matcher, const PatternCosts& costs, UErrorCode& status) {
  matcher.setMatchCallback(
      [](const void* of, std::int32_t) -> UBool {
        Work::spend(kTicks * static_cast<const PatternCosts*>(of)->position);
        return !Work::is_done();
      },
      &costs, status);
  matcher.setFindProgressCallback(
      [](const void*, std::int64_t) -> UBool { return !Work::is_done(); }, nullptr, status);
}

[[noreturn]] void give_up(const SplitPattern::Compiled& compiled, std::string_view text,
                          UErrorCode status) {
  const bool late = status == U_REGEX_STOPPED_BY_CALLER, deep = status == U_REGEX_STACK_OVERFLOW;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the pattern '{}' {} on {}", compiled.source,
                          compiled.text.substr(0, kShownPattern),
                          late   ? "takes too many steps"
                          : deep ? "needs too much memory"
                                 : fmt::format("failed ({})", u_errorName(status)),
                          Work::place(text.size())),
              late || deep
                  ? "simplify the pattern: repetitions within repetitions take time without bound"
                  : "");
}

// As with Hugging Face's regular expressions, an empty literal matches between all characters.
void match_between_characters(std::string_view text, std::vector<Range>& ranges) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at + unicode::decode(text.data() + at).bytes;
    ranges.push_back({at, at, true});
    ranges.push_back({at, end, false});
    at = end;
  }
  if (!text.empty()) ranges.push_back({text.size(), text.size(), true});
}

void match_literal(std::string_view text, std::string_view literal, std::vector<Range>& ranges) {
  if (literal.empty()) return match_between_characters(text, ranges);
  std::size_t done = 0;
  for (;;) {
    const std::size_t begin = text.find(literal, done);
    if (begin == std::string_view::npos) break;
    if (done < begin) ranges.push_back({done, begin, false});
    done = begin + literal.size();
    ranges.push_back({begin, done, true});
  }
  if (done < text.size()) ranges.push_back({done, text.size(), false});
}

// Hugging Face's NormalizedString::split for each behavior.
std::vector<Range> merged(const std::vector<Range>& ranges, SplitBehavior behavior) {
  std::vector<Range> result;
  bool previous_matched = false;
  switch (behavior) {
    case SplitBehavior::isolated:
      return ranges;
    case SplitBehavior::removed:
      for (const Range& range : ranges)
        if (!range.matched) result.push_back(range);
      return result;
    case SplitBehavior::contiguous:
      for (const Range& range : ranges) {
        if (!result.empty() && range.matched == previous_matched)
          result.back().end = range.end;
        else
          result.push_back(range);
        previous_matched = range.matched;
      }
      return result;
    case SplitBehavior::merged_with_previous:
      for (const Range& range : ranges) {
        if (range.matched && !previous_matched && !result.empty())
          result.back().end = range.end;
        else
          result.push_back(range);
        previous_matched = range.matched;
      }
      return result;
    case SplitBehavior::merged_with_next:
      for (auto range = ranges.rbegin(); range != ranges.rend(); ++range) {
        if (range->matched && !previous_matched && !result.empty())
          result.back().begin = range->begin;
        else
          result.push_back(*range);
        previous_matched = range->matched;
      }
      return {result.rbegin(), result.rend()};
  }
  return result;
}

}  // namespace

void append_pieces(std::string_view text, const std::vector<SplitRange>& ranges,
                   SplitBehavior behavior, std::vector<std::string_view>& pieces) {
  const auto add = [&](const std::vector<Range>& of) {
    for (const Range& range : of)
      if (range.begin < range.end)
        pieces.push_back(text.substr(range.begin, range.end - range.begin));
  };
  if (behavior == SplitBehavior::isolated) return add(ranges);
  add(merged(ranges, behavior));
}

bool is_gpt2_pattern(std::string_view pattern) {
  constexpr std::array<std::string_view, 2> kSpellings = {
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
      R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)"};
  return pattern == kSpellings[0] || pattern == kSpellings[1];
}

SplitPattern SplitPattern::regex(std::string_view pattern, SplitBehavior behavior, bool invert,
                                 const std::string& source) {
  // ICU compiles a class such as \p{L} as slowly as thousands of letters.
  if (pattern.size() > kLongestPattern)
    refuse(source, fmt::format("{} bytes, more than {}", pattern.size(), kLongestPattern));
  // Only the first character of a run of white space can begin a match. The lookbehind avoids
  // scanning the run again from each of its characters.
  constexpr std::string_view kBlanksAtEnd = R"(\s+$)", kOnceARun = R"((?<!\s)\s+$)";
  const std::string icu_pattern = to_icu(pattern == kBlanksAtEnd ? kOnceARun : pattern, source);
  UErrorCode status = U_ZERO_ERROR;
  UParseError place;
  SplitPattern split;
  auto compiled = std::make_shared<Compiled>();
  compiled->text = pattern;
  compiled->costs = costs_of(pattern, source);
  compiled->source = source;
  compiled->pattern.reset(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(icu_pattern), place, status));
  if (U_FAILURE(status))
    throw_error(ErrorCode::corrupt_data, "{}: the pattern '{}' does not compile: {} at {}", source,
                shortened(pattern), u_errorName(status), place.offset);
  split.compiled_ = std::move(compiled);
  split.behavior_ = behavior;
  split.invert_ = invert;
  return split;
}

SplitPattern SplitPattern::literal(std::string text, SplitBehavior behavior, bool invert) {
  SplitPattern split;
  split.literal_ = std::move(text);
  split.behavior_ = behavior;
  split.invert_ = invert;
  return split;
}

struct SplitPattern::Run::Matcher {
  explicit Matcher(const Compiled& compiled_in) : compiled(compiled_in) {
    matcher.reset(compiled.pattern->matcher(status));
    if (matcher) matcher->setStackLimit(kMostPositionBytes, status);
    if (matcher && U_SUCCESS(status)) watch(*matcher, compiled.costs, status);
  }
  ~Matcher() { utext_close(input); }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  void match(std::string_view text, std::vector<SplitRange>& ranges) {
    const Work work(text.size());
    if (std::exchange(is_new, false)) Work::spend(kUnitsOfARun);
    input = utext_openUTF8(input, text.data(), static_cast<std::int64_t>(text.size()), &status);
    if (U_SUCCESS(status) && matcher) {
      watch(*input);
      matcher->reset(input);
      find_all(text, ranges);
      Work::spend((kTicks - ticks_to_next(*matcher)) * compiled.costs.position);
      if (Work::is_done()) status = U_REGEX_STOPPED_BY_CALLER;
    }
    if (U_FAILURE(status)) give_up(compiled, text, status);
  }
  void find_all(std::string_view text, std::vector<SplitRange>& ranges) {
    std::size_t done = 0;
    bool any = false;
    while (!Work::is_done() && matcher->find(status) && U_SUCCESS(status)) {
      Work::spend(compiled.costs.search);
      const auto begin = static_cast<std::size_t>(matcher->start64(status));
      const auto end = static_cast<std::size_t>(matcher->end64(status));
      if (done < begin) ranges.push_back({done, begin, false});
      if (begin < end || done < begin || !any) ranges.push_back({begin, end, true});
      done = end;
      any = true;
    }
    if (done < text.size()) ranges.push_back({done, text.size(), false});
  }

  const Compiled& compiled;
  UErrorCode status = U_ZERO_ERROR;
  std::unique_ptr<icu::RegexMatcher> matcher;
  UText* input = nullptr;
  bool is_new = true;
};

SplitPattern::Run::Run(const SplitPattern& pattern) : pattern_(pattern) {
  if (pattern.compiled_) matcher_ = std::make_unique<Matcher>(*pattern.compiled_);
}
SplitPattern::Run::~Run() = default;

const std::vector<SplitRange>& SplitPattern::Run::ranges(std::string_view text) {
  ranges_.clear();
  if (text.empty()) return ranges_;
  if (matcher_)
    matcher_->match(text, ranges_);
  else
    match_literal(text, pattern_.literal_, ranges_);
  if (pattern_.invert_)
    for (SplitRange& range : ranges_) range.matched = !range.matched;
  return ranges_;
}

void SplitPattern::Run::split(std::string_view text, std::vector<std::string_view>& pieces) {
  append_pieces(text, ranges(text), pattern_.behavior_, pieces);
}

}  // namespace shoal
