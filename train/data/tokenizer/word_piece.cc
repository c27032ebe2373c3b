#include "shoal/train/data/tokenizer/word_piece.h"

#include <algorithm>
#include <unordered_map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/tokenizer_impl.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/word_cache.h"
#include "shoal/train/data/tokenizer/workspace_pool.h"

namespace shoal {
namespace {

struct WordPieceWorkspace {
  WordCache cache;
  NormalizedText normalized;
  std::vector<TokenId> ids;
  std::string key;  // for a word's later pieces: prefix and remainder
};

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

// Limit of look-ups per byte of a word; a look-up counts once per 64 bytes. A word of 100
// characters, BERT's maximum, takes at most 58 per byte. Each word has its own limit, because
// cached words take none.
constexpr std::size_t kLookUpsOfAByte = 64;

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !unicode::is_continuation(c); }));
}

}  // namespace

struct WordPiece::Impl final : TokenizerImpl {
  Impl(WordPieceDefinition definition_in, const std::string& source);

  // Calls word(view of the normalized text) and added(begin, end, id) from left to right.
  template <typename Word, typename Added>
  void walk(std::string_view text, bool origins, WordPieceWorkspace& workspace, const Word& word,
            const Added& added) const {
    walk_normalized(
        text, workspace.normalized,
        [&](std::string_view piece, std::size_t base) {
          normalizer_.normalize(piece, base, origins, workspace.normalized);
        },
        [&](std::string_view part) { split_as_bert(part, word); }, added);
  }

  // Appends the tokens of a word to `ids`, and the length of each to `bytes`. A word that the
  // vocabulary cannot spell becomes one unknown token.
  void pieces_of(std::string_view word, std::string& key, std::vector<TokenId>& ids,
                 std::vector<std::size_t>* bytes) const;
  void append(std::string_view text, std::vector<TokenId>& ids) const override;
  void encode_with_offsets(std::string_view text, Encoding& encoding) const override;
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special) const override;
  const std::vector<std::optional<std::string>>& tokens() const override {
    return definition_.tokens;
  }
  std::optional<TokenId> find(std::string_view token) const override {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string to_json() const override;
  std::vector<File> own_files() const override {
    std::string lines;
    for (const auto& token : definition_.tokens) lines += token.value_or("") + '\n';
    return {{"vocab.txt", lines}};
  }

  WordPieceDefinition definition_;
  BertNormalizer normalizer_;
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids_;  // the model's tokens
  std::size_t longest_token_ = 0;                                            // in bytes
  TokenId unknown_ = 0;
  std::string source_;  // for messages
  mutable WorkspacePool<WordPieceWorkspace> pool_;
};

WordPiece::Impl::Impl(WordPieceDefinition definition_in, const std::string& source)
    : TokenizerImpl(definition_in, source, by_normalizer(BertNormalizer(definition_in.normalize))),
      definition_(std::move(definition_in)),
      normalizer_(definition_.normalize),
      source_(source) {
  for (std::size_t id = 0; id < definition_.tokens.size(); ++id) {
    const auto& token = definition_.tokens[id];
    if (!token) continue;
    ids_.insert_or_assign(*token, static_cast<TokenId>(id));
    longest_token_ = std::max(longest_token_, token->size());
  }
  const auto unknown = find(definition_.unk_token);
  if (!unknown)
    throw_error(ErrorCode::corrupt_data, "{}: the vocabulary lacks its unk_token '{}'", source,
                shortened(definition_.unk_token));
  unknown_ = *unknown;
}

void WordPiece::Impl::pieces_of(std::string_view word, std::string& key, std::vector<TokenId>& ids,
                                std::vector<std::size_t>* bytes) const {
  const std::size_t before = ids.size();
  std::size_t left = kLookUpsOfAByte * word.size();
  const auto give_up = [&] {
    ids.resize(before);
    ids.push_back(unknown_);
    if (bytes != nullptr) bytes->assign(1, word.size());
  };
  if (bytes != nullptr) bytes->clear();
  if (count_characters(word) > static_cast<std::size_t>(definition_.longest_word)) return give_up();
  for (std::size_t begin = 0; begin < word.size();) {
    key.assign(begin > 0 ? definition_.prefix : "");
    const std::size_t prefix = key.size();
    std::size_t length =
        std::min(word.size() - begin, longest_token_ - std::min(prefix, longest_token_));
    std::optional<TokenId> found;
    for (key.append(word, begin, length); length > 0; --length) {
      // Cut only at character boundaries.
      if (begin + length < word.size() && unicode::is_continuation(word[begin + length])) continue;
      const std::size_t steps = 1 + (prefix + length) / 64;
      if (steps > left)
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{}: WordPiece takes too many steps on '{}', a word of {} bytes",
                                source_, shortened(word, 80), word.size()),
                    "set max_input_chars_per_word to 100");
      left -= steps;
      found = find(std::string_view(key).substr(0, prefix + length));
      if (found) break;
    }
    if (!found) return give_up();
    ids.push_back(*found);
    if (bytes != nullptr) bytes->push_back(length);
    begin += length;
  }
}

void WordPiece::Impl::append(std::string_view text, std::vector<TokenId>& ids) const {
  Borrowed<WordPieceWorkspace> borrowed(pool_);
  WordPieceWorkspace& workspace = *borrowed;
  walk(
      text, false, workspace,
      [&](std::string_view word) {
        const std::string& all = workspace.normalized.text;
        const auto readable = static_cast<std::size_t>(all.data() + all.size() - word.data());
        const auto found = workspace.cache.ids_of(
            word, readable, workspace.ids,
            [&](std::vector<TokenId>& made) { pieces_of(word, workspace.key, made, nullptr); });
        ids.insert(ids.end(), found.begin(), found.end());
      },
      [&](std::size_t, std::size_t, TokenId id, std::string_view) { ids.push_back(id); });
}

void WordPiece::Impl::encode_with_offsets(std::string_view text, Encoding& encoding) const {
  Borrowed<WordPieceWorkspace> borrowed(pool_);
  WordPieceWorkspace& workspace = *borrowed;
  OffsetWriter offsets(text, encoding);
  std::vector<std::size_t> bytes;
  walk(
      text, true, workspace,
      [&](std::string_view word) {
        workspace.ids.clear();
        pieces_of(word, workspace.key, workspace.ids, &bytes);
        for (std::size_t i = 0, at = 0; i < bytes.size(); at += bytes[i++]) {
          const auto [begin, end] = workspace.normalized.origin_of(word.substr(at, bytes[i]));
          offsets.add_span(workspace.ids[i], begin, end - begin);
        }
      },
      [&](std::size_t begin, std::size_t end, TokenId id, std::string_view) {
        offsets.add_span(id, begin, end - begin);
      });
}

std::shared_ptr<const WordPiece> make_word_piece(WordPieceDefinition definition,
                                                 const std::string& source,
                                                 const RoleNames& names) {
  return make_tokenizer<WordPiece>(std::make_unique<WordPiece::Impl>(std::move(definition), source),
                                   names, source,
                                   {.bos = {},
                                    .eos = {},
                                    .pad = {"[PAD]"},
                                    .unk = {"[UNK]"},
                                    .mask = {"[MASK]"},
                                    .cls = {"[CLS]"},
                                    .sep = {"[SEP]"}});
}

std::shared_ptr<const WordPiece> WordPiece::from_vocab(std::string_view vocab_txt,
                                                       const std::string& source,
                                                       const WordPieceFileOptions& options) {
  return make_word_piece(parse_vocab_txt(vocab_txt, source, options), source);
}

std::string WordPiece::Impl::to_json() const {
  const nlohmann::ordered_json options = {{"type", "WordPiece"},
                                          {"unk_token", definition_.unk_token},
                                          {"continuing_subword_prefix", definition_.prefix},
                                          {"max_input_chars_per_word", definition_.longest_word}};
  std::string model = options.dump();
  model.back() = ',';
  model += "\"vocab\":" + vocab_json_of(definition_.tokens) + '}';
  return tokenizer_json_of(definition_, model);
}

std::string WordPiece::Impl::decode_bytes(std::span<const TokenId> ids, bool skip_special) const {
  std::string text;
  bool first = true;
  for (const TokenId id : ids) {
    if (!exists(id) || (skip_special && is_skipped(id))) continue;
    if (!definition_.decoder_prefix) {
      if (!first) text += ' ';
      text += decoded(id);
    } else {
      text += word_piece_text(decoded(id), first, *definition_.decoder_prefix, definition_.cleanup);
    }
    first = false;
  }
  return text;
}

}  // namespace shoal
