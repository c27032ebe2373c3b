#include <algorithm>

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
  unsupported_tokenizer(source,
                        fmt::format("the {} '{}' of a SentencePiece tokenizer", part, type));
}

void read_model(const json& value, const std::string& source, SentencePieceDefinition& definition) {
  Section model(value, "model", source);
  if (const json* type = model.find("type"); type != nullptr && *type == "BPE") {
    definition.bpe.emplace();
    read_bpe_model(value, source, definition, *definition.bpe);
    definition.bpe->model.characters = true;
    return;
  }
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

// {"String": "x"} or {"Regex": "x"}. Of the latter only what does not look for a text is taken: a
// character twice or more, or all of it at an end.
struct Pattern {
  enum class Kind { text, runs, left_end, right_end };
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
      unsupported_tokenizer(step.source(),
                            fmt::format("{} with the pattern '{}'", step.where(), regex));
  } else {
    pattern.text = section.text("String");
    if (pattern.text.empty()) section.wrong("String", "a text of one character or more");
  }
  section.nothing_else();
  return pattern;
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
    const Pattern pattern = read_pattern(section);
    step.pattern = characters_of(pattern.text);
    step.content = characters_of(section.text("content"));
    step.left = pattern.kind == Pattern::Kind::left_end;
    step.right = pattern.kind == Pattern::Kind::right_end;
    step.kind = pattern.kind == Pattern::Kind::text   ? Kind::replace
                : pattern.kind == Pattern::Kind::runs ? Kind::replace_runs
                                                      : Kind::strip;
    if (step.kind == Kind::strip && !step.content.empty()) section.wrong("content", "empty");
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
    unsupported_part(source, "normalizer", type);
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
  if (type != "WhitespaceSplit" && type != "Split" && type != "Metaspace")
    unsupported_part(source, "pre-tokenizer", type);
  if (definition.metaspace ||
      (type != "Metaspace" && (definition.split_white_space || definition.split)))
    unsupported_part(source, "second pre-tokenizer", type);
  if (type == "Metaspace")
    definition.metaspace = read_metaspace(section);
  else if (type == "Split")
    definition.split = read_split(section);
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
    step.kind = Kind::replace;
    const Pattern pattern = read_pattern(section);
    if (pattern.kind != Pattern::Kind::text) unsupported_tokenizer(source, where + " with a Regex");
    step.pattern = pattern.text;
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
    unsupported_part(source, "decoder", type);
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
      unsupported_tokenizer(source,
                            "a post-processor of a SentencePiece tokenizer that trims "
                            "offsets");
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
