// A validated tokenizer.json in memory. Internal to this folder.
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
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/decoder.h"
#include "shoal/train/data/tokenizer/piece_normalizer.h"
#include "shoal/train/data/tokenizer/pre_tokenizer.h"
#include "shoal/train/data/tokenizer/split_pattern.h"
#include "shoal/train/data/tokenizer/word_piece.h"

namespace shoal {

class Section;

// The parts that all tokenizer kinds have.
struct TokenizerDefinition {
  std::vector<std::optional<std::string>> tokens;  // the model's, by id
  std::vector<std::pair<AddedToken, TokenId>> added;

  SequenceTemplate sequence;       // special tokens that the post-processor adds
  bool trim_offsets = false;       // the post-processor excludes white space from offsets
  bool trim_prefix_space = false;  // ... except the space added by add_prefix_space

  // The original JSON for writing the file again. Keys are sorted, so equal tokenizers have equal
  // text.
  nlohmann::json normalizer, pre_tokenizer, post_processor, decoder;
};

struct BpeParts {
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  BpeModelOptions model;
};

struct BpeDefinition : TokenizerDefinition, BpeParts {
  std::vector<SplitPattern> splits;  // before ByteLevel; GPT-2's pattern sets gpt2_words instead
  bool gpt2_words = true;
  bool add_prefix_space = false;
};

struct WordPieceDefinition : TokenizerDefinition {
  BertNormalizerOptions normalize;
  std::string unk_token = "[UNK]", prefix = "##";  // prefix: marks all but a word's first piece
  std::int64_t longest_word = 100;                 // in characters; a longer word becomes unk_token
  std::optional<std::string> decoder_prefix = "##";  // absent: decode() puts a space between tokens
  bool cleanup = true;                               // decode() removes spaces before punctuation
};

// Any sequence of normalizers, pre-tokenizers and decoders around a model.
struct ComposedDefinition : TokenizerDefinition {
  std::optional<BpeParts> bpe;  // absent: unigram, described by the next three members
  std::vector<double> scores;   // by id
  std::optional<TokenId> unknown;
  bool byte_fallback = false;
  std::vector<NormalizerStep> normalize;
  std::vector<PreTokenizerStep> cut;
  std::optional<std::vector<DecoderStep>> decode;  // absent: joins tokens with spaces
};

// --- definition.cc: parts that all kinds share ---------------------------------------------------
void read_vocab(const nlohmann::json& vocab, const std::string& source,
                TokenizerDefinition& definition);
void read_added_tokens(const nlohmann::json* list, const std::string& source,
                       TokenizerDefinition& definition);
void read_post_processor(const nlohmann::json& value, const std::string& where,
                         const std::string& source, TokenizerDefinition& definition);
// Gives each token its id in the vocabulary or the next free one, as Hugging Face's add_tokens
// does.
void add_tokens(TokenizerDefinition& definition, const std::vector<AddedToken>& tokens);
// Gives each token of `stated` the id that a file states. corrupt_data if another token has this
// id, or if the vocabulary has the token under another id. Then adds the rest of `others` with
// add_tokens().
void add_stated_tokens(TokenizerDefinition& definition, const StatedTokens& stated,
                       std::vector<AddedToken> others, const std::string& source);
// corrupt_data if an added token did not get the id that a file claims for it.
void check_added_ids(const TokenizerDefinition& definition,
                     const std::vector<std::pair<std::string_view, TokenId>>& claimed,
                     const std::string& source);
// corrupt_data if ids have so many gaps that tables indexed by id would be far larger than their
// file.
void check_dense(TokenId highest, std::size_t tokens, const std::string& source);
// A TemplateProcessing over texts ("A", "B") and added tokens of the definition.
struct TemplatePart {
  std::string token;
  int type = 0;
};
nlohmann::json template_json(const TokenizerDefinition& definition, const std::string& source,
                             const std::vector<TemplatePart>& single,
                             const std::vector<TemplatePart>& pair);
// corrupt_data if the post-processor adds an id that is not below `ids`.
void check_template(const SequenceTemplate& sequence, std::size_t ids, const std::string& source);

// --- bpe_definition.cc, word_piece_definition.cc -------------------------------------------------
// Reads the "model" of either kind of BPE: all options except `characters`.
void read_bpe_model(const nlohmann::json& value, const std::string& source,
                    TokenizerDefinition& definition, BpeParts& parts);
// Extracts GPT-2's shape, which ByteLevelBpe handles: no normalizer, Splits, ByteLevel last, and
// ByteLevel as decoder. Otherwise returns nothing and leaves `definition` unchanged.
std::optional<BpeDefinition> byte_level_of(ComposedDefinition& definition);
BpeDefinition parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                     const std::string& source, const BpeFileOptions& options);
// Sets the missing parts as GPT-2 has them: ByteLevel throughout.
void set_gpt2_parts(BpeDefinition& definition, bool add_prefix_space, bool trim_offsets);

WordPieceDefinition parse_word_piece(const nlohmann::json& file, const std::string& source);
WordPieceDefinition parse_vocab_txt(std::string_view vocab_txt, const std::string& source,
                                    const WordPieceFileOptions& options);

// --- composed_definition.cc, components.cc; spiece_proto.h reads SentencePiece's models ----------
// `file`: a tokenizer.json with a Unigram or BPE model. Throws as tokenizer_from_json() does.
ComposedDefinition parse_composed(const nlohmann::json& file, const std::string& source);
// Parses the raw JSON parts of a definition into its steps.
void read_composed_parts(const std::string& source, ComposedDefinition& definition);
std::vector<NormalizerStep> read_normalizers(const nlohmann::json& value,
                                             const std::string& source);
std::vector<PreTokenizerStep> read_pre_tokenizers(const nlohmann::json& value,
                                                  const std::string& source);
std::vector<DecoderStep> read_decoders(const nlohmann::json& value, const std::string& source);
// Calls read(value, where) for each member of a Sequence, flattening nested ones, or for the single
// value itself. `list`: the key of a Sequence's members.
void each_of(const nlohmann::json& value, const std::string& where, const char* list,
             const std::string& source,
             const std::function<void(const nlohmann::json&, const std::string&)>& read);

// --- definition_writer.cc: keys in Hugging Face's order ------------------------------------------
// `model`: JSON text of the last member.
std::string tokenizer_json_of(const TokenizerDefinition& definition, std::string_view model);
std::string bpe_model_json_of(const BpeModel& model, const BpeModelOptions& options);
std::string unigram_model_json_of(const ComposedDefinition& definition);
std::string vocab_json_of(const std::vector<std::optional<std::string>>& tokens);
std::string merges_txt_of(const BpeModel& model);

}  // namespace shoal
