#include "shoal/train/data/tokenizer/word_piece.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/bert_unicode.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_cache.h"
#include "shoal/train/data/tokenizer/workspace_pool.h"

namespace shoal {
namespace {

struct Workspace {
  WordCache cache;
  NormalizedText normalized;
  std::vector<TokenId> ids;
  std::string key;  // of a word's later pieces: the prefix and the rest
};

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>{}(text);
  }
};

std::size_t characters_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !unicode::is_continuation(c); }));
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
    text.replace(at, from.size(), to);
}

// decoders/wordpiece.rs, in its order.
void clean_up(std::string& text) {
  for (const auto& [from, to] :
       std::initializer_list<std::pair<const char*, const char*>>{{" .", "."},
                                                                  {" ?", "?"},
                                                                  {" !", "!"},
                                                                  {" ,", ","},
                                                                  {" ' ", "'"},
                                                                  {" n't", "n't"},
                                                                  {" 'm", "'m"},
                                                                  {" do not", " don't"},
                                                                  {" 's", "'s"},
                                                                  {" 've", "'ve"},
                                                                  {" 're", "'re"}})
    replace_all(text, from, to);
}

// Calls word(view) for each run between white space, punctuation standing alone: BertPreTokenizer.
template <typename Word>
void words_of(std::string_view text, const Word& word) {
  const std::uint8_t* classes = unicode::bert_classes();
  constexpr std::uint8_t kEnds = unicode::bert_white | unicode::bert_punctuation;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    const std::uint8_t kind = classes[c.value];
    if (kind & kEnds) {
      if (begin < at) word(text.substr(begin, at - begin));
      if (kind & unicode::bert_punctuation) word(text.substr(at, c.bytes));
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin < text.size()) word(text.substr(begin));
}

}  // namespace

struct WordPiece::Impl {
  Impl(WordPieceDefinition definition_in, const std::string& source);

  // Calls normalized(workspace.normalized.text, its begin) parts' word(view, piece) and
  // added(begin, end, id) from left to right; begin and end are bytes of `text`.
  template <typename Word, typename Added>
  void walk(std::string_view text, bool origins, Workspace& workspace, const Word& word,
            const Added& added) const {
    added_.split_text(
        text,
        [&](std::string_view piece) {
          const auto base = static_cast<std::size_t>(piece.data() - text.data());
          NormalizedText& normalized = workspace.normalized;
          normalizer_.normalize(piece, base, origins, normalized);
          added_.split_normalized(
              normalized.text, [&](std::string_view part) { words_of(part, word); },
              [&](std::string_view view, TokenId id) {
                const auto [begin, end] = origin_of(normalized, view, origins);
                added(begin, end, id);
              });
        },
        [&](std::string_view view, TokenId id) {
          const auto begin = static_cast<std::size_t>(view.data() - text.data());
          added(begin, begin + view.size(), id);
        });
  }

  // The bytes of the original text that a part of the normalized one came from.
  static std::pair<std::size_t, std::size_t> origin_of(const NormalizedText& normalized,
                                                       std::string_view part, bool known) {
    if (!known) return {0, 0};
    const auto at = static_cast<std::size_t>(part.data() - normalized.text.data());
    return {normalized.origins[at].begin, normalized.origins[at + part.size() - 1].end};
  }

  // Appends the tokens of a word to ids, and to `bytes` how long each is; one token for all of a
  // word that the vocabulary does not spell.
  void pieces_of(std::string_view word, std::string& key, std::vector<TokenId>& ids,
                 std::vector<std::size_t>* bytes) const;
  void append(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_with_offsets(std::string_view text, Encoding& encoding) const;
  std::string normalized(const std::string& token) const {
    NormalizedText result;
    normalizer_.normalize(token, 0, false, result);
    return result.text;
  }
  std::optional<TokenId> find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  bool exists(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < texts_.size() &&
           texts_[static_cast<std::size_t>(id)];
  }

  WordPieceDefinition definition_;
  BertNormalizer normalizer_;
  AddedVocabulary added_;
  std::unordered_map<std::string, TokenId, TextHash, std::equal_to<>> ids_;  // the model's
  std::size_t longest_token_ = 0;                                            // in bytes
  TokenId unknown_ = 0;
  std::vector<std::optional<std::string>> texts_;  // by id, added tokens included
  std::map<TokenId, std::string> normalized_;      // what decode() writes for these added tokens
  std::vector<bool> special_;                      // by id
  TokenRoles roles_;
  mutable WorkspacePool<Workspace> pool_;
  mutable std::once_flag hashed_;
  mutable std::string hash_;
};

WordPiece::Impl::Impl(WordPieceDefinition definition_in, const std::string& source)
    : definition_(std::move(definition_in)),
      normalizer_(definition_.normalize),
      added_(definition_.added, [this](const std::string& token) { return normalized(token); }),
      texts_(definition_.tokens) {
  for (std::size_t id = 0; id < definition_.tokens.size(); ++id) {
    const auto& token = definition_.tokens[id];
    if (!token) continue;
    ids_.insert_or_assign(*token, static_cast<TokenId>(id));
    longest_token_ = std::max(longest_token_, token->size());
  }
  const auto unknown = find(definition_.unk_token);
  if (!unknown)
    throw_error(ErrorCode::corrupt_data, "{}: the vocabulary lacks its unk_token '{}'", source,
                definition_.unk_token);
  unknown_ = *unknown;
  for (const auto& [token, id] : added_.tokens()) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= texts_.size()) texts_.resize(at + 1);
    texts_[at] = token.content;
  }
  special_.resize(texts_.size());
  for (const auto& [token, id] : added_.tokens()) {
    special_[static_cast<std::size_t>(id)] = token.special;
    if (token.normalized) normalized_[id] = normalized(token.content);
  }
  check_template(definition_.sequence, texts_.size(), source);
}

void WordPiece::Impl::pieces_of(std::string_view word, std::string& key, std::vector<TokenId>& ids,
                                std::vector<std::size_t>* bytes) const {
  const std::size_t before = ids.size();
  const auto give_up = [&] {
    ids.resize(before);
    ids.push_back(unknown_);
    if (bytes != nullptr) bytes->assign(1, word.size());
  };
  if (bytes != nullptr) bytes->clear();
  if (characters_of(word) > static_cast<std::size_t>(definition_.longest_word)) return give_up();
  for (std::size_t begin = 0; begin < word.size();) {
    key.assign(begin > 0 ? definition_.prefix : "");
    const std::size_t prefix = key.size();
    std::size_t length =
        std::min(word.size() - begin, longest_token_ - std::min(prefix, longest_token_));
    std::optional<TokenId> found;
    for (key.append(word, begin, length); length > 0; --length) {
      // Only where a character ends.
      if (begin + length < word.size() && unicode::is_continuation(word[begin + length])) continue;
      if ((found = find(std::string_view(key).substr(0, prefix + length)))) break;
    }
    if (!found) return give_up();
    ids.push_back(*found);
    if (bytes != nullptr) bytes->push_back(length);
    begin += length;
  }
}

void WordPiece::Impl::append(std::string_view text, std::vector<TokenId>& ids) const {
  check_utf8(text, "text to tokenize");
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
  walk(
      text, false, workspace,
      [&](std::string_view word) {
        const std::string& all = workspace.normalized.text;
        const auto readable = static_cast<std::size_t>(all.data() + all.size() - word.data());
        const WordCache::Key key = WordCache::key_of(word, readable);
        std::span<const TokenId> found = workspace.cache.find(word, key);
        if (found.data() == nullptr) {
          workspace.ids.clear();
          pieces_of(word, workspace.key, workspace.ids, nullptr);
          workspace.cache.insert(word, key, workspace.ids);
          found = workspace.ids;
        }
        ids.insert(ids.end(), found.begin(), found.end());
      },
      [&](std::size_t, std::size_t, TokenId id) { ids.push_back(id); });
}

void WordPiece::Impl::encode_with_offsets(std::string_view text, Encoding& encoding) const {
  check_utf8(text, "text to tokenize");
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
  OffsetWriter offsets(text, encoding);
  std::vector<std::size_t> bytes;
  walk(
      text, true, workspace,
      [&](std::string_view word) {
        workspace.ids.clear();
        pieces_of(word, workspace.key, workspace.ids, &bytes);
        for (std::size_t i = 0, at = 0; i < bytes.size(); at += bytes[i++]) {
          const auto [begin, end] =
              origin_of(workspace.normalized, word.substr(at, bytes[i]), true);
          offsets.add_span(workspace.ids[i], begin, end - begin);
        }
      },
      [&](std::size_t begin, std::size_t end, TokenId id) {
        offsets.add_span(id, begin, end - begin);
      });
}

WordPiece::WordPiece(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
WordPiece::~WordPiece() = default;

std::shared_ptr<const WordPiece> make_word_piece(WordPieceDefinition definition,
                                                 const std::string& source,
                                                 const RoleNames& names) {
  auto impl = std::make_unique<WordPiece::Impl>(std::move(definition), source);
  TokenRoles& roles = impl->roles_;
  auto tokenizer = std::make_shared<WordPiece>(std::move(impl));
  roles = find_roles(*tokenizer, names, source,
                     {.bos = {},
                      .eos = {},
                      .pad = {"[PAD]"},
                      .unk = {"[UNK]"},
                      .mask = {"[MASK]"},
                      .cls = {"[CLS]"},
                      .sep = {"[SEP]"}});
  return tokenizer;
}

std::shared_ptr<const WordPiece> WordPiece::from_json(std::string_view json,
                                                      const std::string& source) {
  return make_word_piece(parse_word_piece(parse_json(json, source), source), source);
}

std::shared_ptr<const WordPiece> WordPiece::from_vocab(std::string_view vocab_txt,
                                                       const std::string& source,
                                                       const WordPieceFileOptions& options) {
  return make_word_piece(parse_vocab_txt(vocab_txt, source, options), source);
}

std::string WordPiece::to_json() const {
  const WordPieceDefinition& definition = impl_->definition_;
  const nlohmann::ordered_json options = {{"type", "WordPiece"},
                                          {"unk_token", definition.unk_token},
                                          {"continuing_subword_prefix", definition.prefix},
                                          {"max_input_chars_per_word", definition.longest_word}};
  std::string model = options.dump();
  model.back() = ',';
  model += "\"vocab\":" + vocab_json_of(definition.tokens) + '}';
  return tokenizer_json_of(definition, model);
}

std::vector<Tokenizer::File> WordPiece::files() const {
  std::string lines;
  for (const auto& token : impl_->definition_.tokens) lines += token.value_or("") + '\n';
  return {{"vocab.txt", lines}, {"tokenizer.json", to_json()}};
}

std::int64_t WordPiece::vocab_size() const {
  return std::count_if(impl_->texts_.begin(), impl_->texts_.end(),
                       [](const auto& text) { return text.has_value(); });
}
TokenId WordPiece::max_id() const { return static_cast<TokenId>(impl_->texts_.size()) - 1; }
const TokenRoles& WordPiece::roles() const { return impl_->roles_; }
const SequenceTemplate& WordPiece::sequence_template() const { return impl_->definition_.sequence; }

Encoding WordPiece::encode(std::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  if (options.offsets)
    impl_->encode_with_offsets(text, encoding);
  else
    impl_->append(text, encoding.ids);
  encoding.special.assign(encoding.ids.size(), 0);
  encoding.types.assign(encoding.ids.size(), 0);
  return options.add_special_tokens ? join(impl_->definition_.sequence, encoding) : encoding;
}

void WordPiece::append_ids(std::string_view text, std::vector<TokenId>& ids,
                           bool add_special_tokens) const {
  if (!add_special_tokens) return impl_->append(text, ids);
  for (const auto& piece : impl_->definition_.sequence.single) {
    if (piece.text == SequenceTemplate::kSpecial)
      ids.push_back(piece.id);
    else
      impl_->append(text, ids);
  }
}

std::string WordPiece::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  const WordPieceDefinition& definition = impl_->definition_;
  std::string text;
  bool first = true;
  for (const TokenId id : ids) {
    if (!impl_->exists(id)) continue;
    const auto at = static_cast<std::size_t>(id);
    if (skip_special_tokens && impl_->special_[at]) continue;
    const auto normalized = impl_->normalized_.find(id);
    std::string token =
        normalized == impl_->normalized_.end() ? *impl_->texts_[at] : normalized->second;
    if (!first) {
      if (token.starts_with(definition.decoder_prefix))
        token.erase(0, definition.decoder_prefix.size());
      else
        token.insert(0, 1, ' ');
    }
    if (definition.cleanup) clean_up(token);
    text += token;
    first = false;
  }
  return text;
}

std::string WordPiece::decode_bytes(std::span<const TokenId> ids, bool skip_special_tokens) const {
  return decode(ids, skip_special_tokens);
}

std::optional<TokenId> WordPiece::token_to_id(std::string_view token) const {
  for (const auto& [added, id] : impl_->added_.tokens())
    if (added.content == token) return id;
  return impl_->find(token);
}

std::optional<std::string> WordPiece::id_to_token(TokenId id) const {
  return impl_->exists(id) ? impl_->texts_[static_cast<std::size_t>(id)] : std::nullopt;
}

bool WordPiece::is_special(TokenId id) const {
  return impl_->exists(id) && impl_->special_[static_cast<std::size_t>(id)];
}

const std::string& WordPiece::hash() const {
  std::call_once(impl_->hashed_, [&] { impl_->hash_ = to_hex(sha256(to_json())); });
  return impl_->hash_;
}

}  // namespace shoal
