#include "shoal/train/data/tokenizer/composed_tokenizer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/growth.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/offsets.h"
#include "shoal/train/data/tokenizer/piece_normalizer.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"
#include "shoal/train/data/tokenizer/tokenizer_impl.h"
#include "shoal/train/data/tokenizer/unicode_classes.h"
#include "shoal/train/data/tokenizer/unigram_model.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_cache.h"
#include "shoal/train/data/tokenizer/workspace_pool.h"

namespace shoal {
namespace {

struct ComposedWorkspace {
  WordCache cache;
  NormalizedText normalized;
  NormalizedText marked;  // one part, with marks for spaces
  PreTokenizer::Workspace cut;
  std::vector<UnigramModel::Node> nodes;
  std::vector<UnigramModel::Symbol> symbols;
  std::vector<BpeModel::Symbol> merged;
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
};

// The few forms of splitting in SentencePiece's converted files: optionally at white space or by a
// pattern, then optionally at marks. They are applied without a list of words.
struct MarkedCut {
  bool white_space = false;
  const SplitPattern* pattern = nullptr;
  const Metaspace* metaspace = nullptr;
};

std::optional<MarkedCut> marked_cut(const std::vector<PreTokenizerStep>& steps) {
  using Kind = PreTokenizerStep::Kind;
  MarkedCut cut;
  std::size_t at = 0;
  if (at < steps.size() && steps[at].kind == Kind::white_space)
    cut.white_space = ++at > 0;
  else if (at < steps.size() && steps[at].kind == Kind::split)
    cut.pattern = &*steps[at++].pattern;
  if (at < steps.size() && steps[at].kind == Kind::metaspace)
    cut.metaspace = &steps[at++].metaspace;
  if (at < steps.size()) return std::nullopt;
  return cut;
}

}  // namespace

struct ComposedTokenizer::Impl final : TokenizerImpl {
  Impl(ComposedDefinition definition_in, const std::string& source)
      : TokenizerImpl(definition_in, source,
                      by_normalizer(PieceNormalizer(definition_in.normalize))),
        definition_(std::move(definition_in)),
        normalizer_(definition_.normalize),
        marked_(marked_cut(definition_.cut)),
        pre_tokenizer_(definition_.cut) {
    if (definition_.bpe) definition_.bpe->model.characters = true;
    if (definition_.bpe)
      bpe_.emplace(std::exchange(definition_.tokens, {}),
                   std::exchange(definition_.bpe->merges, {}), definition_.bpe->model, source);
    else
      unigram_.emplace(definition_.tokens, definition_.scores, definition_.unknown,
                       definition_.byte_fallback, source);
  }

  // Calls word(view, text that contains it) and added(begin, end, id) from left to right.
  template <typename Word, typename Added>
  void walk(std::string_view text, bool origins, ComposedWorkspace& workspace, const Word& word,
            const Added& added) const {
    // The first word is recognized by its origin, unless its position suffices.
    const bool marks_first = pre_tokenizer_.needs_origins();
    origins |= marks_first && !(marked_ && normalizer_.keeps_order());
    bool begins_text = false;
    std::size_t made = 0;
    walk_normalized(
        text, workspace.normalized,
        [&](std::string_view piece, std::size_t base) {
          begins_text = base == 0;
          normalizer_.normalize(piece, base, origins, workspace.normalized);
        },
        [&](std::string_view part) {
          if (marked_) return marked_words_of(part, begins_text, workspace, word);
          const NormalizedText& in =
              pre_tokenizer_.cut(part, workspace.normalized, text.size(), workspace.cut);
          made += in.text.size();
          if (made > most_bytes_of(text.size()))
            made_too_much("the tokenizer's pre_tokenizer", text.size());
          for (const std::string_view of_part : workspace.cut.words) word(of_part, in);
        },
        added);
  }

  // The words of a part if marked_ defines how to split it.
  template <typename Word>
  void marked_words_of(std::string_view part, bool begins_text, ComposedWorkspace& workspace,
                       const Word& word) const {
    const auto words = [&](std::string_view between) {
      if (marked_->metaspace != nullptr)
        words_of(between, begins_text, workspace, word);
      else
        word(between, workspace.normalized);
    };
    if (marked_->pattern != nullptr) {
      workspace.pieces.clear();
      marked_->pattern->split(part, workspace.pieces);
      for (const std::string_view piece : workspace.pieces) words(piece);
    } else if (marked_->white_space) {
      split_at_white_space(part, words);
    } else {
      words(part);
    }
  }

  // As pre_tokenizers/metaspace.rs: replaces spaces by marks, adds one in front, and starts a word
  // at each. `begins_text`: in the first pass, no added token precedes the normalized piece.
  template <typename Word>
  void words_of(std::string_view part, bool begins_text, ComposedWorkspace& workspace,
                const Word& word) const {
    const Metaspace& metaspace = *marked_->metaspace;
    NormalizedText& marked = workspace.marked;
    const NormalizedText& from = workspace.normalized;
    const auto begin = static_cast<std::size_t>(part.data() - from.text.data());
    marked.text.clear();
    marked.origins.clear();
    const bool at_start =
        from.origins.empty() ? begins_text && begin == 0 : from.origins[begin].begin == 0;
    append_marked(metaspace, part, at_start, from, marked);
    const std::size_t size = marked.text.size();
    marked.text.append(WordCache::kReadAhead, '\0');
    for (std::size_t at = 0; at < size;) {
      const std::size_t next =
          metaspace.split ? std::min(marked.text.find(metaspace.replacement, at + 1), size) : size;
      word(std::string_view(marked.text).substr(at, next - at), marked);
      at = next;
    }
  }

  void append(std::string_view text, std::vector<TokenId>& ids) const override;
  void encode_with_offsets(std::string_view text, Encoding& encoding) const override;
  std::string decode_bytes(std::span<const TokenId> ids, bool skip_special) const override;
  const std::vector<std::optional<std::string>>& tokens() const override {
    return bpe_ ? bpe_->tokens() : definition_.tokens;
  }
  std::optional<TokenId> find(std::string_view token) const override {
    return bpe_ ? bpe_->find(token) : unigram_->find(token);
  }
  std::string to_json() const override {
    return tokenizer_json_of(definition_, bpe_ ? bpe_model_json_of(*bpe_, definition_.bpe->model)
                                               : unigram_model_json_of(definition_));
  }

  // Calls part(view) for each part that can be tokenized separately.
  template <typename Part>
  void parts_of(std::string_view word, const Part& part) const {
    if (!bpe_) return part(word);
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = bpe_->part_end(word, at);
      part(word.substr(at, end - at));
      at = end;
    }
  }

  ComposedDefinition definition_;  // BPE: tokens and merges are moved to bpe_
  PieceNormalizer normalizer_;
  std::optional<MarkedCut> marked_;      // equivalent of definition_.cut, if possible
  PreTokenizer pre_tokenizer_;           // used otherwise
  std::optional<UnigramModel> unigram_;  // either this or bpe_
  std::optional<BpeModel> bpe_;
  mutable WorkspacePool<ComposedWorkspace> pool_;
};

void ComposedTokenizer::Impl::append(std::string_view text, std::vector<TokenId>& ids) const {
  Borrowed<ComposedWorkspace> borrowed(pool_);
  ComposedWorkspace& workspace = *borrowed;
  walk(
      text, false, workspace,
      [&](std::string_view word, const NormalizedText& in) {
        const char* end = in.text.data() + in.text.size();
        const auto spell = [&](std::string_view part, std::vector<TokenId>& made) {
          if (bpe_) {
            bpe_->tokenize(part, workspace.merged);
            for (const auto& symbol : workspace.merged) made.push_back(symbol.id);
          } else {
            unigram_->tokenize(part, workspace.nodes, workspace.symbols);
            for (const auto& symbol : workspace.symbols) made.push_back(symbol.id);
          }
        };
        parts_of(word, [&](std::string_view part) {
          const auto found = workspace.cache.ids_of(
              part, static_cast<std::size_t>(end - part.data()), workspace.ids,
              [&](std::vector<TokenId>& made) { spell(part, made); });
          ids.insert(ids.end(), found.begin(), found.end());
        });
      },
      [&](std::size_t, std::size_t, TokenId id, std::string_view) { ids.push_back(id); });
}

void ComposedTokenizer::Impl::encode_with_offsets(std::string_view text, Encoding& encoding) const {
  Borrowed<ComposedWorkspace> borrowed(pool_);
  ComposedWorkspace& workspace = *borrowed;
  OffsetWriter offsets(text, encoding);
  const bool trim = definition_.trim_offsets;
  if (trim) offsets.trim(definition_.trim_prefix_space);
  walk(
      text, true, workspace,
      [&](std::string_view word, const NormalizedText& in) {
        const auto add = [&](TokenId id, std::size_t at, std::size_t bytes) {
          const std::string_view part = word.substr(at, bytes);
          const auto [begin, end] = in.origin_of(part);
          offsets.add_text(id, begin, end - begin,
                           trim && bpe_
                               ? std::string_view(*bpe_->tokens()[static_cast<std::size_t>(id)])
                               : part);
        };
        if (!bpe_) {
          unigram_->tokenize(word, workspace.nodes, workspace.symbols);
          for (const auto& symbol : workspace.symbols)
            add(symbol.id, symbol.begin, symbol.end - symbol.begin);
          return;
        }
        std::size_t at = 0;  // across parts; a character without a token shifts later offsets
        parts_of(word, [&](std::string_view part) {
          bpe_->tokenize(part, workspace.merged);
          for (const auto& symbol : workspace.merged) {
            add(symbol.id, at, symbol.bytes);
            at += symbol.bytes;
          }
        });
      },
      [&](std::size_t begin, std::size_t end, TokenId id, std::string_view as) {
        offsets.add_text(id, begin, end - begin, as);
      });
}

std::string ComposedTokenizer::Impl::decode_bytes(std::span<const TokenId> ids,
                                                  bool skip_special) const {
  std::vector<std::string> tokens;
  for (const TokenId id : ids)
    if (exists(id) && !(skip_special && is_skipped(id))) tokens.push_back(decoded(id));
  if (!definition_.decode) return fmt::format("{}", fmt::join(tokens, " "));
  return decode_tokens(*definition_.decode, std::move(tokens));
}

std::shared_ptr<const ComposedTokenizer> make_composed_tokenizer(ComposedDefinition definition,
                                                                 const std::string& source,
                                                                 const RoleNames& names) {
  return make_tokenizer<ComposedTokenizer>(
      std::make_unique<ComposedTokenizer::Impl>(std::move(definition), source), names, source,
      {.bos = {"<s>", "[CLS]", "<bos>", "<|endoftext|>"},
       .eos = {"</s>", "[SEP]", "<eos>", "<|endoftext|>"},
       .pad = {"<pad>"},
       .unk = {"<unk>"},
       .mask = {"[MASK]", "<mask>"},
       .cls = {"[CLS]", "<cls>"},
       .sep = {"[SEP]", "<sep>"}});
}

std::shared_ptr<const ComposedTokenizer> ComposedTokenizer::from_spiece(
    std::string_view model, const std::string& source, const SpieceOptions& options) {
  return make_composed_tokenizer(
      spiece_definition(read_spiece_model(model, source), source, options), source);
}

}  // namespace shoal
