#include "shoal/train/data/tokenizer/sentence_piece.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/definition.h"
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

struct Workspace {
  WordCache cache;
  NormalizedText normalized;
  NormalizedText marked;  // one part of it, with marks for spaces
  std::vector<UnigramModel::Node> nodes;
  std::vector<UnigramModel::Symbol> symbols;
  std::vector<BpeModel::Symbol> merged;
  std::vector<TokenId> ids;
  std::vector<std::string_view> pieces;
};

// Calls word(view) for each run between white space.
template <typename Word>
void split_at_white_space(std::string_view text, const Word& word) {
  const std::uint8_t* classes = unicode::classes();
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const auto c = unicode::decode(text.data() + at);
    if ((classes[c.value] & unicode::kKind) == unicode::space) {
      if (begin < at) word(text.substr(begin, at - begin));
      begin = at + c.bytes;
    }
    at += c.bytes;
  }
  if (begin < text.size()) word(text.substr(begin));
}

// --- decoders/*.rs -------------------------------------------------------------------------------
std::string replaced(const std::string& text, std::string_view from, std::string_view to) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = 0; (at = text.find(from, done)) != std::string::npos;
       done = at + from.size())
    result.append(text, done, at - done).append(to);
  return result.append(text, done);
}

std::optional<char> byte_of_token(const std::string& token) {  // <0x41>
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, problem] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (problem != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

// Runs of byte tokens become the text that they spell, or one U+FFFD each.
void join_bytes(std::vector<std::string>& tokens) {
  std::vector<std::string> result;
  std::string bytes;
  const auto finish = [&] {
    if (first_invalid_utf8(bytes) < 0)
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\uFFFD");
    bytes.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = byte_of_token(token)) {
      bytes += *byte;
      continue;
    }
    if (!bytes.empty()) finish();
    result.push_back(std::move(token));
  }
  if (!bytes.empty()) finish();
  tokens = std::move(result);
}

std::string stripped(std::string text, const DecoderStep& step) {
  const std::string& c = step.pattern;
  for (std::int64_t i = 0; i < step.start && text.starts_with(c); ++i) text.erase(0, c.size());
  for (std::int64_t i = 0; i < step.stop && text.ends_with(c); ++i)
    text.resize(text.size() - c.size());
  return text;
}

void apply(const DecoderStep& step, std::vector<std::string>& tokens) {
  switch (step.kind) {
    case DecoderStep::Kind::metaspace:
      for (std::size_t i = 0; i < tokens.size(); ++i)
        tokens[i] = replaced(tokens[i], step.pattern, i == 0 && step.drop_first ? "" : " ");
      break;
    case DecoderStep::Kind::replace:
      for (std::string& token : tokens) token = replaced(token, step.pattern, step.content);
      break;
    case DecoderStep::Kind::byte_fallback:
      join_bytes(tokens);
      break;
    case DecoderStep::Kind::fuse:
      tokens = {fmt::format("{}", fmt::join(tokens, ""))};
      break;
    case DecoderStep::Kind::strip:
      for (std::string& token : tokens) token = stripped(std::move(token), step);
      break;
  }
}

}  // namespace

struct SentencePiece::Impl final : TokenizerImpl {
  Impl(SentencePieceDefinition definition_in, const std::string& source)
      : TokenizerImpl(definition_in, source,
                      by_normalizer(PieceNormalizer(definition_in.normalize))),
        definition_(std::move(definition_in)),
        normalizer_(definition_.normalize) {
    if (definition_.bpe)
      bpe_.emplace(std::exchange(definition_.tokens, {}),
                   std::exchange(definition_.bpe->merges, {}), definition_.bpe->model, source);
    else
      unigram_.emplace(definition_.tokens, definition_.scores, definition_.unknown,
                       definition_.byte_fallback);
  }

  // Calls word(view, text that it lies in) and added(begin, end, id) from left to right.
  template <typename Word, typename Added>
  void walk(std::string_view text, bool origins, Workspace& workspace, const Word& word,
            const Added& added) const {
    // Which word is the first shows in its origin, unless its place says so too.
    const bool marks_first =
        definition_.metaspace && definition_.metaspace->prefix == Metaspace::Prefix::first;
    origins |= marks_first && !normalizer_.keeps_order();
    bool begins_text = false;
    walk_normalized(
        text, workspace.normalized,
        [&](std::string_view piece, std::size_t base) {
          begins_text = base == 0;
          normalizer_.normalize(piece, base, origins, workspace.normalized);
        },
        [&](std::string_view part) {
          const auto marked_words = [&](std::string_view between) {
            if (definition_.metaspace)
              words_of(between, begins_text, workspace, word);
            else
              word(between, workspace.normalized);
          };
          if (definition_.split) {
            workspace.pieces.clear();
            definition_.split->split(part, workspace.pieces);
            for (const std::string_view piece : workspace.pieces) marked_words(piece);
          } else if (definition_.split_white_space) {
            split_at_white_space(part, marked_words);
          } else {
            marked_words(part);
          }
        },
        added);
  }

  // pre_tokenizers/metaspace.rs: spaces become marks, one is put in front, words begin at each.
  // `begins_text`: the first pass of added tokens left nothing in front of what was normalized.
  template <typename Word>
  void words_of(std::string_view part, bool begins_text, Workspace& workspace,
                const Word& word) const {
    const Metaspace& metaspace = *definition_.metaspace;
    const std::string& mark = metaspace.replacement;
    NormalizedText& marked = workspace.marked;
    const NormalizedText& from = workspace.normalized;
    const bool origins = !from.origins.empty();
    const auto begin = static_cast<std::size_t>(part.data() - from.text.data());
    marked.text.clear();
    marked.origins.clear();
    const bool at_start = origins ? from.origins[begin].begin == 0 : begins_text && begin == 0;
    const bool first = metaspace.prefix == Metaspace::Prefix::first && at_start;
    if ((first || metaspace.prefix == Metaspace::Prefix::always) && part[0] != ' ' &&
        !part.starts_with(mark)) {
      marked.text += mark;
      if (origins) marked.origins.insert(marked.origins.end(), mark.size(), from.origins[begin]);
    }
    for (std::size_t at = 0; at < part.size();) {
      const std::size_t space = std::min(part.find(' ', at), part.size());
      marked.text += part.substr(at, space - at);
      const auto of = [&](std::size_t i) {
        return from.origins.begin() + static_cast<std::ptrdiff_t>(begin + i);
      };
      if (origins) marked.origins.insert(marked.origins.end(), of(at), of(space));
      if (space == part.size()) break;
      marked.text += mark;
      if (origins) marked.origins.insert(marked.origins.end(), mark.size(), *of(space));
      at = space + 1;
    }
    const std::size_t size = marked.text.size();
    marked.text.append(WordCache::kReadAhead, '\0');
    for (std::size_t at = 0; at < size;) {
      const std::size_t next =
          metaspace.split ? std::min(marked.text.find(mark, at + 1), size) : size;
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

  // Calls part(view) for what may be tokenized by itself.
  template <typename Part>
  void parts_of(std::string_view word, const Part& part) const {
    if (!bpe_) return part(word);
    for (std::size_t at = 0; at < word.size();) {
      const std::size_t end = bpe_->part_end(word, at);
      part(word.substr(at, end - at));
      at = end;
    }
  }

  SentencePieceDefinition definition_;  // of BPE without its tokens and merges: the model has them
  PieceNormalizer normalizer_;
  std::optional<UnigramModel> unigram_;  // one of the two
  std::optional<BpeModel> bpe_;
  mutable WorkspacePool<Workspace> pool_;
};

void SentencePiece::Impl::append(std::string_view text, std::vector<TokenId>& ids) const {
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
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
      [&](std::size_t, std::size_t, TokenId id) { ids.push_back(id); });
}

void SentencePiece::Impl::encode_with_offsets(std::string_view text, Encoding& encoding) const {
  Borrowed<Workspace> borrowed(pool_);
  Workspace& workspace = *borrowed;
  OffsetWriter offsets(text, encoding);
  walk(
      text, true, workspace,
      [&](std::string_view word, const NormalizedText& in) {
        const auto add = [&](TokenId id, std::size_t at, std::size_t bytes) {
          const auto [begin, end] = in.origin_of(word.substr(at, bytes));
          offsets.add_span(id, begin, end - begin);
        };
        if (!bpe_) {
          unigram_->tokenize(word, workspace.nodes, workspace.symbols);
          for (const auto& symbol : workspace.symbols)
            add(symbol.id, symbol.begin, symbol.end - symbol.begin);
          return;
        }
        std::size_t at = 0;  // through all parts: a character without a token moves what follows
        parts_of(word, [&](std::string_view part) {
          bpe_->tokenize(part, workspace.merged);
          for (const auto& symbol : workspace.merged) {
            add(symbol.id, at, symbol.bytes);
            at += symbol.bytes;
          }
        });
      },
      [&](std::size_t begin, std::size_t end, TokenId id) {
        offsets.add_span(id, begin, end - begin);
      });
}

std::string SentencePiece::Impl::decode_bytes(std::span<const TokenId> ids,
                                              bool skip_special) const {
  std::vector<std::string> tokens;
  for (const TokenId id : ids)
    if (exists(id) && !(skip_special && is_skipped(id))) tokens.push_back(decoded(id));
  if (!definition_.decode) return fmt::format("{}", fmt::join(tokens, " "));
  for (const DecoderStep& step : *definition_.decode) apply(step, tokens);
  return fmt::format("{}", fmt::join(tokens, ""));
}

std::shared_ptr<const SentencePiece> make_sentence_piece(SentencePieceDefinition definition,
                                                         const std::string& source,
                                                         const RoleNames& names) {
  return make_tokenizer<SentencePiece>(
      std::make_unique<SentencePiece::Impl>(std::move(definition), source), names, source,
      {.bos = {"<s>", "[CLS]", "<bos>"},
       .eos = {"</s>", "[SEP]", "<eos>"},
       .pad = {"<pad>"},
       .unk = {"<unk>"},
       .mask = {"[MASK]", "<mask>"},
       .cls = {"[CLS]", "<cls>"},
       .sep = {"[SEP]", "<sep>"}});
}

std::shared_ptr<const SentencePiece> SentencePiece::from_json(std::string_view json,
                                                              const std::string& source) {
  return make_sentence_piece(parse_sentence_piece(parse_json(json, source), source), source);
}

std::shared_ptr<const SentencePiece> SentencePiece::from_spiece(std::string_view model,
                                                                const std::string& source,
                                                                const SpieceOptions& options) {
  return make_sentence_piece(spiece_definition(read_spiece_model(model, source), source, options),
                             source);
}

}  // namespace shoal
