#include <algorithm>
#include <unordered_map>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

using nlohmann::json;

void read_model_into(const json& value, const std::string& source,
                     WordPieceDefinition& definition) {
  Section model(value, "model", source);
  model.find("type");
  definition.unk_token = model.text("unk_token");
  definition.prefix = model.text("continuing_subword_prefix");
  const json& longest = model.need("max_input_chars_per_word");
  if (!longest.is_number_unsigned()) model.wrong("max_input_chars_per_word", "a number");
  // Each position of a word is compared with every remaining prefix.
  if (longest.get<std::uint64_t>() > 1'000)
    unsupported_tokenizer(source, fmt::format("max_input_chars_per_word {}", longest.dump()));
  definition.longest_word = longest.get<std::int64_t>();
  read_vocab(model.need("vocab"), source, definition);
  model.nothing_else();
}

// The only member of a Sequence, or the single value itself; null if there is none.
struct Member {
  const json* value = nullptr;
  std::string where;
};
Member only_member(const json* value, const char* part, const char* list,
                   const std::string& source) {
  Member member;
  if (value == nullptr) return member;
  each_of(*value, part, list, source, [&](const json& each, const std::string& where) {
    if (member.value != nullptr)
      unsupported_tokenizer(source, fmt::format("{} after another with WordPiece", where));
    member = {&each, where};
  });
  return member;
}

void read_normalizer_into(const json* value, const std::string& source,
                          WordPieceDefinition& definition) {
  if (value != nullptr) definition.normalizer = *value;
  const Member member = only_member(value, "normalizer", "normalizers", source);
  if (member.value == nullptr) {
    definition.normalize = {false, false, false, false};
    return;
  }
  Section section(*member.value, member.where, source);
  if (const std::string type = section.text("type"); type != "BertNormalizer")
    unsupported_tokenizer(source, fmt::format("the normalizer '{}' with WordPiece", type));
  definition.normalize.clean_text = section.boolean("clean_text", true);
  definition.normalize.handle_chinese_chars = section.boolean("handle_chinese_chars", true);
  definition.normalize.lowercase = section.boolean("lowercase", true);
  // Absent: same as lowercase.
  definition.normalize.strip_accents =
      section.boolean("strip_accents", definition.normalize.lowercase);
  section.nothing_else();
}

// Opens a part that must have the type `wanted`.
Section section_of(const Member& member, const char* part, const char* wanted,
                   const std::string& source) {
  if (member.value == nullptr)
    unsupported_tokenizer(source, fmt::format("WordPiece without the {} '{}'", part, wanted));
  Section section(*member.value, member.where, source);
  if (const std::string type = section.text("type"); type != wanted)
    unsupported_tokenizer(source, fmt::format("the {} '{}' with WordPiece", part, type));
  return section;
}

void read_pre_tokenizer_into(const json* value, const std::string& source,
                             WordPieceDefinition& definition) {
  const Member member = only_member(value, "pre_tokenizer", "pretokenizers", source);
  section_of(member, "pre_tokenizer", "BertPreTokenizer", source).nothing_else();
  definition.pre_tokenizer = *value;
}

void read_decoder_into(const json* value, const std::string& source,
                       WordPieceDefinition& definition) {
  if (value == nullptr || value->is_null()) {
    definition.decoder_prefix.reset();
    return;
  }
  const Member member = only_member(value, "decoder", "decoders", source);
  Section section = section_of(member, "decoder", "WordPiece", source);
  definition.decoder_prefix = section.text("prefix");
  definition.cleanup = section.boolean("cleanup");
  section.nothing_else();
  definition.decoder = *value;
}

// As Hugging Face's WordPiece::read_file: only "\n" ends a line, trailing white space is removed,
// and a duplicate token has its last id.
void read_vocab_txt(std::string_view text, std::vector<std::optional<std::string>>& tokens) {
  const auto newlines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  tokens.reserve(newlines + 1);
  std::unordered_map<std::string_view, std::size_t> ids;
  ids.reserve(newlines + 1);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view token = without_spaces_behind(text.substr(at, end - at), is_rust_space);
    const auto [id, is_new] = ids.emplace(token, tokens.size());
    if (!is_new) tokens[std::exchange(id->second, tokens.size())].reset();
    tokens.emplace_back(token);
    at = end + 1;
  }
}

}  // namespace

WordPieceDefinition parse_word_piece(const json& file, const std::string& source) {
  WordPieceDefinition definition;
  Section top(file, "the file", source);
  top.find("version");
  for (const char* key : {"truncation", "padding"}) top.find(key);  // do not affect ids
  read_model_into(top.need("model"), source, definition);
  read_added_tokens(top.find("added_tokens"), source, definition);
  read_normalizer_into(top.find("normalizer"), source, definition);
  read_pre_tokenizer_into(top.find("pre_tokenizer"), source, definition);
  if (const json* post = top.find("post_processor")) {
    read_post_processor(*post, "post_processor", source, definition);
    if (definition.trim_offsets)
      unsupported_tokenizer(source, "a post-processor that trims offsets with WordPiece");
    definition.post_processor = *post;
  }
  read_decoder_into(top.find("decoder"), source, definition);
  top.nothing_else();
  return definition;
}

WordPieceDefinition parse_vocab_txt(std::string_view vocab_txt, const std::string& source,
                                    const WordPieceFileOptions& options) {
  WordPieceDefinition definition;
  check_utf8(vocab_txt, source);
  read_vocab_txt(vocab_txt, definition.tokens);
  add_stated_tokens(definition, options.stated_tokens, options.special_tokens, source);
  const auto id_of = [&](const std::string& token) {
    for (const auto& [added, id] : definition.added)
      if (added.content == token) return id;
    const auto found = std::find(definition.tokens.begin(), definition.tokens.end(), token);
    if (found == definition.tokens.end())
      corrupt_tokenizer(source, fmt::format("the vocabulary lacks '{}'", token));
    return static_cast<TokenId>(found - definition.tokens.begin());
  };
  const TokenId cls = id_of(options.cls_token), sep = id_of(options.sep_token);
  definition.normalize = options.normalize;
  definition.unk_token = options.unk_token;
  definition.sequence = SequenceTemplate::bert(cls, sep);
  definition.normalizer = {{"type", "BertNormalizer"},
                           {"clean_text", options.normalize.clean_text},
                           {"handle_chinese_chars", options.normalize.handle_chinese_chars},
                           {"strip_accents", options.normalize.strip_accents},
                           {"lowercase", options.normalize.lowercase}};
  definition.pre_tokenizer = {{"type", "BertPreTokenizer"}};
  definition.post_processor = {{"type", "BertProcessing"},
                               {"sep", {options.sep_token, sep}},
                               {"cls", {options.cls_token, cls}}};
  definition.decoder = {{"type", "WordPiece"}, {"prefix", "##"}, {"cleanup", true}};
  return definition;
}

}  // namespace shoal
