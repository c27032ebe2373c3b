// The interface of every tokenizer: text to token ids and back.
//
// Ids, offsets and decoded text equal those of Hugging Face `tokenizers` for the same
// tokenizer.json. All calls are const, thread-safe, and block.
//
// Text is UTF-8. Ill-formed text is rejected (invalid_argument with the byte offset), as by
// Python's open(). repair_utf8() (utf8.h) gives the result of Python's errors="replace".
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

// The encoding of one text. `bytes` and `characters` (code points, which are Hugging Face's offsets
// in Python) are filled only on request. A token that holds part of a character spans all of it.
struct Encoding {
  std::vector<TokenId> ids;
  std::vector<TextSpan> bytes;
  std::vector<TextSpan> characters;
  std::vector<std::uint8_t> special;  // 1: added by the post-processor (<s>, </s>)
  std::vector<std::uint8_t> types;    // token_type_ids: the segment of each token
};

// The tokens that a model expects around one text or a pair: [CLS] A [SEP] B [SEP].
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
  // Number of special tokens added to one text or a pair.
  std::int64_t special_tokens(bool of_pair) const;
};

// Applies the template to texts that were encoded without special tokens and truncated.
Encoding join(const SequenceTemplate& sequence, const Encoding& first,
              const Encoding* second = nullptr);

struct EncodeOptions {
  bool add_special_tokens = true;  // run the post-processor's template; GPT-2 has none
  bool offsets = false;            // fill Encoding::bytes and ::characters
};

// Tokens by role, from tokenizer_config.json or special_tokens_map.json, otherwise by the tokenizer
// kind's usual names. Empty: the tokenizer has no such token.
struct TokenRoles {
  std::optional<TokenId> bos, eos, pad, unk, mask, cls, sep;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  virtual std::int64_t vocab_size() const = 0;  // len(tokenizer), including added tokens
  virtual TokenId max_id() const = 0;           // the highest id; a model needs max_id() + 1 rows

  virtual Encoding encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  // Hot path: appends the ids to `ids`, without offsets. Always recognizes special tokens in the
  // text; `add_special_tokens` only controls those of the post-processor.
  virtual void append_ids(std::string_view text, std::vector<TokenId>& ids,
                          bool add_special_tokens = false) const = 0;

  // Skips unknown ids, as Hugging Face does. Bytes that are not UTF-8 (a token may end within a
  // character) become U+FFFD.
  virtual std::string decode(std::span<const TokenId> ids,
                             bool skip_special_tokens = true) const = 0;
  // Returns the unmodified bytes, for programs that print token by token.
  virtual std::string decode_bytes(std::span<const TokenId> ids,
                                   bool skip_special_tokens = true) const = 0;

  virtual std::optional<TokenId> token_to_id(std::string_view token) const = 0;
  virtual std::optional<std::string> id_to_token(TokenId id) const = 0;
  virtual bool is_special(TokenId id) const = 0;
  virtual const TokenRoles& roles() const = 0;
  virtual const SequenceTemplate& sequence_template() const = 0;

  // This tokenizer as files that Hugging Face can load, including tokenizer.json.
  struct File {
    std::string name, text;
  };
  virtual std::vector<File> files() const = 0;
  // The original files of the tokenizer, byte for byte, with the files beside them that describe
  // it. save_tokenizer() writes them unchanged. Empty: the tokenizer was not loaded from files.
  const std::vector<File>& files_read() const { return files_read_; }
  void keep_files_read(std::vector<File> files) { files_read_ = std::move(files); }

  // SHA-256 (hex) of everything that determines the ids: tokenizers with equal hashes agree.
  virtual const std::string& hash() const = 0;

 private:
  std::vector<File> files_read_;
};

// Encodes texts[i] into result[i] on at most `threads` threads, whose number does not affect the
// result. An error names the index of its text. The texts share an allowance of work (work.h).
std::vector<Encoding> encode_batch(const Tokenizer& tokenizer,
                                   std::span<const std::string_view> texts,
                                   const EncodeOptions& options, int threads);

}  // namespace shoal
