#include "shoal/train/tasks/sequence_to_sequence/language_template.h"

#include <algorithm>
#include <string_view>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"

namespace shoal {
namespace {

// "en_XX", "de_DE", "eng_Latn"
bool is_language(std::string_view token) {
  const auto is_in = [](std::string_view text, char first, char last) {
    return std::ranges::all_of(text, [=](char c) { return c >= first && c <= last; });
  };
  const std::size_t underscore = token.find('_');
  if (underscore < 2 || underscore > 3 || token.size() < underscore + 3) return false;
  const std::string_view region = token.substr(underscore + 1);
  return is_in(token.substr(0, underscore), 'a', 'z') && is_in(region.substr(0, 1), 'A', 'Z') &&
         (is_in(region, 'A', 'Z') || is_in(region.substr(1), 'a', 'z'));
}

}  // namespace

SequenceTemplate with_language(const Tokenizer& tokenizer, const std::string& language) {
  const auto id = tokenizer.token_to_id(language);
  if (!id)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the tokenizer has no token for the language {}", shortened(language)),
                "mBART's languages are named as de_DE or en_XX");
  SequenceTemplate sequence = tokenizer.sequence_template();
  bool found = false;
  for (SequenceTemplate::Piece& piece : sequence.single) {
    if (piece.text != SequenceTemplate::kSpecial) continue;
    if (!is_language(tokenizer.id_to_token(piece.id).value_or(""))) continue;
    piece.id = *id;
    found = true;
  }
  SHOAL_CHECK(found, "the tokenizer puts no language beside a text, where {} could be",
              shortened(language));
  return sequence;
}

}  // namespace shoal
