#include "shoal/train/data/tokenizer/byte_level_bpe.h"

#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/gpt2_scanner.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/tokenizer_impl.h"
#include "shoal/train/data/tokenizer/word_cache.h"
#include "shoal/train/data/tokenizer/workspace_pool.h"

namespace shoal {
namespace {

// Scratch memory of one encoding call.
struct ByteLevelWorkspace {
  WordCache cache;
  std::vector<BpeModel::Symbol> symbols;
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
  std::string prefixed;
};

}  // namespace

struct ByteLevelBpe::Impl final : TokenizerImpl {
  Impl(BpeDefinition definition_in, const std::string& source);

  // Calls word(bytes, readable, place) and added(view, id) from left to right.
  template <typename Word, typename Added>
  void walk(std::string_view text, ByteLevelWorkspace& workspace, const Word& word,
            const Added& added) const {
    added_.split(
        text,
        [&](std::string_view piece) {
          if (definition_.splits.empty()) return words_of(text, piece, workspace, word);
          std::vector<std::string_view>& pieces = workspace.pieces;
          pieces.assign(1, piece);
          for (const SplitPattern& split : definition_.splits) {
            std::vector<std::string_view> finer;
            SplitPattern::Run run(split);
            for (const std::string_view coarse : pieces) run.split(coarse, finer);
            pieces = std::move(finer);
          }
          for (const std::string_view part : pieces) words_of(text, part, workspace, word);
        },
        added);
  }

  template <typename Word>
  void words_of(std::string_view text, std::string_view piece, ByteLevelWorkspace& workspace,
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

  // Ids of one word, cached; valid until the next call.
  std::span<const TokenId> ids_of(std::string_view word, std::size_t readable,
                                  ByteLevelWorkspace& workspace) const;
  // Whether the tokens' bytes concatenate to the word. False if a byte is unknown or tokens have a
  // prefix.
  bool spell(std::span<const TokenId> ids, std::string_view word) const;
  void append(std::string_view text, std::vector<TokenId>& ids) const override;
  void encode_with_offsets(std::string_view text, Encoding& encoding) const override;
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special) const override;
  const std::vector<std::optional<std::string>>& tokens() const override { return model_.tokens(); }
  std::optional<TokenId> find(std::string_view token) const override { return model_.find(token); }
  std::string to_json() const override {
    return tokenizer_json_of(definition_, bpe_model_json_of(model_, definition_.model));
  }
  std::vector<File> own_files() const override {
    return {{"vocab.json", vocab_json_of(model_.tokens())}, {"merges.txt", merges_txt_of(model_)}};
  }

  BpeDefinition definition_;  // tokens and merges are moved to model_
  BpeModel model_;
  std::vector<std::string> texts_;  // by id: bytes for decode()
  mutable WorkspacePool<ByteLevelWorkspace> pool_;
};

ByteLevelBpe::Impl::Impl(BpeDefinition definition_in, const std::string& source)
    : TokenizerImpl(definition_in, source),
      definition_(std::move(definition_in)),
      model_(std::exchange(definition_.tokens, {}), std::exchange(definition_.merges, {}),
             definition_.model, source) {
  texts_.resize(model_.tokens().size());
  const auto set = [&](std::size_t id, const std::string& token) {
    if (id >= texts_.size()) texts_.resize(id + 1);
    texts_[id] = bytes_of_token(token).value_or(token);
  };
  for (std::size_t id = 0; id < model_.tokens().size(); ++id)
    if (const auto& token = model_.tokens()[id]) set(id, *token);
  for (const auto& [token, id] : added_.tokens()) set(static_cast<std::size_t>(id), token.content);
}

std::span<const TokenId> ByteLevelBpe::Impl::ids_of(std::string_view word, std::size_t readable,
                                                    ByteLevelWorkspace& workspace) const {
  return workspace.cache.ids_of(word, readable, workspace.ids, [&](std::vector<TokenId>& ids) {
    model_.tokenize(word, workspace.symbols);
    for (const auto& symbol : workspace.symbols) ids.push_back(symbol.id);
  });
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
  Borrowed<ByteLevelWorkspace> borrowed(pool_);
  ByteLevelWorkspace& workspace = *borrowed;
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
  Borrowed<ByteLevelWorkspace> borrowed(pool_);
  ByteLevelWorkspace& workspace = *borrowed;
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

std::string ByteLevelBpe::Impl::decode_bytes(std::span<const TokenId> ids,
                                             bool skip_special) const {
  std::string text;
  for (const TokenId id : ids)
    if (exists(id) && !(skip_special && is_skipped(id)))
      text += texts_[static_cast<std::size_t>(id)];
  return text;
}

std::shared_ptr<const ByteLevelBpe> make_byte_level_bpe(BpeDefinition definition,
                                                        const std::string& source,
                                                        const RoleNames& names) {
  return make_tokenizer<ByteLevelBpe>(
      std::make_unique<ByteLevelBpe::Impl>(std::move(definition), source), names, source,
      {.bos = {"<|endoftext|>", "<s>"},
       .eos = {"<|endoftext|>", "</s>"},
       .pad = {"<pad>"},
       .unk = {"<|endoftext|>", "<unk>"},
       .mask = {"<mask>"},
       .cls = {"<s>"},
       .sep = {"</s>"}});
}

std::shared_ptr<const ByteLevelBpe> ByteLevelBpe::from_vocab_and_merges(
    std::string_view vocab_json, std::string_view merges_txt, const std::string& source,
    const BpeFileOptions& options) {
  return make_byte_level_bpe(parse_vocab_and_merges(vocab_json, merges_txt, source, options),
                             source);
}

}  // namespace shoal
