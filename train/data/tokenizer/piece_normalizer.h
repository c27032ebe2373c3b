// Applies Hugging Face's normalizers in sequence. Internal to this folder.
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
    replace,        // replaces `pattern` with `content`
    replace_runs,   // replaces two or more of the character `pattern` with `content`
    replace_regex,  // replaces matches of `regex` with `content`
    nfd,
    nfkd,
    nfc,
    nfkc,
    nmt,            // SentencePiece's cleaning: removes controls, turns white space into spaces
    byte_level,     // maps bytes to GPT-2's alphabet
    strip_accents,  // removes marks
    lowercase,
    precompiled,  // applies `charsmap`
    strip,        // removes white space, or the character `pattern`, at the `left` and `right` end
    prepend,      // puts `content` before the text, unless it is empty
  };
  Kind kind;
  std::string name = {};  // file and location in it
  std::u32string pattern = {}, content = {};
  bool left = false, right = false;
  std::shared_ptr<const Charsmap> charsmap = {};
  std::shared_ptr<const SplitPattern> regex = {};
};

// Thread-safe. A table handles printable ASCII, which few steps change. Other text is processed
// character by character, in stretches that end between two such characters. If the steps only
// replace ASCII characters by texts, as in Llama, the table handles all text.
class PieceNormalizer {
 public:
  explicit PieceNormalizer(std::vector<NormalizerStep> steps);

  // Same contract as BertNormalizer::normalize. corrupt_data if a step grows the text too much
  // (growth.h).
  void normalize(std::string_view text, std::size_t base, bool origins,
                 NormalizedText& result) const;

  // True if no step removes or reorders text: the first normalized character comes from the first
  // character of the text.
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
  // `of`: size of the whole text in bytes. False: the charsmap removed the first characters, which
  // shifts the origins of all that follow.
  bool append_slowly(std::string_view text, std::size_t of, std::size_t base, bool origins,
                     NormalizedText& result) const;

  static constexpr int kNoWide = -1, kManyWide = -2;
  std::vector<NormalizerStep> steps_;
  bool has_table_ = false, verbatim_ = false;
  std::string prefix_;                 // inserted before text if verbatim_
  std::array<bool, 256> plain_{};      // by byte: its replacement does not depend on neighbours
  std::array<char, 256> table_{};      // the replacement of a plain byte, if it is one byte
  std::array<std::string, 128> wide_;  // by byte: a replacement of several bytes
  int only_wide_ = kNoWide;            // the byte in wide_ if there is only one
  bool changes_ = false;               // table_ changes some byte
  std::array<bool, 256> alone_{};      // by byte: plain, and part of no pattern
  std::vector<std::string> patterns_;  // ASCII texts that a step replaces
};

}  // namespace shoal
