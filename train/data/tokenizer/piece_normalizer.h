// Hugging Face's normalizers, one after the other. Internal to this room.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/charsmap.h"
#include "shoal/train/data/tokenizer/normalized_text.h"
#include "shoal/train/data/tokenizer/split_pattern.h"

namespace shoal {

struct Character;

// One of Hugging Face's normalizers.
struct NormalizerStep {
  enum class Kind {
    replace,        // `pattern` by `content`
    replace_runs,   // the character `pattern`, twice or more, by `content`
    replace_regex,  // what `regex` matches by `content`
    nfd,
    nfkd,
    nfc,
    nfkc,
    nmt,            // SentencePiece's cleaning: controls go, other white space becomes spaces
    byte_level,     // bytes become characters of GPT-2's alphabet
    strip_accents,  // marks go
    lowercase,
    precompiled,  // `charsmap`
    strip,        // white space, or the character `pattern`, at the ends, `left` and `right`
    prepend,      // `content`, unless the text is empty
  };
  Kind kind;
  std::string name = {};  // the file and its place there
  std::u32string pattern = {}, content = {};
  bool left = false, right = false;
  std::shared_ptr<const Charsmap> charsmap = {};
  std::shared_ptr<const SplitPattern> regex = {};
};

// Thread-safe. Text of printable ASCII, which few steps change, is done by a table; the rest
// character by character, in stretches that end between two such characters. Where steps do nothing
// but put texts in the places of ASCII characters, as Llama's do, all text is done by the table.
class PieceNormalizer {
 public:
  explicit PieceNormalizer(std::vector<NormalizerStep> steps);

  // As BertNormalizer::normalize. corrupt_data where a step makes too much of the text (growth.h).
  void normalize(std::string_view text, std::size_t base, bool origins,
                 NormalizedText& result) const;

  // Nothing is left out or changes places: what begins the normalized text began the text.
  bool keeps_order() const { return verbatim_; }

 private:
  bool make_verbatim_table();
  bool make_table();
  void set_plain(std::uint8_t byte, const std::string& becomes);
  bool is_plain(char c) const { return plain_[static_cast<std::uint8_t>(c)]; }
  bool stands_alone(char c) const { return alone_[static_cast<std::uint8_t>(c)]; }
  std::size_t first_uncommon(std::string_view text, std::size_t from) const;
  void append_plain(std::string_view text, std::size_t base, bool origins,
                    NormalizedText& result) const;
  std::size_t first_wide(std::string_view text, std::size_t from) const;
  static void append_origins(std::string_view text, std::size_t base, NormalizedText& result);
  // `of`: the bytes of the whole text. False: the charsmap removed the first characters, which
  // moves the origins of all that follow.
  bool append_slowly(std::string_view text, std::size_t of, std::size_t base, bool origins,
                     NormalizedText& result) const;

  static constexpr int kNoWide = -1, kManyWide = -2;
  std::vector<NormalizerStep> steps_;
  bool has_table_ = false, verbatim_ = false;
  std::string prefix_;                 // of verbatim text
  std::array<bool, 256> plain_{};      // becomes the same wherever it stands; else steps must look
  std::array<char, 256> table_{};      // namely this
  std::array<std::string, 128> wide_;  // or this, where it is not one byte
  int only_wide_ = kNoWide;            // the byte of which that is true
  bool changes_ = false;               // table_ does
  std::array<bool, 256> alone_{};      // plain, and not part of a pattern
  std::vector<std::string> patterns_;  // ASCII texts that a step replaces
};

}  // namespace shoal
