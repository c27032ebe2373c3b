#include "shoal/train/data/tokenizer/tokenizer_base.h"

#include <algorithm>
#include <set>

#include "shoal/runtime/base/error.h"
#include "shoal/train/data/tokenizer/sha256.h"
#include "shoal/train/data/tokenizer/tokenizer_impl.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/work.h"

namespace shoal {

TokenizerImpl::TokenizerImpl(const TokenizerDefinition& definition, const std::string& source,
                             const AddedVocabulary::Normalizer& normalizer)
    : added_(definition.added, normalizer), sequence_(definition.sequence) {
  std::size_t ids = definition.tokens.size();
  for (const auto& [token, id] : added_.tokens())
    ids = std::max(ids, static_cast<std::size_t>(id) + 1);
  if (ids == 0) throw_error(ErrorCode::corrupt_data, "{}: the vocabulary is empty", source);
  check_template(sequence_, ids, source);
  check_dense(static_cast<TokenId>(ids - 1), definition.tokens.size() + added_.tokens().size(),
              source);
  kinds_.resize(ids);
  for (std::size_t id = 0; id < definition.tokens.size(); ++id)
    if (definition.tokens[id]) kinds_[id] = kExists;
  std::set<std::string> special;
  for (const auto& [token, id] : added_.tokens()) {
    kinds_[static_cast<std::size_t>(id)] =
        static_cast<std::uint8_t>(kExists | (token.special ? kSpecial : 0));
    if (token.normalized && normalizer) normalized_[id] = normalizer(token.content);
    if (token.special) special.insert(token.content);
  }
  for (const auto& [token, id] : added_.tokens()) {
    const auto normal = normalized_.find(id);
    if (!special.contains(normal == normalized_.end() ? token.content : normal->second)) continue;
    std::uint8_t& flags = kinds_[static_cast<std::size_t>(id)];
    flags = static_cast<std::uint8_t>(flags | kSkipped);
  }
}

std::string TokenizerImpl::decoded(TokenId id) const {
  const auto normalized = normalized_.find(id);
  return normalized == normalized_.end() ? *token(id) : normalized->second;
}

std::optional<std::string> TokenizerImpl::token(TokenId id) const {
  const auto& added = added_.tokens();  // sorted by id
  const auto found =
      std::ranges::lower_bound(added, id, {}, &std::pair<AddedToken, TokenId>::second);
  if (found != added.end() && found->second == id) return found->first.content;
  if (id < 0 || static_cast<std::size_t>(id) >= tokens().size()) return std::nullopt;
  return tokens()[static_cast<std::size_t>(id)];
}

TokenizerBase::TokenizerBase(std::unique_ptr<TokenizerImpl> impl) : impl_(std::move(impl)) {}
TokenizerBase::~TokenizerBase() = default;

std::string TokenizerBase::to_json() const { return impl_->to_json(); }

std::vector<Tokenizer::File> TokenizerBase::files() const {
  std::vector<File> files = impl_->own_files();
  files.push_back({"tokenizer.json", to_json()});
  return files;
}

std::int64_t TokenizerBase::vocab_size() const {
  return std::count_if(impl_->kinds_.begin(), impl_->kinds_.end(),
                       [](std::uint8_t kind) { return kind != 0; });
}

TokenId TokenizerBase::max_id() const { return static_cast<TokenId>(impl_->kinds_.size()) - 1; }
const TokenRoles& TokenizerBase::roles() const { return impl_->roles_; }
const SequenceTemplate& TokenizerBase::sequence_template() const { return impl_->sequence_; }
bool TokenizerBase::is_special(TokenId id) const { return impl_->is_special(id); }
std::optional<std::string> TokenizerBase::id_to_token(TokenId id) const { return impl_->token(id); }

std::optional<TokenId> TokenizerBase::token_to_id(std::string_view token) const {
  for (const auto& [added, id] : impl_->added_.tokens())
    if (added.content == token) return id;
  return impl_->find(token);
}

Encoding TokenizerBase::encode(std::string_view text, const EncodeOptions& options) const {
  check_utf8(text, "text to tokenize");
  const Work work(text.size());
  Encoding encoding;
  if (options.offsets)
    impl_->encode_with_offsets(text, encoding);
  else
    impl_->append(text, encoding.ids);
  encoding.special.assign(encoding.ids.size(), 0);
  encoding.types.assign(encoding.ids.size(), 0);
  return options.add_special_tokens ? join(impl_->sequence_, encoding) : encoding;
}

void TokenizerBase::append_ids(std::string_view text, std::vector<TokenId>& ids,
                               bool add_special_tokens) const {
  check_utf8(text, "text to tokenize");
  const Work work(text.size());
  if (!add_special_tokens) return impl_->append(text, ids);
  for (const auto& piece : impl_->sequence_.single) {
    if (piece.text == SequenceTemplate::kSpecial)
      ids.push_back(piece.id);
    else
      impl_->append(text, ids);
  }
}

std::string TokenizerBase::decode_bytes(std::span<const TokenId> ids,
                                        bool skip_special_tokens) const {
  return impl_->decode_bytes(ids, skip_special_tokens);
}

std::string TokenizerBase::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text = decode_bytes(ids, skip_special_tokens);
  return first_invalid_utf8(text) < 0 ? text : repair_utf8(text);
}

const std::string& TokenizerBase::hash() const {
  std::call_once(impl_->hashed_, [&] { impl_->hash_ = to_hex(sha256(to_json())); });
  return impl_->hash_;
}

}  // namespace shoal
