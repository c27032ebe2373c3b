// Parsers of train/data/tokenizer.
#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include "support/source_tree.h"

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/charsmap.h"
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/split_pattern.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"
#include "shoal/train/data/tokenizer/utf8.h"
#include "shoal/train/data/tokenizer/word_piece.h"

namespace shoal::fuzz {
namespace {

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  const Encoding encoding = tokenizer.encode(text, {.offsets = true});
  expect(encoding.bytes.size() == encoding.ids.size(), "each id has its bytes");
  expect(encoding.characters.size() == encoding.ids.size(), "each id has its characters");
  for (const TokenId id : encoding.ids)
    expect(id >= 0 && id <= tokenizer.max_id(), "an id is not above max_id()");
  for (const auto& spans : {encoding.bytes, encoding.characters})
    for (const TextSpan& span : spans)
      expect(span.begin >= 0 && span.begin <= span.end && span.end <= std::ssize(text),
             "a token lies within the text");
  std::vector<TokenId> ids;
  tokenizer.append_ids(text, ids, true);
  expect(ids == encoding.ids, "append_ids() gives the ids of encode()");
  for (const bool skip : {true, false})
    expect(first_invalid_utf8(tokenizer.decode(ids, skip)) < 0, "decode() gives UTF-8");
}

// A tokenizer, on a text that may be anything, and what it writes.
void check(const TokenizerBase& tokenizer, std::string_view text) {
  const auto again = tokenizer_from_json(tokenizer.to_json(), "written");
  expect(again->hash() == tokenizer.hash(), "a written tokenizer.json reads as the same tokenizer");
  for (const auto& file : tokenizer.files()) expect(!file.name.empty(), "a file has a name");
  check_text(tokenizer, text);
}

FUZZ(tokenizer_json,
     "train/data/tokenizer/components.cc train/data/tokenizer/composed_definition.cc "
     "train/data/tokenizer/bpe_definition.cc train/data/tokenizer/word_piece_definition.cc "
     "train/data/tokenizer/definition.cc train/data/tokenizer/section.cc "
     "train/data/tokenizer/load.cc train/data/tokenizer/definition_writer.cc") {
  const std::string json(input.part());
  check(*tokenizer_from_json(json, "f"), input.rest());
}

const Tokenizer& golden(int index) {
  static constexpr std::array kNames = {"plain.json",
                                        "word_piece.json",
                                        "sentence_piece/t5.json",
                                        "sentence_piece/llama.json",
                                        "sentence_piece/albert.json",
                                        "llama.json"};
  static std::map<int, std::shared_ptr<const Tokenizer>> loaded;
  auto& tokenizer = loaded[index % static_cast<int>(kNames.size())];
  if (!tokenizer)
    tokenizer = load_tokenizer(
        testing::source_path(std::string("tests/golden/tokenizer/") +
                             kNames[static_cast<std::size_t>(index) % kNames.size()]));
  return *tokenizer;
}

// '0' to '5': with one of the golden files.
FUZZ(tokenizer_text,
     "train/data/tokenizer/byte_level_bpe.cc train/data/tokenizer/word_piece.cc "
     "train/data/tokenizer/composed_tokenizer.cc train/data/tokenizer/unigram_model.cc "
     "train/data/tokenizer/bpe_model.cc train/data/tokenizer/added_vocabulary.cc "
     "train/data/tokenizer/piece_normalizer.cc train/data/tokenizer/bert_normalizer.cc "
     "train/data/tokenizer/characters.cc train/data/tokenizer/offsets.cc "
     "train/data/tokenizer/pre_tokenizer.cc train/data/tokenizer/decoder.cc") {
  const Tokenizer& tokenizer = golden(input.choice(6));
  check_text(tokenizer, repair_utf8(input.rest()));
  check_text(tokenizer, input.rest());
}

FUZZ(utf8, "train/data/tokenizer/utf8.cc") {
  const std::string repaired = repair_utf8(input.rest());
  expect(first_invalid_utf8(repaired) < 0, "repaired text is UTF-8");
  const std::int64_t at = first_invalid_utf8(input.rest());
  expect((at < 0) == (repaired == input.rest()), "only text that is not UTF-8 is repaired");
  check_utf8(input.rest(), "f");
}

// vocab.json, merges.txt, tokenizer_config.json, a text.
FUZZ(vocab_and_merges, "train/data/tokenizer/bpe_definition.cc train/data/tokenizer/load.cc") {
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"})
    input.optional_file(name);
  check_text(*load_tokenizer(Input::folder()), input.rest());
}

FUZZ(vocab_txt,
     "train/data/tokenizer/word_piece_definition.cc train/data/tokenizer/word_piece.cc") {
  const std::string vocab(input.part());
  check(*WordPiece::from_vocab(vocab, "f"), input.rest());
}

// '0' to '4': the family. A text, then the model.
FUZZ(spiece,
     "train/data/tokenizer/spiece_proto.cc train/data/tokenizer/spiece_model.cc "
     "train/data/tokenizer/spiece_bpe.cc train/data/tokenizer/charsmap.cc") {
  using Family = SpieceOptions::Family;
  SpieceOptions options;
  if (const int family = input.choice(5); family > 0)
    options.family = static_cast<Family>(family - 1);
  const std::string_view text = input.part();
  check(*ComposedTokenizer::from_spiece(input.rest(), "f", options), text);
}

FUZZ(charsmap, "train/data/tokenizer/charsmap.cc") {
  const std::string_view text = input.part();
  const Charsmap map(input.rest(), "f");
  for (std::size_t at = 0; at < text.size(); ++at)
    if (const auto becomes = map.transform(text.substr(at)))
      expect(first_invalid_utf8(*becomes) < 0, "a replacement is UTF-8");
}

constexpr std::string_view kSmall =
    R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"<s>",)"
    R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],)"
    R"("normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,)"
    R"("trim_offsets":true,"use_regex":true},"post_processor":null,"decoder":{"type":"ByteLevel",)"
    R"("add_prefix_space":true,"trim_offsets":true,"use_regex":true},"model":{"type":"BPE",)"
    R"("dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,)"
    R"("fuse_unk":false,"byte_fallback":false,"ignore_merges":false,)"
    R"("vocab":{"<s>":0,"a":1,"b":2,"ab":3},"merges":["a b"]}})";

// The files beside a small tokenizer.json, or '1' beside a vocab.txt; then a text.
FUZZ(tokenizer_side_files,
     "train/data/tokenizer/side_files.cc train/data/tokenizer/roles.cc "
     "train/data/tokenizer/load.cc") {
  if (input.choice(2) == 0)
    input.file("tokenizer.json", kSmall);
  else
    input.file("vocab.txt", "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n##b\n");
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
    input.optional_file(name);
  const auto tokenizer = load_tokenizer(Input::folder());
  for (const auto& role : {tokenizer->roles().bos, tokenizer->roles().pad, tokenizer->roles().mask})
    if (role) expect(tokenizer->id_to_token(*role).has_value(), "a role's token exists");
  check_text(*tokenizer, input.rest());
}

// '0' to '4': what becomes of matches; '0' or '1': inverted. The pattern, then a text.
FUZZ(split_pattern, "train/data/tokenizer/split_pattern.cc") {
  const auto behavior = static_cast<SplitBehavior>(input.choice(5));
  const bool invert = input.choice(2) == 1;
  const auto split = SplitPattern::regex(input.part(), behavior, invert, "f");
  const std::string text = repair_utf8(input.rest());
  std::vector<std::string_view> pieces;
  split.split(text, pieces);
  std::size_t bytes = 0;
  for (const std::string_view piece : pieces) {
    expect(piece.data() >= text.data() && piece.data() + piece.size() <= text.data() + text.size(),
           "a piece is part of the text");
    bytes += piece.size();
  }
  expect(behavior == SplitBehavior::removed ? bytes <= text.size() : bytes == text.size(),
         "the pieces are the text");
}

}  // namespace
}  // namespace shoal::fuzz
