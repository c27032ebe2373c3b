#include "shoal/train/data/tokenizer/added_vocabulary.h"

#include <algorithm>
#include <cstring>

namespace shoal {
namespace {

std::uint8_t byte_at(std::string_view text, std::size_t at) {
  return static_cast<std::uint8_t>(text[at]);
}

std::uint8_t class_at(std::string_view text, std::size_t at) {
  return unicode::classes()[unicode::decode(text.data() + at).value];
}

}  // namespace

AddedVocabulary::AddedVocabulary(std::vector<std::pair<AddedToken, TokenId>> tokens,
                                 const Normalizer& normalizer)
    : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const auto& token) { return token.first.content.empty(); });
  for (const auto& [token, id] : tokens_) {
    std::string text = token.normalized && normalizer ? normalizer(token.content) : token.content;
    if (!text.empty()) passes_[token.normalized ? 1 : 0].add(token, std::move(text), id);
  }
  for (Pass& pass : passes_) pass.finish();
}

void AddedVocabulary::Pass::add(const AddedToken& token, std::string text, TokenId id) {
  entries_.push_back({token, std::move(text), id});
}

void AddedVocabulary::Pass::finish() {
  std::ranges::stable_sort(entries_, {}, &Entry::text);
  // Keep the first of equal entries.
  const auto equal = std::ranges::unique(entries_, {}, &Entry::text);
  entries_.erase(equal.begin(), equal.end());
  for (std::uint32_t i = 0; i < entries_.size(); ++i) {
    ++first_[byte_at(entries_[i].text, 0) + 1u];
    std::uint32_t before = i == 0 ? kNone : i - 1;
    while (before != kNone && !entries_[i].text.starts_with(entries_[before].text))
      before = shorter_[before];
    shorter_.push_back(before);
  }
  for (std::size_t b = 0; b < 256; ++b) first_[b + 1] += first_[b];
  if (!entries_.empty() && entries_.front().text[0] == entries_.back().text[0])
    only_byte_ = byte_at(entries_.front().text, 0);
}

// Finds the longest entry at the leftmost position with a match. In sorted order, the last entry
// that is not greater than the remaining text either is the match or begins with it, so following
// shorter_ leads to the match.
bool AddedVocabulary::Pass::find(std::string_view text, std::size_t from, Match& match) const {
  for (std::size_t at = from; at < text.size(); ++at) {
    if (only_byte_ >= 0) {
      const void* found = std::memchr(text.data() + at, only_byte_, text.size() - at);
      if (found == nullptr) return false;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
    }
    const std::uint8_t b = byte_at(text, at);
    const std::uint32_t begin = first_[b], end = first_[b + 1u];
    if (begin == end) continue;
    const std::string_view rest = text.substr(at);
    std::uint32_t entry = begin;
    if (end - begin > 1) {
      const auto above = std::upper_bound(
          entries_.begin() + begin, entries_.begin() + end, rest,
          [](std::string_view value, const Entry& other) { return value < other.text; });
      if (above == entries_.begin() + begin) continue;
      entry = static_cast<std::uint32_t>(above - entries_.begin()) - 1;
    }
    while (entry != kNone && !rest.starts_with(entries_[entry].text)) entry = shorter_[entry];
    if (entry == kNone) continue;
    match = {at, at + entries_[entry].text.size(), &entries_[entry]};
    return true;
  }
  return false;
}

bool AddedVocabulary::Pass::stands_alone(std::string_view text, std::size_t begin,
                                         std::size_t end) {
  const bool left =
      begin == 0 || !(class_at(text, unicode::previous(text, begin)) & unicode::kWord);
  const bool right = end == text.size() || !(class_at(text, end) & unicode::kWord);
  return left && right;
}

std::size_t AddedVocabulary::Pass::left_of_spaces(std::string_view text, std::size_t at,
                                                  std::size_t done) {
  while (at > done) {
    const std::size_t before = unicode::previous(text, at);
    if ((class_at(text, before) & unicode::kKind) != unicode::space) break;
    at = before;
  }
  return at;
}

std::size_t AddedVocabulary::Pass::right_of_spaces(std::string_view text, std::size_t at,
                                                   Spaces& spaces) {
  if (spaces.begin <= at && at <= spaces.end) return spaces.end;
  spaces.begin = at;
  while (at < text.size() && (class_at(text, at) & unicode::kKind) == unicode::space)
    at += unicode::decode(text.data() + at).bytes;
  return spaces.end = at;
}

}  // namespace shoal
