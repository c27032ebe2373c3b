#include "shoal/train/data/tokenizer/byte_level_bpe.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/make_byte_level_bpe.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_cache.h"

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

// Workspaces between calls: a thread usually finds the one it used before, caches warm. Bounded by
// kSlots; what does not fit is freed.
class WorkspacePool {
 public:
  ~WorkspacePool() {
    for (auto& slot : slots_) delete slot.load();
  }
  std::unique_ptr<Workspace> take() {
    std::unique_ptr<Workspace> mine(home().exchange(nullptr, std::memory_order_acquire));
    return mine ? std::move(mine) : std::make_unique<Workspace>();
  }
  void give_back(std::unique_ptr<Workspace> workspace) {
    Workspace* none = nullptr;
    if (home().compare_exchange_strong(none, workspace.get(), std::memory_order_release,
                                       std::memory_order_relaxed))
      (void)workspace.release();  // the slot owns it now
  }

 private:
  static constexpr std::size_t kSlots = 64;
  std::atomic<Workspace*>& home() {
    const std::size_t hash = std::hash<std::thread::id>{}(std::this_thread::get_id());
    return slots_[(hash * 0x9E3779B97F4A7C15u) >> 58];
  }
  std::array<std::atomic<Workspace*>, kSlots> slots_{};
};

class Borrowed {
 public:
  explicit Borrowed(WorkspacePool& pool) : pool_(pool), workspace_(pool.take()) {}
  ~Borrowed() { pool_.give_back(std::move(workspace_)); }
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  Workspace& operator*() { return *workspace_; }

 private:
  WorkspacePool& pool_;
  std::unique_ptr<Workspace> workspace_;
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
  mutable WorkspacePool pool_;
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
  for (const auto& side : {definition_.before, definition_.after})
    for (const TokenId id : side)
      if (static_cast<std::size_t>(id) >= ids)
        throw_error(ErrorCode::corrupt_data,
                    "{}: the post-processor adds the id {}, but the highest id is {}", source, id,
                    ids - 1);
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
  Borrowed borrowed(pool_);
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
  Borrowed borrowed(pool_);
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
  const auto role = [&](const char* key,
                        std::initializer_list<const char*> usual) -> std::optional<TokenId> {
    if (!names.empty()) {
      const auto named = names.find(key);
      if (named == names.end()) return std::nullopt;
      const auto id = tokenizer->token_to_id(named->second);
      if (!id)
        throw_error(ErrorCode::corrupt_data, "{}: {} is '{}', which the tokenizer lacks", source,
                    key, named->second);
      return id;
    }
    for (const char* token : usual)
      if (const auto id = tokenizer->token_to_id(token)) return id;
    return std::nullopt;
  };
  roles.bos = role("bos_token", {"<|endoftext|>", "<s>"});
  roles.eos = role("eos_token", {"<|endoftext|>", "</s>"});
  roles.pad = role("pad_token", {"<pad>"});
  roles.unk = role("unk_token", {"<|endoftext|>", "<unk>"});
  roles.mask = role("mask_token", {"<mask>"});
  roles.cls = role("cls_token", {"<s>"});
  roles.sep = role("sep_token", {"</s>"});
  return tokenizer;
}

std::shared_ptr<const ByteLevelBpe> ByteLevelBpe::from_json(std::string_view json,
                                                            const std::string& source) {
  return make_byte_level_bpe(parse_tokenizer_json(json, source), source);
}

std::shared_ptr<const ByteLevelBpe> ByteLevelBpe::from_vocab_and_merges(
    std::string_view vocab_json, std::string_view merges_txt, const std::string& source,
    const BpeFileOptions& options) {
  return make_byte_level_bpe(parse_vocab_and_merges(vocab_json, merges_txt, source, options),
                             source);
}

std::string ByteLevelBpe::to_json() const {
  return tokenizer_json_of(impl_->model_, impl_->definition_);
}
std::string ByteLevelBpe::vocab_json() const { return vocab_json_of(impl_->model_); }
std::string ByteLevelBpe::merges_txt() const { return merges_txt_of(impl_->model_); }

std::int64_t ByteLevelBpe::vocab_size() const { return impl_->vocab_size_; }
TokenId ByteLevelBpe::max_id() const { return static_cast<TokenId>(impl_->texts_.size()) - 1; }
const TokenRoles& ByteLevelBpe::roles() const { return impl_->roles_; }

Encoding ByteLevelBpe::encode(std::string_view text, const EncodeOptions& options) const {
  Encoding encoding;
  if (options.offsets)
    impl_->encode_with_offsets(text, encoding);
  else
    impl_->append(text, encoding.ids);
  encoding.special.assign(encoding.ids.size(), 0);
  if (!options.add_special_tokens) return encoding;
  const auto insert = [&](bool front, const std::vector<TokenId>& ids) {
    const auto at = [front](auto& list) { return front ? list.begin() : list.end(); };
    encoding.ids.insert(at(encoding.ids), ids.begin(), ids.end());
    encoding.special.insert(at(encoding.special), ids.size(), std::uint8_t{1});
    if (!options.offsets) return;
    encoding.bytes.insert(at(encoding.bytes), ids.size(), TextSpan{});
    encoding.characters.insert(at(encoding.characters), ids.size(), TextSpan{});
  };
  insert(true, impl_->definition_.before);
  insert(false, impl_->definition_.after);
  return encoding;
}

void ByteLevelBpe::append_ids(std::string_view text, std::vector<TokenId>& ids,
                              bool add_special_tokens) const {
  const auto& [before, after] = std::tie(impl_->definition_.before, impl_->definition_.after);
  if (add_special_tokens) ids.insert(ids.end(), before.begin(), before.end());
  impl_->append(text, ids);
  if (add_special_tokens) ids.insert(ids.end(), after.begin(), after.end());
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
