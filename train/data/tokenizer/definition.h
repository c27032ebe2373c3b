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
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/decoder.h"
#include "shoal/train/data/tokenizer/piece_normalizer.h"
#include "shoal/train/data/tokenizer/pre_tokenizer.h"
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

// Any normalizers, pre-tokenizers and decoders, one after the other, around a model.
struct ComposedDefinition : TokenizerDefinition {
  std::optional<BpeParts> bpe;  // the model; absent: unigram, of which the next three are
  std::vector<double> scores;   // by id
  std::optional<TokenId> unknown;
  bool byte_fallback = false;
  std::vector<NormalizerStep> normalize;
  std::vector<PreTokenizerStep> cut;
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

// --- bpe_definition.cc, word_piece_definition.cc -------------------------------------------------
// The "model" of either kind of BPE; all options but `characters`.
void read_bpe_model(const nlohmann::json& value, const std::string& source,
                    TokenizerDefinition& definition, BpeParts& parts);
// GPT-2's shape, which ByteLevelBpe works on: no normalizer, Splits, ByteLevel last, and ByteLevel
// to decode. Empty where `definition`, then as it was, is anything else.
std::optional<BpeDefinition> byte_level_of(ComposedDefinition& definition);
BpeDefinition parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                     const std::string& source, const BpeFileOptions& options);
// The parts of a definition that has none: ByteLevel throughout, as GPT-2 has them.
void set_gpt2_parts(BpeDefinition& definition, bool add_prefix_space, bool trim_offsets);

WordPieceDefinition parse_word_piece(const nlohmann::json& file, const std::string& source);
WordPieceDefinition parse_vocab_txt(std::string_view vocab_txt, const std::string& source,
                                    const WordPieceFileOptions& options);

// --- composed_definition.cc, components.cc; spiece_proto.h has the other way ---------------------
// `file`: of a Unigram or BPE model. Throws as tokenizer_from_json says.
ComposedDefinition parse_composed(const nlohmann::json& file, const std::string& source);
// The parts of a tokenizer.json that a definition holds as they stand; fill what they say.
void read_composed_parts(const std::string& source, ComposedDefinition& definition);
std::vector<NormalizerStep> read_normalizers(const nlohmann::json& value,
                                             const std::string& source);
std::vector<PreTokenizerStep> read_pre_tokenizers(const nlohmann::json& value,
                                                  const std::string& source);
std::vector<DecoderStep> read_decoders(const nlohmann::json& value, const std::string& source);
// The members of a Sequence, nested ones in their place, or the one thing itself; each of them by
// read(value, where). `list`: the key of a Sequence's members.
void each_of(const nlohmann::json& value, const std::string& where, const char* list,
             const std::string& source,
             const std::function<void(const nlohmann::json&, const std::string&)>& read);

// --- definition_writer.cc. Keys in the order in which Hugging Face writes them -------------------
// `model`: the last member's text.
std::string tokenizer_json_of(const TokenizerDefinition& definition, std::string_view model);
std::string bpe_model_json_of(const BpeModel& model, const BpeModelOptions& options);
std::string unigram_model_json_of(const ComposedDefinition& definition);
std::string vocab_json_of(const std::vector<std::optional<std::string>>& tokens);
std::string merges_txt_of(const BpeModel& model);

}  // namespace shoal
