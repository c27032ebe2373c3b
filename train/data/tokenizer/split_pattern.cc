#include "shoal/train/data/tokenizer/split_pattern.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <unicode/regex.h>
#include <unicode/utext.h>

#include "shoal/runtime/base/error.h"

namespace shoal {

struct SplitPattern::Compiled {
  std::unique_ptr<icu::RegexPattern> pattern;
  std::string text, source;  // for messages
};

namespace {

using Range = SplitRange;

constexpr std::size_t kLongestPattern = 1'024, kShownPattern = 120;

[[noreturn]] void refuse(const std::string& source, std::string_view what) {
  throw Error(ErrorCode::unavailable,
              fmt::format("{}: the pattern holds {}, which is not supported", source, what),
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

// The same for characters that stand alone outside a set. In Oniguruma, only "\n" ends a line.
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

// Rewrites syntax that ICU spells differently (Oniguruma's \s is White_Space, ICU's is not).
// Rejects syntax that ICU would interpret differently.
std::string to_icu(std::string_view pattern, const std::string& source) {
  std::string icu;
  int set_depth = 0;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      if (const char* spelling = icu_escape(next)) {
        icu += spelling;
      } else if ((next == 'p' || next == 'P') && pattern.substr(i + 2).starts_with('{')) {
        const std::size_t close = std::min(pattern.find('}', i), pattern.size() - 1);
        icu += pattern.substr(i, close + 1 - i);
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

// Bounds the work of a matcher, because backtracking can take time exponential in the text's
// length. A unit is about 10 ns; usual patterns need a tenth of the allowance.
class Work {
 public:
  explicit Work(std::size_t bytes)
      : left_(kUnitsAtLeast + kUnitsOfAByte * static_cast<std::int64_t>(bytes)), outer_(current_) {
    current_ = this;
  }
  ~Work() { current_ = outer_; }
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  bool is_done() const { return left_ < 0; }

  // `input` counts each piece of text that it provides. `matcher` counts every 10,000 saved
  // backtracking positions and every start position.
  static void watch(UText& input) {
    static const UTextFuncs plain = *input.pFuncs;
    static const UTextFuncs counted = [] {
      UTextFuncs functions = plain;
      functions.access = [](UText* text, std::int64_t index, UBool forward) {
        current_->left_ -= kUnitsOfAPiece;
        return plain.access(text, index, forward);
      };
      return functions;
    }();
    input.pFuncs = &counted;
  }
  void watch(icu::RegexMatcher& matcher, UErrorCode& status) {
    matcher.setMatchCallback(
        [](const void*, std::int32_t) -> UBool {
          current_->left_ -= kUnitsOfATick;
          return !current_->is_done();
        },
        nullptr, status);
    matcher.setFindProgressCallback(
        [](const void*, std::int64_t) -> UBool { return !current_->is_done(); }, nullptr, status);
  }

 private:
  static constexpr std::int64_t kUnitsAtLeast = 500'000, kUnitsOfAByte = 50, kUnitsOfAPiece = 16,
                                kUnitsOfATick = 10'000;
  static thread_local Work* current_;
  std::int64_t left_;
  Work* outer_;
};
thread_local Work* Work::current_ = nullptr;

[[noreturn]] void give_up(const SplitPattern::Compiled& compiled, std::string_view text,
                          UErrorCode status) {
  const bool late = status == U_REGEX_STOPPED_BY_CALLER, deep = status == U_REGEX_STACK_OVERFLOW;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: the pattern '{}' {} on a text of {} bytes", compiled.source,
                          compiled.text.substr(0, kShownPattern),
                          late   ? "takes too many steps"
                          : deep ? "needs too much memory"
                                 : fmt::format("failed ({})", u_errorName(status)),
                          text.size()),
              late || deep
                  ? "simplify the pattern: repetitions within repetitions take time without bound"
                  : "");
}

std::vector<Range> ranges_of(std::string_view text, const SplitPattern::Compiled& compiled) {
  UErrorCode status = U_ZERO_ERROR;
  UText* input =
      utext_openUTF8(nullptr, text.data(), static_cast<std::int64_t>(text.size()), &status);
  std::vector<Range> ranges;
  std::size_t done = 0;
  {
    Work work(text.size());
    std::unique_ptr<icu::RegexMatcher> matcher(compiled.pattern->matcher(status));
    if (matcher && U_SUCCESS(status)) {
      Work::watch(*input);
      matcher->reset(input);
      work.watch(*matcher, status);
    }
    while (U_SUCCESS(status) && matcher && matcher->find(status)) {
      const auto begin = static_cast<std::size_t>(matcher->start64(status));
      const auto end = static_cast<std::size_t>(matcher->end64(status));
      if (done < begin) ranges.push_back({done, begin, false});
      if (begin < end) ranges.push_back({begin, end, true});
      done = end;
      if (work.is_done()) status = U_REGEX_STOPPED_BY_CALLER;
    }
  }
  utext_close(input);
  if (U_FAILURE(status)) give_up(compiled, text, status);
  if (done < text.size()) ranges.push_back({done, text.size(), false});
  return ranges;
}

std::vector<Range> ranges_of(std::string_view text, std::string_view literal) {
  std::vector<Range> ranges;
  std::size_t done = 0;
  while (!literal.empty()) {
    const std::size_t begin = text.find(literal, done);
    if (begin == std::string_view::npos) break;
    if (done < begin) ranges.push_back({done, begin, false});
    done = begin + literal.size();
    ranges.push_back({begin, done, true});
  }
  if (done < text.size()) ranges.push_back({done, text.size(), false});
  return ranges;
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
  compiled->source = source;
  compiled->pattern.reset(
      icu::RegexPattern::compile(icu::UnicodeString::fromUTF8(icu_pattern), place, status));
  if (U_FAILURE(status))
    throw_error(ErrorCode::corrupt_data, "{}: the pattern '{}' does not compile: {} at {}", source,
                pattern, u_errorName(status), place.offset);
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

std::vector<SplitRange> SplitPattern::ranges(std::string_view text) const {
  std::vector<SplitRange> ranges =
      compiled_ ? ranges_of(text, *compiled_) : ranges_of(text, literal_);
  if (invert_)
    for (SplitRange& range : ranges) range.matched = !range.matched;
  return ranges;
}

void SplitPattern::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  append_pieces(text, ranges(text), behavior_, pieces);
}

}  // namespace shoal
