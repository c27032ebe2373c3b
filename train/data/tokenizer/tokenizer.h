// What every tokenizer offers: text to token ids and back.
//
// Ids, offsets and decoded text equal those of Hugging Face `tokenizers` for the same
// tokenizer.json. All calls are const, may be made from any thread at once, and block.
//
// Text is UTF-8. Ill-formed text is refused (invalid_argument with the byte offset), as Python's
// open() would; repair_utf8() (utf8.h) makes what Python's errors="replace" makes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

using TokenId = std::int32_t;

// Half-open range [begin, end) of a text.
struct TextSpan {
  std::int64_t begin = 0, end = 0;
  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

// What one text became. `bytes` and `characters` (code points: Hugging Face's offsets in Python)
// are filled when offsets were asked for; a token that holds part of a character spans all of it.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TextSpan> bytes;
  std::vector<TextSpan> characters;
  std::vector<std::uint8_t> special;  // 1: put there by the post-processor (<s>, </s>)
  std::vector<std::uint8_t> types;    // token_type_ids: which of two texts, as the model counts
};

// What a model wants around one text or two: [CLS] A [SEP] B [SEP].
struct SequenceTemplate {
  static constexpr int kSpecial = -1;
  struct Piece {
    int text = kSpecial;  // 0: the first text, 1: the second
    TokenId id = 0;       // of a special token
    TokenId type = 0;
  };
  std::vector<Piece> single = {{.text = 0}};
  std::vector<Piece> pair = {{.text = 0}, {.text = 1, .type = 1}};

  static SequenceTemplate bert(TokenId cls, TokenId sep);
  static SequenceTemplate roberta(TokenId cls, TokenId sep);
  bool adds_tokens() const;
  // Tokens it puts around one text, or two.
  std::int64_t special_tokens(bool of_pair) const;
};

// The texts, encoded without special tokens and cut to what fits, as the template has them.
Encoding join(const SequenceTemplate& sequence, const Encoding& first,
              const Encoding* second = nullptr);

struct EncodeOptions {
  bool add_special_tokens = true;  // run the post-processor's template; GPT-2 has none
  bool offsets = false;            // fill Encoding::bytes and ::characters
};

// The roles that tokens play, from tokenizer_config.json, special_tokens_map.json or, where those
// are absent, the names GPT-2 and RoBERTa use. Empty: the tokenizer has no such token.
struct TokenRoles {
  std::optional<TokenId> bos, eos, pad, unk, mask, cls, sep;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocab_size() const = 0;  // tokens, added ones included: len(tokenizer)
  virtual TokenId max_id() const = 0;           // the highest id; a model needs max_id() + 1 rows

  virtual Encoding encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  // The hot path: appends the ids to `ids`, without offsets. Special tokens that stand in the text
  // are recognised here too; `add_special_tokens` is only about those of the post-processor.
  virtual void append_ids(std::string_view text, std::vector<TokenId>& ids,
                          bool add_special_tokens = false) const = 0;

  // Ids that no token has are skipped, as Hugging Face does. Bytes that are not UTF-8 (a token may
  // end within a character) become U+FFFD.
  virtual std::string decode(std::span<const TokenId> ids,
                             bool skip_special_tokens = true) const = 0;
  // The bytes as they are: what a program that prints token by token needs.
  virtual std::string decode_bytes(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const = 0;

  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  virtual std::optional<std::string> id_to_token(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual const TokenRoles& roles() const = 0;
  virtual const SequenceTemplate& sequence_template() const = 0;

  // The same tokenizer as files for Hugging Face to load, tokenizer.json among them.
  struct File {
    std::string name, text;
  };
  virtual std::vector<File> files() const = 0;
  // The files that it was read from and those beside them that say more of it, byte for byte:
  // save_tokenizer() writes them as they were. Empty: it was made here.
  const std::vector<File>& files_read() const { return files_read_; }
  void keep_files_read(std::vector<File> files) { files_read_ = std::move(files); }

  // SHA-256 (hex) of everything that decides the ids: two tokenizers with one hash agree.
  virtual const std::string& hash() const = 0;

 private:
  std::vector<File> files_read_;
};

// Encodes texts[i] into result[i] on at most `threads` threads; the result does not depend on
// their number. An error names the text's index.
std::vector<Encoding> encode_batch(const Tokenizer& tokenizer,
                                   std::span<const std::string_view> texts,
                                   const EncodeOptions& options, int threads);

}  // namespace shoal
