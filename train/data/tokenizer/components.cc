// Reads the normalizers, pre-tokenizers and decoders of a tokenizer.json.
#include <algorithm>
#include <map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

using nlohmann::json;

[[noreturn]] void unsupported_part(const std::string& source, const char* part,
                                   const std::string& type) {
  unsupported_tokenizer(source, fmt::format("the {} '{}'", part, type));
}

std::u32string characters_of(std::string_view text) {
  std::u32string characters;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    characters.push_back(c.value);
    at += c.bytes;
  }
  return characters;
}

// {"String": "x"} or {"Regex": "x"}. Recognizes regular expressions that need no engine: a
// character repeated twice or more, or every copy of a character at one end of the text.
struct Pattern {
  enum class Kind { text, runs, left_end, right_end, regex };
  Kind kind = Kind::text;
  std::string text;
};

Pattern read_pattern(Section& step) {
  Section section(step.need("pattern"), step.where() + ".pattern", step.source());
  Pattern pattern;
  if (section.find("Regex") != nullptr) {
    const std::string regex = section.text("Regex");
    const auto is = [&](std::string_view front, std::string_view back, Pattern::Kind kind) {
      constexpr std::string_view kSyntax = "\\.[](){}*+?^$|";
      if (regex.size() < front.size() + back.size() || !regex.starts_with(front) ||
          !regex.ends_with(back))
        return false;
      pattern = {kind, regex.substr(front.size(), regex.size() - front.size() - back.size())};
      return characters_of(pattern.text).size() == 1 &&
             kSyntax.find(pattern.text) == std::string_view::npos;
    };
    if (!is("", "{2,}", Pattern::Kind::runs) && !is("\\A", "+", Pattern::Kind::left_end) &&
        !is("", "+\\z", Pattern::Kind::right_end))
      pattern = {Pattern::Kind::regex, regex};
  } else {
    pattern.text = section.text("String");
    if (pattern.text.empty()) section.wrong("String", "a text of one character or more");
  }
  section.nothing_else();
  return pattern;
}

SplitPattern regex_of(Section& step) {
  return SplitPattern::regex(step.need("pattern").at("Regex").get<std::string>(),
                             SplitBehavior::isolated, false, step.source());
}

std::int64_t read_count(Section& step, const char* key) {
  const json& value = step.need(key);
  if (!value.is_number_unsigned()) step.wrong(key, "a number of characters");
  return value.get<std::int64_t>();
}

NormalizerStep read_normalizer(const json& value, const std::string& where,
                               const std::string& source) {
  using Kind = NormalizerStep::Kind;
  Section section(value, where, source);
  const std::string type = section.text("type");
  NormalizerStep step{.kind = Kind::nfd, .name = fmt::format("{}: {} ({})", source, where, type)};
  if (type == "Replace") {
    const Pattern pattern = read_pattern(section);
    step.content = characters_of(section.text("content"));
    const bool at_end =
        pattern.kind == Pattern::Kind::left_end || pattern.kind == Pattern::Kind::right_end;
    if (pattern.kind == Pattern::Kind::regex || (at_end && !step.content.empty())) {
      step.kind = Kind::replace_regex;
      step.regex = std::make_shared<const SplitPattern>(regex_of(section));
    } else {
      step.pattern = characters_of(pattern.text);
      step.left = pattern.kind == Pattern::Kind::left_end;
      step.right = pattern.kind == Pattern::Kind::right_end;
      step.kind = at_end                                ? Kind::strip
                  : pattern.kind == Pattern::Kind::text ? Kind::replace
                                                        : Kind::replace_runs;
    }
  } else if (type == "Precompiled") {
    step.kind = Kind::precompiled;
    const auto map = from_base64(section.text("precompiled_charsmap"));
    if (!map) section.wrong("precompiled_charsmap", "base64");
    step.charsmap = std::make_shared<const Charsmap>(*map, source);
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.left = section.boolean("strip_left");
    step.right = section.boolean("strip_right");
  } else if (type == "Prepend") {
    step.kind = Kind::prepend;
    step.content = characters_of(section.text("prepend"));
  } else {
    static const std::map<std::string, Kind> kPlain = {
        {"NFD", Kind::nfd},   {"NFKD", Kind::nfkd},           {"NFC", Kind::nfc},
        {"NFKC", Kind::nfkc}, {"Lowercase", Kind::lowercase}, {"StripAccents", Kind::strip_accents},
        {"Nmt", Kind::nmt},   {"ByteLevel", Kind::byte_level}};
    const auto found = kPlain.find(type);
    if (found == kPlain.end()) unsupported_part(source, "normalizer", type);
    step.kind = found->second;
  }
  section.nothing_else();
  return step;
}

Metaspace read_metaspace(Section& section) {
  Metaspace metaspace;
  metaspace.replacement = section.text("replacement");
  if (characters_of(metaspace.replacement).size() != 1)
    section.wrong("replacement", "one character");
  using Prefix = Metaspace::Prefix;
  const bool named = section.find("prepend_scheme") != nullptr;
  if (named) {
    const std::string scheme = section.text("prepend_scheme");
    if (scheme != "always" && scheme != "first" && scheme != "never")
      section.wrong("prepend_scheme", "always, first or never");
    metaspace.prefix = scheme == "always"  ? Prefix::always
                       : scheme == "first" ? Prefix::first
                                           : Prefix::never;
  }
  // Older files, without prepend_scheme, use add_prefix_space.
  if (section.find("add_prefix_space") != nullptr && !section.boolean("add_prefix_space")) {
    if (named && metaspace.prefix != Prefix::never)
      section.wrong("add_prefix_space", "what prepend_scheme says");
    metaspace.prefix = Prefix::never;
  }
  metaspace.split = section.boolean("split", true);
  section.find("str_rep");
  return metaspace;
}

SplitBehavior behavior_of(const std::string& name, const std::string& source) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unsupported_tokenizer(source, fmt::format("the Split behavior '{}'", name));
}

PreTokenizerStep read_split(Section& section) {
  PreTokenizerStep step{.kind = PreTokenizerStep::Kind::split};
  Section pattern(section.need("pattern"), section.where() + ".pattern", section.source());
  const std::string name = section.text("behavior");
  const SplitBehavior behavior = behavior_of(name, section.source());
  const bool invert = section.boolean("invert", false);
  const bool is_regex = pattern.find("Regex") != nullptr;
  const std::string text = pattern.text(is_regex ? "Regex" : "String");
  pattern.nothing_else();
  step.pattern = is_regex ? SplitPattern::regex(text, behavior, invert, section.source())
                          : SplitPattern::literal(text, behavior, invert);
  // GPT-2's pattern matches every character, so "isolated" equals inverted "removed".
  if (is_regex && is_gpt2_pattern(text) &&
      (behavior == SplitBehavior::isolated || (behavior == SplitBehavior::removed && invert)))
    step.kind = PreTokenizerStep::Kind::gpt2;
  return step;
}

PreTokenizerStep read_pre_tokenizer(const json& value, const std::string& where,
                                    const std::string& source) {
  using Kind = PreTokenizerStep::Kind;
  Section section(value, where, source);
  const std::string type = section.text("type");
  PreTokenizerStep step;
  if (type == "Split") {
    step = read_split(section);
  } else if (type == "Metaspace") {
    step.kind = Kind::metaspace;
    step.metaspace = read_metaspace(section);
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    step.add_prefix_space = section.boolean("add_prefix_space");
    section.boolean("trim_offsets", true);  // used by post-processors; ignored here
    step.use_regex = section.boolean("use_regex", true);
  } else if (type == "Digits") {
    step.kind = Kind::digits;
    step.individual = section.boolean("individual_digits", false);
  } else if (type == "Punctuation") {
    step.kind = Kind::punctuation;
    if (section.find("behavior") != nullptr)
      step.behavior = behavior_of(section.text("behavior"), source);
  } else if (type == "CharDelimiterSplit") {
    step.kind = Kind::split;
    const std::string delimiter = section.text("delimiter");
    if (characters_of(delimiter).size() != 1) section.wrong("delimiter", "one character");
    step.pattern = SplitPattern::literal(delimiter, SplitBehavior::removed, false);
  } else if (type == "Whitespace") {
    step.kind = Kind::words;
  } else if (type == "WhitespaceSplit") {
    step.kind = Kind::white_space;
  } else if (type == "BertPreTokenizer") {
    step.kind = Kind::bert;
  } else {
    unsupported_part(source, "pre-tokenizer", type);
  }
  step.name = fmt::format("{}: {} ({})", source, where, type);
  section.nothing_else();
  return step;
}

DecoderStep read_decoder(const json& value, const std::string& where, const std::string& source) {
  using Kind = DecoderStep::Kind;
  Section section(value, where, source);
  const std::string type = section.text("type");
  DecoderStep step{.name = fmt::format("{}: {} ({})", source, where, type)};
  if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(section);
    step.kind = Kind::metaspace;
    step.pattern = metaspace.replacement;
    step.drop_first = metaspace.prefix != Metaspace::Prefix::never;
  } else if (type == "Replace") {
    step.kind = Kind::replace;
    const Pattern pattern = read_pattern(section);
    if (pattern.kind == Pattern::Kind::text)
      step.pattern = pattern.text;
    else
      step.regex = regex_of(section);
    step.content = section.text("content");
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "ByteLevel") {
    step.kind = Kind::byte_level;
    for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) section.find(key);
  } else if (type == "WordPiece") {
    step.kind = Kind::word_piece;
    step.pattern = section.text("prefix");
    step.cleanup = section.boolean("cleanup");
  } else if (type == "BPEDecoder") {
    step.kind = Kind::bpe;
    step.pattern = section.text("suffix");
    if (step.pattern.empty()) section.wrong("suffix", "a text of one character or more");
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.pattern = section.text("content");
    if (characters_of(step.pattern).size() != 1) section.wrong("content", "one character");
    step.start = read_count(section, "start");
    step.stop = read_count(section, "stop");
  } else if (type != "Fuse") {
    unsupported_part(source, "decoder", type);
  }
  section.nothing_else();
  return step;
}

template <typename Step>
std::vector<Step> steps_of(const json& value, const char* part, const char* list,
                           const std::string& source,
                           Step (*read)(const json&, const std::string&, const std::string&)) {
  std::vector<Step> steps;
  each_of(value, part, list, source, [&](const json& member, const std::string& where) {
    steps.push_back(read(member, where, source));
  });
  return steps;
}

}  // namespace

void each_of(const json& value, const std::string& where, const char* list,
             const std::string& source,
             const std::function<void(const json&, const std::string&)>& read) {
  if (value.is_object() && value.contains("type") && value["type"] == "Sequence") {
    Section sequence(value, where, source);
    sequence.find("type");
    const json& members = sequence.need(list);
    if (!members.is_array()) sequence.wrong(list, "an array");
    sequence.nothing_else();
    for (std::size_t i = 0; i < members.size(); ++i)
      each_of(members[i], fmt::format("{}.{}[{}]", where, list, i), list, source, read);
    return;
  }
  read(value, where);
}

std::vector<NormalizerStep> read_normalizers(const json& value, const std::string& source) {
  return steps_of(value, "normalizer", "normalizers", source, read_normalizer);
}

std::vector<PreTokenizerStep> read_pre_tokenizers(const json& value, const std::string& source) {
  return steps_of(value, "pre_tokenizer", "pretokenizers", source, read_pre_tokenizer);
}

std::vector<DecoderStep> read_decoders(const json& value, const std::string& source) {
  return steps_of(value, "decoder", "decoders", source, read_decoder);
}

}  // namespace shoal
