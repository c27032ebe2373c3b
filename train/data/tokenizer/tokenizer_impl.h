// Interface of a tokenizer kind, and code that the kinds share. Internal to this folder.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/growth.h"
#include "shoal/train/data/tokenizer/normalized_text.h"
#include "shoal/train/data/tokenizer/roles.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {

class TokenizerImpl {
 public:
  virtual ~TokenizerImpl() = default;

  // For well-formed UTF-8; does not apply the post-processor.
  virtual void append(std::string_view text, std::vector<TokenId>& ids) const = 0;
  virtual void encode_with_offsets(std::string_view text, Encoding& encoding) const = 0;
  virtual std::string decode_bytes(std::span<const TokenId> ids, bool skip_special) const = 0;

  // The model's tokens by id, and the inverse lookup; both without added tokens.
  virtual const std::vector<std::optional<std::string>>& tokens() const = 0;
  virtual std::optional<TokenId> find(std::string_view token) const = 0;

  virtual std::string to_json() const = 0;
  virtual std::vector<Tokenizer::File> own_files() const { return {}; }

 protected:
  // Reads the definition's tokens, added tokens and template. `normalizer` converts added tokens
  // that are matched in normalized text; only the constructor calls it.
  TokenizerImpl(const TokenizerDefinition& definition, const std::string& source,
                const AddedVocabulary::Normalizer& normalizer = {});

  bool exists(TokenId id) const { return kind(id) & kExists; }
  bool is_special(TokenId id) const { return kind(id) & kSpecial; }
  // Whether decode(skip_special) omits the token. As in Hugging Face, it does if the token's
  // normalized text equals the content of a special token.
  bool is_skipped(TokenId id) const { return kind(id) & kSkipped; }
  std::optional<std::string> token(TokenId id) const;
  // Input for the decoders; the token must exist. Added tokens with AddedToken::normalized are
  // normalized.
  std::string decoded(TokenId id) const;

  // Calls normalize(piece, offset) for each piece between added tokens of the first pass; it fills
  // `normalized`. Then calls part(view of normalized.text) and added(begin, end, id, view as found)
  // from left to right. begin and end are bytes of `text` if origins are known.
  template <typename Normalize, typename Part, typename Added>
  void walk_normalized(std::string_view text, NormalizedText& normalized,
                       const Normalize& normalize, const Part& part, const Added& added) const {
    std::size_t made = 0;
    added_.split_text(
        text,
        [&](std::string_view piece) {
          normalize(piece, static_cast<std::size_t>(piece.data() - text.data()));
          if ((made += normalized.text.size()) > most_bytes_of(text.size()))
            made_too_much("the tokenizer's normalizer", text.size());
          added_.split_normalized(normalized.text, part, [&](std::string_view view, TokenId id) {
            const auto [begin, end] = normalized.origin_of(view);
            added(begin, end, id, view);
          });
        },
        [&](std::string_view view, TokenId id) {
          const auto begin = static_cast<std::size_t>(view.data() - text.data());
          added(begin, begin + view.size(), id, view);
        });
  }

  AddedVocabulary added_;

 private:
  friend class TokenizerBase;
  template <typename Kind>
  friend std::shared_ptr<const Kind> make_tokenizer(std::unique_ptr<TokenizerImpl> impl,
                                                    const RoleNames& names,
                                                    const std::string& source,
                                                    const UsualNames& usual);

  static constexpr std::uint8_t kExists = 1, kSpecial = 2, kSkipped = 4;
  std::uint8_t kind(TokenId id) const {
    return id >= 0 && static_cast<std::size_t>(id) < kinds_.size()
               ? kinds_[static_cast<std::size_t>(id)]
               : std::uint8_t{0};
  }

  SequenceTemplate sequence_;
  std::vector<std::uint8_t> kinds_;  // by id, added tokens included
  // Text of each added token that normalization changes.
  std::map<TokenId, std::string> normalized_;
  TokenRoles roles_;
  mutable std::once_flag hashed_;
  mutable std::string hash_;
};

// Wraps `normalizer` as a function for added tokens. Also limits the total growth of all of them.
template <typename Normalizer>
AddedVocabulary::Normalizer by_normalizer(Normalizer normalizer) {
  return [normalizer = std::move(normalizer), given = std::size_t{0},
          made = std::size_t{0}](const std::string& text) mutable {
    NormalizedText result;
    normalizer.normalize(text, 0, false, result);
    given += text.size();
    if ((made += result.text.size()) > most_bytes_of(given))
      made_too_much("the tokenizer's normalizer", given);
    return result.text;
  };
}

// `names` and `usual` as in find_roles().
template <typename Kind>
std::shared_ptr<const Kind> make_tokenizer(std::unique_ptr<TokenizerImpl> impl,
                                           const RoleNames& names, const std::string& source,
                                           const UsualNames& usual) {
  TokenRoles& roles = impl->roles_;
  auto tokenizer = std::make_shared<Kind>(std::move(impl));
  roles = find_roles(*tokenizer, names, source, usual);
  return tokenizer;
}

}  // namespace shoal
