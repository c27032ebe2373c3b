// A tokenizer.json in memory, checked. Internal to this room.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/train/data/tokenizer/bert_normalizer.h"
#include "shoal/train/data/tokenizer/bpe_model.h"
#include "shoal/train/data/tokenizer/byte_level_bpe.h"
#include "shoal/train/data/tokenizer/piece_normalizer.h"
#include "shoal/train/data/tokenizer/sentence_piece.h"
#include "shoal/train/data/tokenizer/split_pattern.h"
#include "shoal/train/data/tokenizer/word_piece.h"

namespace shoal {

class Section;

// What every kind has.
struct TokenizerDefinition {
  std::vector<std::optional<std::string>> tokens;  // of the model, by id
  std::vector<std::pair<AddedToken, TokenId>> added;

  SequenceTemplate sequence;       // what the post-processor puts around texts
  bool trim_offsets = false;       // it leaves white space out of offsets
  bool trim_prefix_space = false;  // ... but not the space that add_prefix_space put there

  // As they stood, for writing the file again; keys sorted, so that one tokenizer has one text.
  nlohmann::json normalizer, pre_tokenizer, post_processor, decoder;
};

struct BpeParts {
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  BpeModelOptions model;
};

struct BpeDefinition : TokenizerDefinition, BpeParts {
  std::vector<SplitPattern> splits;  // before ByteLevel; GPT-2's pattern is gpt2_words instead
  bool gpt2_words = true;
  bool add_prefix_space = false;
};

struct WordPieceDefinition : TokenizerDefinition {
  BertNormalizerOptions normalize;
  std::string unk_token = "[UNK]", prefix = "##";  // of a word's second piece and later ones
  std::int64_t longest_word = 100;                 // in characters; a longer one is unk_token
  std::string decoder_prefix = "##";
  bool cleanup = true;  // decode() takes the spaces before punctuation away
};

// How SentencePiece writes spaces: as a character of their own, in front of words.
struct Metaspace {
  enum class Prefix { always, first, never };  // before which words without a space one is put
  std::string replacement = "\u2581";
  Prefix prefix = Prefix::always;
  bool split = true;  // words begin at each
};

// One of Hugging Face's decoders.
struct DecoderStep {
  enum class Kind { metaspace, replace, byte_fallback, fuse, strip };
  Kind kind;
  std::string pattern, content;      // metaspace, strip: `pattern` is the character
  bool drop_first = false;           // metaspace: leave the first token's spaces out
  std::int64_t start = 0, stop = 0;  // strip: so many at most at each end
};

struct SentencePieceDefinition : TokenizerDefinition {
  std::optional<BpeParts> bpe;  // the model; absent: unigram, of which the next three are
  std::vector<double> scores;   // by id
  std::optional<TokenId> unknown;
  bool byte_fallback = false;
  std::vector<NormalizerStep> normalize;
  bool split_white_space = false;     // words end at white space, which goes
  std::optional<SplitPattern> split;  // or so
  std::optional<Metaspace> metaspace;
  std::optional<std::vector<DecoderStep>> decode;  // absent: tokens with spaces between them
};

// --- definition.cc: parts that the kinds share ---------------------------------------------------
void read_vocab(const nlohmann::json& vocab, const std::string& source,
                TokenizerDefinition& definition);
void read_added_tokens(const nlohmann::json* list, const std::string& source,
                       TokenizerDefinition& definition);
void read_post_processor(const nlohmann::json& value, const std::string& where,
                         const std::string& source, TokenizerDefinition& definition);
// Gives each token the vocabulary's id or the next free one, as Hugging Face's add_tokens does.
void add_tokens(TokenizerDefinition& definition, const std::vector<AddedToken>& tokens);
// Gives each of `stated` the id that a file states for it: corrupt_data if another token has this
// id, or the vocabulary has the token under another one. Then those of `others` that are not
// stated, by add_tokens().
void add_stated_tokens(TokenizerDefinition& definition, const StatedTokens& stated,
                       std::vector<AddedToken> others, const std::string& source);
// corrupt_data where an added token did not get the id that a file claims for it.
void check_added_ids(const TokenizerDefinition& definition,
                     const std::vector<std::pair<std::string_view, TokenId>>& claimed,
                     const std::string& source);
// corrupt_data where ids leave so many holes that tables by id would not fit their file.
void check_dense(TokenId highest, std::size_t tokens, const std::string& source);
// A TemplateProcessing of texts ("A", "B") and added tokens, which the definition has.
struct TemplatePart {
  std::string token;
  int type = 0;
};
nlohmann::json template_json(const TokenizerDefinition& definition, const std::string& source,
                             const std::vector<TemplatePart>& single,
                             const std::vector<TemplatePart>& pair);
// Throws corrupt_data where the post-processor adds an id of `ids` or above.
void check_template(const SequenceTemplate& sequence, std::size_t ids, const std::string& source);

// --- bpe_definition.cc, word_piece_definition.cc. Throw as ByteLevelBpe::from_json says ----------
BpeDefinition parse_bpe(const nlohmann::json& file, const std::string& source);
// The "model" of either kind of BPE; all options but `characters`.
void read_bpe_model(const nlohmann::json& value, const std::string& source,
                    TokenizerDefinition& definition, BpeParts& parts);
SplitPattern read_split(Section& step);  // the pre-tokenizer "Split"
BpeDefinition parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                     const std::string& source, const BpeFileOptions& options);
// The parts of a definition that has none: ByteLevel throughout, as GPT-2 has them.
void set_gpt2_parts(BpeDefinition& definition, bool add_prefix_space, bool trim_offsets);

WordPieceDefinition parse_word_piece(const nlohmann::json& file, const std::string& source);
WordPieceDefinition parse_vocab_txt(std::string_view vocab_txt, const std::string& source,
                                    const WordPieceFileOptions& options);

// --- sentence_piece_definition.cc; spiece_proto.h has the other way ------------------------------
// `file`: of a Unigram model, or of BPE without the byte-level alphabet.
SentencePieceDefinition parse_sentence_piece(const nlohmann::json& file, const std::string& source);
// The parts of a tokenizer.json that a definition holds as they stand; fill what they say.
void read_sentence_piece_parts(const std::string& source, SentencePieceDefinition& definition);

// --- definition_writer.cc. Keys in the order in which Hugging Face writes them -------------------
// `model`: the last member's text.
std::string tokenizer_json_of(const TokenizerDefinition& definition, std::string_view model);
std::string bpe_model_json_of(const BpeModel& model, const BpeModelOptions& options);
std::string unigram_model_json_of(const SentencePieceDefinition& definition);
std::string vocab_json_of(const std::vector<std::optional<std::string>>& tokens);
std::string merges_txt_of(const BpeModel& model);

}  // namespace shoal
