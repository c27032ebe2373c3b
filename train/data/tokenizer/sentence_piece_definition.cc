#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/base64.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"

namespace shoal {
namespace {

using nlohmann::json;

void read_model(const json& value, const std::string& source, SentencePieceDefinition& definition) {
  Section model(value, "model", source);
  model.find("type");
  const json& vocab = model.need("vocab");
  if (!vocab.is_array() || vocab.empty()) model.wrong("vocab", "a list of [token, score]");
  definition.tokens.reserve(vocab.size());
  definition.scores.reserve(vocab.size());
  for (const json& item : vocab) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number())
      corrupt_tokenizer(source,
                        fmt::format("model.vocab[{}] is {}; a token and its score are wanted",
                                    definition.tokens.size(), item.dump().substr(0, 80)));
    definition.tokens.emplace_back(item[0].get<std::string>());
    definition.scores.push_back(item[1].get<double>());
  }
  if (model.find("unk_id") != nullptr) {
    definition.unknown = model.id("unk_id");
    if (static_cast<std::size_t>(*definition.unknown) >= definition.tokens.size())
      corrupt_tokenizer(source, fmt::format("model.unk_id is {}, but the highest id is {}",
                                            *definition.unknown, definition.tokens.size() - 1));
  }
  definition.byte_fallback = model.boolean("byte_fallback", false);
  model.nothing_else();
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

// The members of a Sequence, or the one thing itself; each of them by read(value, where).
template <typename Read>
void each_of(const json& value, const std::string& where, const char* list,
             const std::string& source, const Read& read) {
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

// {"String": "x"} or {"Regex": "x"}; of the latter only a character twice or more is taken.
std::string read_pattern(Section& step, bool& runs) {
  Section pattern(step.need("pattern"), step.where() + ".pattern", step.source());
  std::string text;
  if (pattern.find("Regex") != nullptr) {
    text = pattern.text("Regex");
    constexpr std::string_view kRepeated = "{2,}";
    runs = text.ends_with(kRepeated);
    if (runs) text.resize(text.size() - kRepeated.size());
    constexpr std::string_view kSyntax = "\\.[](){}*+?^$|";
    if (!runs || characters_of(text).size() != 1 || kSyntax.find(text) != std::string_view::npos)
      unsupported_tokenizer(step.source(), fmt::format("{} with the pattern '{}'", step.where(),
                                                       pattern.text("Regex")));
  } else {
    text = pattern.text("String");
    if (text.empty()) pattern.wrong("String", "a text of one character or more");
  }
  pattern.nothing_else();
  return text;
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
  NormalizerStep step{Kind::nfd, {}, {}, false, false, nullptr};
  if (type == "Replace") {
    bool runs = false;
    step.pattern = characters_of(read_pattern(section, runs));
    step.kind = runs ? Kind::replace_runs : Kind::replace;
    step.content = characters_of(section.text("content"));
  } else if (type == "NFKD") {
    step.kind = Kind::nfkd;
  } else if (type == "StripAccents") {
    step.kind = Kind::strip_accents;
  } else if (type == "Lowercase") {
    step.kind = Kind::lowercase;
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
  } else if (type != "NFD") {
    unsupported_tokenizer(source, fmt::format("the normalizer '{}' with Unigram", type));
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
  // Of files from before prepend_scheme.
  if (section.find("add_prefix_space") != nullptr && !section.boolean("add_prefix_space")) {
    if (named && metaspace.prefix != Prefix::never)
      section.wrong("add_prefix_space", "what prepend_scheme says");
    metaspace.prefix = Prefix::never;
  }
  metaspace.split = section.boolean("split", true);
  section.find("str_rep");
  return metaspace;
}

void read_pre_tokenizer(const json& value, const std::string& where, const std::string& source,
                        SentencePieceDefinition& definition) {
  Section section(value, where, source);
  const std::string type = section.text("type");
  if (type != "WhitespaceSplit" && type != "Metaspace")
    unsupported_tokenizer(source, fmt::format("the pre-tokenizer '{}' with Unigram", type));
  if (definition.metaspace || (type == "WhitespaceSplit" && definition.split_white_space))
    unsupported_tokenizer(source, fmt::format("a second pre-tokenizer '{}' with Unigram", type));
  if (type == "Metaspace")
    definition.metaspace = read_metaspace(section);
  else
    definition.split_white_space = true;
  section.nothing_else();
}

DecoderStep read_decoder(const json& value, const std::string& where, const std::string& source) {
  using Kind = DecoderStep::Kind;
  Section section(value, where, source);
  const std::string type = section.text("type");
  DecoderStep step{Kind::fuse, {}, {}, false, 0, 0};
  if (type == "Metaspace") {
    const Metaspace metaspace = read_metaspace(section);
    step.kind = Kind::metaspace;
    step.pattern = metaspace.replacement;
    step.drop_first = metaspace.prefix != Metaspace::Prefix::never;
  } else if (type == "Replace") {
    bool runs = false;
    step.kind = Kind::replace;
    step.pattern = read_pattern(section, runs);
    if (runs) unsupported_tokenizer(source, where + " with a Regex");
    step.content = section.text("content");
  } else if (type == "ByteFallback") {
    step.kind = Kind::byte_fallback;
  } else if (type == "Strip") {
    step.kind = Kind::strip;
    step.pattern = section.text("content");
    if (characters_of(step.pattern).size() != 1) section.wrong("content", "one character");
    step.start = read_count(section, "start");
    step.stop = read_count(section, "stop");
  } else if (type != "Fuse") {
    unsupported_tokenizer(source, fmt::format("the decoder '{}' with Unigram", type));
  }
  section.nothing_else();
  return step;
}

}  // namespace

void read_sentence_piece_parts(const std::string& source, SentencePieceDefinition& definition) {
  if (!definition.normalizer.is_null())
    each_of(definition.normalizer, "normalizer", "normalizers", source,
            [&](const json& value, const std::string& where) {
              definition.normalize.push_back(read_normalizer(value, where, source));
            });
  if (!definition.pre_tokenizer.is_null())
    each_of(definition.pre_tokenizer, "pre_tokenizer", "pretokenizers", source,
            [&](const json& value, const std::string& where) {
              read_pre_tokenizer(value, where, source, definition);
            });
  if (!definition.post_processor.is_null()) {
    read_post_processor(definition.post_processor, "post_processor", source, definition);
    if (definition.trim_offsets)
      unsupported_tokenizer(source, "a post-processor that trims offsets with Unigram");
  }
  if (!definition.decoder.is_null()) {
    definition.decode.emplace();
    each_of(definition.decoder, "decoder", "decoders", source,
            [&](const json& value, const std::string& where) {
              definition.decode->push_back(read_decoder(value, where, source));
            });
  }
}

SentencePieceDefinition parse_sentence_piece(const json& file, const std::string& source) {
  SentencePieceDefinition definition;
  Section top(file, "the file", source);
  top.find("version");
  for (const char* key : {"truncation", "padding"}) top.find(key);  // the task's, not the text's
  read_model(top.need("model"), source, definition);
  read_added_tokens(top.find("added_tokens"), source, definition);
  const auto part = [&](const char* key) {
    const json* value = top.find(key);
    return value == nullptr ? json() : *value;
  };
  definition.normalizer = part("normalizer");
  definition.pre_tokenizer = part("pre_tokenizer");
  definition.post_processor = part("post_processor");
  definition.decoder = part("decoder");
  top.nothing_else();
  read_sentence_piece_parts(source, definition);
  return definition;
}

}  // namespace shoal
