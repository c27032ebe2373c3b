#include "shoal/train/data/tokenizer/piece_normalizer.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/characters.h"
#include "shoal/train/data/tokenizer/graphemes.h"
#include "shoal/train/data/tokenizer/growth.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {
namespace {

using Kind = NormalizerStep::Kind;

constexpr std::uint32_t kSpaceMark = 0x2581;  // SentencePiece's mark for a space

bool is_white(std::uint32_t c) {
  return (unicode::classes()[c] & unicode::kKind) == unicode::space;
}

// Cost of a step per character, in units of Work.
std::int64_t units_of(Kind kind) {
  switch (kind) {
    case Kind::nfc:
    case Kind::nfkc:
      return 22;
    case Kind::nfd:
    case Kind::nfkd:
      return 13;
    case Kind::precompiled:
      return 7;
    default:
      return 4;
  }
}

// Maximum length of a byte's replacement in a table. It limits how much such a text can grow.
constexpr std::size_t kLongestInTable = 64;

// As Hugging Face's NormalizedString::replace: inserted text has the origin of the last replaced
// character. False: the result exceeds `most` characters.
bool replace(std::vector<Character>& characters, const NormalizerStep& step, std::size_t most) {
  const bool runs = step.kind == Kind::replace_runs;
  const std::u32string& pattern = step.pattern;
  const auto match = [&](std::size_t at) {  // number of matching characters
    std::size_t length = 0;
    if (runs) {
      while (at + length < characters.size() && characters[at + length].value == pattern[0])
        ++length;
      return length < 2 ? 0 : length;
    }
    while (length < pattern.size() && at + length < characters.size() &&
           characters[at + length].value == pattern[length])
      ++length;
    return length < pattern.size() ? 0 : length;
  };
  std::vector<Character> result;
  result.reserve(characters.size());
  for (std::size_t at = 0; at < characters.size();) {
    const std::size_t length = match(at);
    if (length == 0) {
      result.push_back(characters[at++]);
      continue;
    }
    at += length;
    if (result.size() + step.content.size() > most) return false;
    for (const char32_t c : step.content) result.push_back({c, characters[at - 1].origin});
  }
  characters = std::move(result);
  return true;
}

// As normalizers/precompiled.rs: looks up clusters of fewer than six bytes as a whole and replaces
// all of them; looks up longer clusters character by character. Absent: the result exceeds `most`
// characters.
std::optional<std::vector<Change>> changes_of(const std::vector<Character>& characters,
                                              const Charsmap& charsmap, std::size_t most) {
  std::vector<Change> changes;
  changes.reserve(characters.size());
  std::string cluster;
  const auto put = [&](std::string_view by, std::int64_t instead_of) {
    std::int64_t made = 0;
    for (std::size_t at = 0; at < by.size() && changes.size() <= most; ++made) {
      const auto c = unicode::decode(by.data() + at);
      changes.push_back({c.value, 0});
      at += c.bytes;
    }
    for (std::int64_t i = 0; i < made - instead_of; ++i)
      changes[changes.size() - 1 - static_cast<std::size_t>(i)].change = 1;
    if (made < instead_of && !changes.empty()) changes.back().change += made - instead_of;
  };
  unicode::GraphemeScanner scanner;
  for (std::size_t begin = 0, end = 0; begin < characters.size(); begin = end) {
    cluster.clear();
    if (begin == 0) scanner.joins(characters[0].value);
    do append_utf8(cluster, characters[end++].value);
    while (end < characters.size() && scanner.joins(characters[end].value));
    if (changes.size() > most) return std::nullopt;
    if (cluster.size() < 6) {
      if (const auto by = charsmap.transform(cluster)) {
        put(*by, static_cast<std::int64_t>(end - begin));
        continue;
      }
    }
    for (std::size_t at = 0, i = begin; i < end; ++i) {
      const auto c = unicode::decode(cluster.data() + at);
      if (const auto by = charsmap.transform(std::string_view(cluster).substr(at, c.bytes)))
        put(*by, 1);
      else
        changes.push_back({c.value, 0});
      at += c.bytes;
    }
  }
  if (changes.size() > most) return std::nullopt;
  return changes;
}

bool replace_regex(std::vector<Character>& characters, const NormalizerStep& step,
                   std::size_t most) {
  const std::vector<Character> from = std::exchange(characters, {});
  // If an empty match inserts text at the front, that text has an empty origin.
  const NormalizedText::Origin front{from.front().origin.begin, from.front().origin.begin};
  std::string text;
  for (const Character& character : from) append_utf8(text, character.value);
  std::size_t at = 0, byte = 0;
  SplitPattern::Run run(*step.regex);
  for (const SplitRange& range : run.ranges(text)) {
    const std::size_t first = at;
    for (; byte < range.end; ++at) byte += unicode::decode(text.data() + byte).bytes;
    if (!range.matched)
      characters.insert(characters.end(), from.begin() + static_cast<std::ptrdiff_t>(first),
                        from.begin() + static_cast<std::ptrdiff_t>(at));
    else if (characters.size() + step.content.size() > most)
      return false;
    else
      for (const char32_t c : step.content)
        characters.push_back({c, at > 0 ? from[at - 1].origin : front});
  }
  return true;
}

// The first rules of SentencePiece's nmt_nfkc, as in normalizers/unicode.rs.
void clean_as_nmt(std::vector<Character>& characters) {
  std::erase_if(characters, [](const Character& c) {
    const std::uint32_t v = c.value;
    return (v >= 0x1 && v <= 0x8) || v == 0xB || (v >= 0xE && v <= 0x1F) || v == 0x7F ||
           v == 0x8F || v == 0x9F;
  });
  constexpr std::u32string_view kBlanks =
      U"\t\n\f\r\u1680\u200B\u200C\u200D\u200E\u200F\u2028\u2029\u2581\uFEFF\uFFFD";
  for (Character& c : characters)
    if (kBlanks.find(static_cast<char32_t>(c.value)) != kBlanks.npos) c.value = ' ';
}

void write_bytes(std::vector<Character>& characters) {
  std::vector<Character> result;
  std::string bytes;
  for (const Character& character : std::exchange(characters, {})) {
    bytes.clear();
    append_utf8(bytes, character.value);
    for (const char byte : bytes) {
      const std::string& letter = byte_level_alphabet()[static_cast<std::uint8_t>(byte)];
      result.push_back({unicode::decode(letter.data()).value, character.origin});
    }
  }
  characters = std::move(result);
}

void strip(std::vector<Character>& characters, const NormalizerStep& step) {
  const auto is_text = [&](const Character& c) {
    return step.pattern.empty() ? !is_white(c.value) : c.value != step.pattern[0];
  };
  if (step.right)
    characters.erase(std::find_if(characters.rbegin(), characters.rend(), is_text).base(),
                     characters.end());
  if (step.left)
    characters.erase(characters.begin(),
                     std::find_if(characters.begin(), characters.end(), is_text));
}

enum class Outcome {
  whole,
  moved,    // the charsmap removed the first characters, which shifts all later origins
  too_long  // `characters` is incomplete
};

// `most`: maximum number of resulting characters.
Outcome run_step(const NormalizerStep& step, std::vector<Character>& characters, std::size_t most) {
  if (characters.empty()) return Outcome::whole;
  switch (step.kind) {
    case Kind::replace:
    case Kind::replace_runs:
      if (!replace(characters, step, most)) return Outcome::too_long;
      break;
    case Kind::replace_regex:
      if (!replace_regex(characters, step, most)) return Outcome::too_long;
      break;
    case Kind::nfc:
    case Kind::nfkc:
      compose(characters, step.kind == Kind::nfkc);
      break;
    case Kind::nmt:
      clean_as_nmt(characters);
      break;
    case Kind::byte_level:
      write_bytes(characters);
      break;
    case Kind::nfd:
    case Kind::nfkd:
      decompose(characters, step.kind == Kind::nfkd);
      break;
    case Kind::strip_accents:
      std::erase_if(characters, [](const Character& c) { return is_combining_mark(c.value); });
      break;
    case Kind::lowercase:
      lower_case(characters);
      break;
    case Kind::precompiled: {
      const std::size_t before = characters.size();
      const auto changes = changes_of(characters, *step.charsmap, most);
      if (!changes) return Outcome::too_long;
      return transform(characters, *changes) == before ? Outcome::whole : Outcome::moved;
    }
    case Kind::strip:
      strip(characters, step);
      break;
    case Kind::prepend: {
      if (characters.size() + step.content.size() > most) return Outcome::too_long;
      const auto origin = characters.front().origin;
      std::vector<Character> front;
      for (const char32_t c : step.content) front.push_back({c, origin});
      characters.insert(characters.begin(), front.begin(), front.end());
      break;
    }
  }
  return characters.size() > most ? Outcome::too_long : Outcome::whole;
}

bool depends_on_neighbours(Kind kind) {
  return kind == Kind::replace || kind == Kind::replace_runs || kind == Kind::replace_regex ||
         kind == Kind::strip || kind == Kind::prepend;
}

std::string utf8_of_all(const std::vector<Character>& characters) {
  std::string text;
  for (const Character& character : characters) append_utf8(text, character.value);
  return text;
}

// Whether the step replaces one ASCII character by a text in all contexts.
bool replaces_a_byte(const NormalizerStep& step) {
  return step.kind == Kind::replace && step.pattern.size() == 1 && step.pattern[0] < 0x80 &&
         !step.content.empty();
}

}  // namespace

PieceNormalizer::PieceNormalizer(std::vector<NormalizerStep> steps) : steps_(std::move(steps)) {
  verbatim_ = make_verbatim_table();
  has_table_ = verbatim_ || make_table();
}

void PieceNormalizer::set_plain(std::uint8_t byte, const std::string& becomes) {
  plain_[byte] = alone_[byte] = true;
  if (becomes.size() == 1) {
    table_[byte] = becomes[0];
    changes_ |= static_cast<std::uint8_t>(becomes[0]) != byte;
  } else {
    wide_[byte] = becomes;
    only_wide_ = only_wide_ == kNoWide ? byte : kManyWide;
  }
}

// Makes the table for all text. Only possible if the steps prepend a text and then replace ASCII
// characters by texts that are not too long.
bool PieceNormalizer::make_verbatim_table() {
  const bool prefixed = !steps_.empty() && steps_[0].kind == Kind::prepend;
  const auto later = steps_.begin() + (prefixed ? 1 : 0);
  if (!std::all_of(later, steps_.end(), replaces_a_byte)) return false;
  const auto by_steps = [&](std::vector<Character> characters) -> std::optional<std::string> {
    for (auto step = later; step != steps_.end(); ++step)
      if (run_step(*step, characters, kLongestInTable) == Outcome::too_long) return std::nullopt;
    std::string text = utf8_of_all(characters);
    return text.size() > kLongestInTable ? std::nullopt : std::optional(std::move(text));
  };
  std::vector<Character> prefix;
  if (prefixed)
    for (const char32_t c : steps_[0].content) prefix.push_back({c, {0, 0}});
  const auto front = by_steps(std::move(prefix));
  std::array<std::optional<std::string>, 0x80> become;
  for (unsigned byte = 0; byte < become.size(); ++byte) become[byte] = by_steps({{byte, {0, 1}}});
  if (!front || !std::ranges::all_of(become, [](const auto& text) { return text.has_value(); }))
    return false;
  prefix_ = *front;
  for (unsigned byte = 0; byte < 0x100; ++byte)
    set_plain(static_cast<std::uint8_t>(byte),
              byte < 0x80 ? *become[byte] : std::string(1, static_cast<char>(byte)));
  return true;
}

// A byte is plain if the single-character steps turn it into one ASCII character, and no other step
// replaces it or strips it as white space. Characters of longer patterns are also plain;
// first_uncommon() finds the patterns. If no step depends on neighbours, single-byte replacements
// count as single-character steps.
bool PieceNormalizer::make_table() {
  const bool replaces = std::all_of(steps_.begin(), steps_.end(), [](const NormalizerStep& step) {
    return !depends_on_neighbours(step.kind) || replaces_a_byte(step);
  });
  std::string watched;  // characters whose neighbours matter
  std::string parts;  // characters of longer patterns: plain only if no step changes or makes them
  for (const NormalizerStep& step : steps_) {
    if (step.kind == Kind::prepend || step.kind == Kind::replace_regex) return false;
    if (step.kind == Kind::strip && step.pattern.empty())
      for (char c = 1; c > 0; ++c)
        if (is_white(static_cast<std::uint32_t>(c))) watched += c;
    if (step.pattern.empty() || (replaces && replaces_a_byte(step))) continue;
    const bool ascii = std::all_of(step.pattern.begin(), step.pattern.end(),
                                   [](char32_t c) { return c > 0 && c < 0x80; });
    if (!ascii) continue;  // plain text cannot contain it
    const std::string pattern(step.pattern.begin(), step.pattern.end());
    if (step.kind != Kind::replace || pattern.size() == 1) {
      watched += pattern;
    } else {
      parts += pattern;
      patterns_.push_back(pattern);
    }
  }
  for (unsigned byte = 1; byte < 0x80; ++byte) {
    std::vector<Character> characters = {{byte, {0, 1}}};
    const bool short_enough = std::ranges::all_of(steps_, [&](const NormalizerStep& step) {
      return (!replaces && depends_on_neighbours(step.kind)) ||
             run_step(step, characters, kLongestInTable / 4) != Outcome::too_long;
    });
    if (byte == '\r' || characters.empty() || !short_enough) continue;
    if (characters.size() != 1 || characters[0].value >= 0x80) {
      const auto joins_nothing = [](const Character& c) {
        return c.value < 0x80 || c.value == kSpaceMark;
      };
      if (replaces && std::all_of(characters.begin(), characters.end(), joins_nothing))
        set_plain(static_cast<std::uint8_t>(byte), utf8_of_all(characters));
      continue;
    }
    const char from = static_cast<char>(byte), to = static_cast<char>(characters[0].value);
    const auto holds = [&](const std::string& set) {
      return set.find(from) != std::string::npos || set.find(to) != std::string::npos;
    };
    if (holds(watched) || (from != to && holds(parts))) continue;
    set_plain(static_cast<std::uint8_t>(byte), std::string(1, to));
    alone_[byte] = !holds(parts);
  }
  return true;
}

// The first byte at or after `from` that is not plain or that begins a pattern.
std::size_t PieceNormalizer::first_uncommon(std::string_view text, std::size_t from) const {
  std::size_t at = from;
  while (at < text.size() && is_plain(text[at])) ++at;
  for (const std::string& pattern : patterns_)
    at = std::min(at,
                  text.substr(0, std::min(text.size(), at + pattern.size())).find(pattern, from));
  return at;
}

void PieceNormalizer::append_plain(std::string_view text, std::size_t base, bool origins,
                                   NormalizedText& result) const {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = first_wide(text, at), before = result.text.size();
    const std::string_view narrow = text.substr(at, end - at);
    result.text += narrow;
    if (changes_)
      for (std::size_t i = before; i < result.text.size(); ++i)
        result.text[i] = table_[static_cast<std::uint8_t>(result.text[i])];
    if (origins) append_origins(narrow, base + at, result);
    at = end;
    if (at == text.size()) break;
    const std::string& wide = wide_[static_cast<std::uint8_t>(text[at])];
    result.text += wide;
    if (origins) {
      const auto place = static_cast<std::uint32_t>(base + at);
      result.origins.insert(result.origins.end(), wide.size(), {place, place + 1});
    }
    ++at;
  }
}

// The first byte at or after `from` that becomes several bytes.
std::size_t PieceNormalizer::first_wide(std::string_view text, std::size_t from) const {
  if (only_wide_ == kNoWide) return text.size();
  if (only_wide_ >= 0) return std::min(text.find(static_cast<char>(only_wide_), from), text.size());
  const auto is_wide = [&](char c) {
    const auto byte = static_cast<std::uint8_t>(c);
    return byte < wide_.size() && !wide_[byte].empty();
  };
  const auto begin = text.begin() + static_cast<std::ptrdiff_t>(from);
  return static_cast<std::size_t>(std::find_if(begin, text.end(), is_wide) - text.begin());
}

// Maps each byte to the range of its character.
void PieceNormalizer::append_origins(std::string_view text, std::size_t base,
                                     NormalizedText& result) {
  for (std::size_t at = 0; at < text.size();) {
    const std::uint32_t bytes = unicode::decode(text.data() + at).bytes;
    const auto place = static_cast<std::uint32_t>(base + at);
    result.origins.insert(result.origins.end(), bytes, {place, place + bytes});
    at += bytes;
  }
}

bool PieceNormalizer::append_slowly(std::string_view text, std::size_t of, std::size_t base,
                                    bool origins, NormalizedText& result) const {
  std::vector<Character> characters;
  characters.reserve(text.size());
  append_characters(text, base, characters);
  // Each character may need four bytes.
  const std::size_t most = std::max(most_bytes_of(of), result.text.size()) - result.text.size();
  bool whole = true;
  const Work work(of);
  for (const NormalizerStep& step : steps_) {
    Work::spend(units_of(step.kind) * std::ssize(characters), step.name, of);
    const Outcome outcome = run_step(step, characters, most / 4);
    if (outcome == Outcome::too_long) made_too_much(step.name, of);
    whole &= outcome == Outcome::whole;
  }
  for (const Character& character : characters) append(result, character, origins);
  return whole;
}

void PieceNormalizer::normalize(std::string_view text, std::size_t base, bool origins,
                                NormalizedText& result) const {
  SHOAL_CHECK(base + text.size() <= UINT32_MAX, "a text of {} bytes", base + text.size());
  const auto restart = [&] {
    result.text.clear();
    result.origins.clear();
    result.text.reserve(text.size() + 16);
  };
  restart();
  if (verbatim_) {
    if (text.empty()) return;
    result.text = prefix_;
    const auto place = static_cast<std::uint32_t>(base);
    if (origins)  // text is well-formed and not empty: decode() reads one character
      result.origins.assign(prefix_.size(), {place, place + unicode::decode(&text[0]).bytes});
    return append_plain(text, base, origins, result);
  }
  const auto slowly = [&](std::size_t begin, std::size_t end) {
    return append_slowly(text.substr(begin, end - begin), text.size(), base + begin, origins,
                         result);
  };
  if (!has_table_) {
    slowly(0, text.size());
    return;
  }
  // The text can be cut between two such characters without changing the result.
  const auto may_cut = [&](std::size_t at) {
    return stands_alone(text[at - 1]) && stands_alone(text[at]);
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t begin = first_uncommon(text, at), end = begin;
    while (begin < text.size() && begin > at && !may_cut(begin)) --begin;
    append_plain(text.substr(at, begin - at), base + at, origins, result);
    if (begin == text.size()) break;
    end = std::max(end, begin) + 1;
    while (end < text.size() && !may_cut(end)) ++end;
    if (!slowly(begin, end)) {
      restart();
      slowly(0, text.size());
      return;
    }
    at = end;
  }
}

}  // namespace shoal
