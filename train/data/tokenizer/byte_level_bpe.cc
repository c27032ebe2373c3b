#include "shoal/train/data/tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <mutex>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_cache.h"
#include "shoal/train/data/tokenizer/workspace_pool.h"

namespace shoal {
namespace {

// What one encoding call works in.
struct Workspace {
  WordCache cache;
  std::vector<BpeModel::Symbol> symbols;
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
  std::string prefixed;
};

}  // namespace

struct ByteLevelBpe::Impl {
  Impl(BpeDefinition definition_in, const std::string& source);

  // Calls word(bytes, readable, place) and added(view, id) from left to right.
  template <typename Word, typename Added>
  void walk(std::string_view text, Workspace& workspace, const Word& word,
            const Added& added) const {
    added_.split(
        text,
        [&](std::string_view piece) {
          if (definition_.splits.empty()) return words_of(text, piece, workspace, word);
          std::vector<std::string_view>& pieces = workspace.pieces;
          pieces.assign(1, piece);
          for (const SplitPattern& split : definition_.splits) {
            std::vector<std::string_view> finer;
            for (const std::string_view coarse : pieces) split.split(coarse, finer);
            pieces = std::move(finer);
          }
          for (const std::string_view part : pieces) words_of(text, part, workspace, word);
        },
        added);
  }

  template <typename Word>
  void words_of(std::string_view text, std::string_view piece, Workspace& workspace,
                const Word& word) const {
    const bool prefix = definition_.add_prefix_space && piece.front() != ' ';
    WordPlace place{static_cast<std::size_t>(piece.data() - text.data()), prefix};
    std::string_view scanned = piece;
    const char* readable_end = text.data() + text.size();
    if (prefix) {
      workspace.prefixed.assign(1, ' ').append(piece);
      scanned = workspace.prefixed;
      readable_end = scanned.data() + scanned.size();
    }
    const auto emit = [&](std::string_view bytes) {
      word(bytes, static_cast<std::size_t>(readable_end - bytes.data()), place);
      place.begin += bytes.size() - (place.prefixed ? 1 : 0);
      place.prefixed = false;
    };
    if (!definition_.gpt2_words) return emit(scanned);
    Gpt2Scanner scanner(scanned);
    for (std::string_view bytes = scanner.next(); !bytes.empty(); bytes = scanner.next())
      emit(bytes);
  }

  // Of one word, from the cache where it was met before; valid until the next call.
  std::span<const TokenId> ids_of(std::string_view word, std::size_t readable,
                                  Workspace& workspace) const;
  // Whether the tokens' bytes are the word's, one after the other: not where a byte is unknown or
  // tokens are written with a prefix.
  bool spell(std::span<const TokenId> ids, std::string_view word) const;
  void append(std::string_view text, std::vector<TokenId>& ids) const;
  void encode_with_offsets(std::string_view text, Encoding& encoding) const;

  BpeDefinition definition_;  // without its tokens and merges: the model has them
  BpeModel model_;
  AddedVocabulary added_;
  TokenRoles roles_;
  std::int64_t vocab_size_ = 0;
  std::vector<std::string> texts_;   // bytes that decode() writes, by id
  std::vector<std::uint8_t> kinds_;  // by id
  static constexpr std::uint8_t kExists = 1, kSpecial = 2, kAdded = 4;
  mutable WorkspacePool<Workspace> pool_;
  mutable std::once_flag hashed_;
  mutable std::string hash_;
};

ByteLevelBpe::Impl::Impl(BpeDefinition definition_in, const std::string& source)
    : definition_(std::move(definition_in)),
      model_(std::exchange(definition_.tokens, {}), std::exchange(definition_.merges, {}),
             definition_.model, source),
      added_(definition_.added) {
  std::size_t ids = model_.tokens().size();
  for (const auto& [token, id] : added_.tokens())
    ids = std::max(ids, static_cast<std::size_t>(id) + 1);
  check_template(definition_.sequence, ids, source);
  texts_.resize(ids);
  kinds_.resize(ids);
  const auto set = [&](std::size_t id, const std::string& token, std::uint8_t kind) {
    texts_[id] = bytes_of_token(token).value_or(token);
    if (!(kinds_[id] & kExists)) ++vocab_size_;
    kinds_[id] = kind;
  };
  for (std::size_t id = 0; id < model_.tokens().size(); ++id)
    if (const auto& token = model_.tokens()[id]) set(id, *token, kExists);
  for (const auto& [token, id] : added_.tokens())
    set(static_cast<std::size_t>(id), token.content,
        static_cast<std::uint8_t>(kExists | kAdded | (token.special ? kSpecial : 0)));
  if (ids == 0) throw_error(ErrorCode::corrupt_data, "{}: the vocabulary is empty", source);
}

std::span<const TokenId> ByteLevelBpe::Impl::ids_of(std::string_view word, std::size_t readable,
                                                    Workspace& workspace) const {
  const WordCache::Key key = WordCache::key_of(word, readable);
  std::span<const TokenId> found = workspace.cache.find(word, key);
  if (found.data() == nullptr) [[unlikely]] {
    model_.tokenize(word, workspace.symbols);
    workspace.ids.clear();
    for (const auto& symbol : workspace.symbols) workspace.ids.push_back(symbol.id);
    workspace.cache.insert(word, key, workspace.ids);
    found = workspace.ids;
  }
  return found;
}

bool ByteLevelBpe::Impl::spell(std::span<const TokenId> ids, std::string_view word) const {
  std::size_t bytes = 0;
  for (const TokenId id : ids) {
    if (id == model_.unknown()) return false;
    bytes += texts_[static_cast<std::size_t>(id)].size();
  }
  return bytes == word.size();
}

void ByteLevelBpe::Impl::append(std::string_view text, std::vector<TokenId>& ids) const {
  check_utf8(text, "text to tokenize");
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
  walk(
      text, workspace,
      [&](std::string_view word, std::size_t readable, const WordPlace&) {
        const std::span<const TokenId> found = ids_of(word, readable, workspace);
        if (found.size() == 1)
          ids.push_back(found[0]);
        else
          ids.insert(ids.end(), found.begin(), found.end());
      },
      [&](std::string_view, TokenId id) { ids.push_back(id); });
}

void ByteLevelBpe::Impl::encode_with_offsets(std::string_view text, Encoding& encoding) const {
  check_utf8(text, "text to tokenize");
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
  OffsetWriter offsets(text, encoding);
  if (definition_.trim_offsets) offsets.trim(definition_.trim_prefix_space);
  walk(
      text, workspace,
      [&](std::string_view word, std::size_t readable, const WordPlace& place) {
        std::size_t at = 0;
        const auto add = [&](TokenId id, std::size_t bytes) {
          offsets.add_token(id, place, at, at + bytes, texts_[static_cast<std::size_t>(id)]);
          at += bytes;
        };
        const std::span<const TokenId> ids = ids_of(word, readable, workspace);
        if (spell(ids, word)) {
          for (const TokenId id : ids) add(id, texts_[static_cast<std::size_t>(id)].size());
          return;
        }
        model_.tokenize(word, workspace.symbols);
        for (const auto& symbol : workspace.symbols) add(symbol.id, symbol.bytes);
      },
      [&](std::string_view view, TokenId id) {
        offsets.add_span(id, static_cast<std::size_t>(view.data() - text.data()), view.size());
      });
}

ByteLevelBpe::ByteLevelBpe(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ByteLevelBpe::~ByteLevelBpe() = default;

std::shared_ptr<const ByteLevelBpe> make_byte_level_bpe(BpeDefinition definition,
                                                        const std::string& source,
                                                        const RoleNames& names) {
  auto impl = std::make_unique<ByteLevelBpe::Impl>(std::move(definition), source);
  TokenRoles& roles = impl->roles_;
  auto tokenizer = std::make_shared<ByteLevelBpe>(std::move(impl));
  roles = find_roles(*tokenizer, names, source,
                     {.bos = {"<|endoftext|>", "<s>"},
                      .eos = {"<|endoftext|>", "</s>"},
                      .pad = {"<pad>"},
                      .unk = {"<|endoftext|>", "<unk>"},
                      .mask = {"<mask>"},
                      .cls = {"<s>"},
                      .sep = {"</s>"}});
  return tokenizer;
}

std::shared_ptr<const ByteLevelBpe> ByteLevelBpe::from_json(std::string_view json,
                                                            const std::string& source) {
  return make_byte_level_bpe(parse_bpe(parse_json(json, source), source), source);
}

std::shared_ptr<const ByteLevelBpe> ByteLevelBpe::from_vocab_and_merges(
    std::string_view vocab_json, std::string_view merges_txt, const std::string& source,
    const BpeFileOptions& options) {
  return make_byte_level_bpe(parse_vocab_and_merges(vocab_json, merges_txt, source, options),
                             source);
}

std::string ByteLevelBpe::to_json() const {
  return tokenizer_json_of(impl_->definition_,
                           bpe_model_json_of(impl_->model_, impl_->definition_.model));
}

std::vector<Tokenizer::File> ByteLevelBpe::files() const {
  return {{"vocab.json", vocab_json_of(impl_->model_.tokens())},
          {"merges.txt", merges_txt_of(impl_->model_)},
          {"tokenizer.json", to_json()}};
}

std::int64_t ByteLevelBpe::vocab_size() const { return impl_->vocab_size_; }
TokenId ByteLevelBpe::max_id() const { return static_cast<TokenId>(impl_->texts_.size()) - 1; }
const TokenRoles& ByteLevelBpe::roles() const { return impl_->roles_; }
const SequenceTemplate& ByteLevelBpe::sequence_template() const {
  return impl_->definition_.sequence;
}

Encoding ByteLevelBpe::encode(std::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  if (options.offsets)
    impl_->encode_with_offsets(text, encoding);
  else
    impl_->append(text, encoding.ids);
  encoding.special.assign(encoding.ids.size(), 0);
  encoding.types.assign(encoding.ids.size(), 0);
  return options.add_special_tokens ? join(impl_->definition_.sequence, encoding) : encoding;
}

void ByteLevelBpe::append_ids(std::string_view text, std::vector<TokenId>& ids,
                              bool add_special_tokens) const {
  if (!add_special_tokens) return impl_->append(text, ids);
  for (const auto& piece : impl_->definition_.sequence.single) {
    if (piece.text == SequenceTemplate::kSpecial)
      ids.push_back(piece.id);
    else
      impl_->append(text, ids);
  }
}

std::string ByteLevelBpe::decode_bytes(std::span<const TokenId> ids,
                                       bool skip_special_tokens) const {
  std::string text;
  for (const TokenId id : ids) {
    const auto at = static_cast<std::size_t>(id);
    if (id < 0 || at >= impl_->texts_.size()) continue;
    if (skip_special_tokens && (impl_->kinds_[at] & Impl::kSpecial)) continue;
    text += impl_->texts_[at];
  }
  return text;
}

std::string ByteLevelBpe::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text = decode_bytes(ids, skip_special_tokens);
  return first_invalid_utf8(text) < 0 ? text : repair_utf8(text);
}

std::optional<TokenId> ByteLevelBpe::token_to_id(std::string_view token) const {
  for (const auto& [added, id] : impl_->added_.tokens())
    if (added.content == token) return id;
  return impl_->model_.find(token);
}

std::optional<std::string> ByteLevelBpe::id_to_token(TokenId id) const {
  for (const auto& [added, added_id] : impl_->added_.tokens())
    if (added_id == id) return added.content;
  const auto& tokens = impl_->model_.tokens();
  if (id < 0 || static_cast<std::size_t>(id) >= tokens.size()) return std::nullopt;
  return tokens[static_cast<std::size_t>(id)];
}

bool ByteLevelBpe::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < impl_->kinds_.size() &&
         (impl_->kinds_[static_cast<std::size_t>(id)] & Impl::kSpecial);
}

const std::string& ByteLevelBpe::hash() const {
  std::call_once(impl_->hashed_, [&] { impl_->hash_ = to_hex(sha256(to_json())); });
  return impl_->hash_;
}

}  // namespace shoal
