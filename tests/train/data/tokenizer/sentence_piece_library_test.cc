// Compares with SentencePiece itself (Debian's library), which shares no code with Hugging Face's
// tokenizers: the same pieces, scores and kinds in a model file, and the same ids on ordinary text.
// The test leaves out known differences: special tokens in text, clusters of characters.
#include "golden_cases.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sentencepiece_processor.h>
#include <sentencepiece_trainer.h>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/piece_normalizer.h"

namespace shoal {
namespace {

using nlohmann::json;

// A model trained by the library with its default normalization, nmt_nfkc.
std::string trained_model(const char* options = "--vocab_size=300") {
  const testing::TemporaryDirectory folder;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      fmt::format("--input={} --model_prefix={} {} --num_threads=1 --minloglevel=2",
                  testing::golden_path("tokenizer/genesis.txt"), folder / "model", options));
  EXPECT_TRUE(status.ok()) << status.ToString();
  return read_text_file(folder / "model.model");
}

std::shared_ptr<const ComposedTokenizer> read(const std::string& model) {
  return ComposedTokenizer::from_spiece(model, "trained",
                                        {.family = SpieceOptions::Family::t5,
                                         .do_lower_case = {},
                                         .extra_ids = 0,
                                         .special_tokens = {{"pad_token", {.content = "<s>"}}}});
}

TEST(SentencePieceLibrary, HasTheSamePiecesAndSpellsAlike) {
  const std::string model = trained_model();
  sentencepiece::SentencePieceProcessor theirs;
  ASSERT_TRUE(theirs.LoadFromSerializedProto(model).ok());
  const auto ours = read(model);
  ASSERT_EQ(ours->vocab_size(), theirs.GetPieceSize());
  const json file = json::parse(ours->to_json());
  for (TokenId id = 0; id < theirs.GetPieceSize(); ++id) {
    EXPECT_EQ(ours->id_to_token(id), theirs.IdToPiece(id)) << id;
    const auto score = file["model"]["vocab"][static_cast<std::size_t>(id)][1].get<double>();
    EXPECT_EQ(score, static_cast<double>(theirs.GetScore(id))) << id;
    EXPECT_EQ(ours->is_special(id), theirs.IsControl(id) || theirs.IsUnknown(id)) << id;
  }
  SHOAL_SHARED_DATA_OR_SKIP(path, "sst2-dev.tsv");
  const std::string text = read_text_file(path);
  std::size_t lines = 0;
  for (std::size_t at = 0; at < text.size(); ++lines) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    EXPECT_EQ(ours->encode(line, {.add_special_tokens = false}).ids, theirs.EncodeAsIds(line))
        << line;
    at = end + 1;
  }
  EXPECT_EQ(lines, 872u);
}

void expect_same_ids(const ComposedTokenizer& ours,
                     const sentencepiece::SentencePieceProcessor& theirs, const char* file) {
  SHOAL_SHARED_DATA_OR_SKIP(path, file);
  const std::string text = read_text_file(path);
  std::size_t lines = 0, tokens = 0;
  for (std::size_t at = 0; at < text.size(); ++lines) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = "  " + text.substr(at, end - at) + "  \t ";
    const auto ids = ours.encode(line, {.add_special_tokens = false}).ids;
    EXPECT_EQ(ids, theirs.EncodeAsIds(line)) << line;
    tokens += ids.size();
    at = end + 1;
  }
  EXPECT_GT(lines, 500u);
  EXPECT_GT(tokens, 20 * lines);
}

// BPE: the merges follow from the pieces' scores. The model's normalization and its
// rules for spaces apply.
TEST(SentencePieceLibrary, MergesAlike) {
  for (const char* options :
       {"--model_type=bpe --vocab_size=700 --byte_fallback",
        "--model_type=bpe --vocab_size=700 --byte_fallback --normalization_rule_name=identity",
        "--model_type=bpe --vocab_size=700 --add_dummy_prefix=false --byte_fallback",
        "--model_type=bpe --vocab_size=400"}) {
    SCOPED_TRACE(options);
    const std::string model = trained_model(options);
    sentencepiece::SentencePieceProcessor theirs;
    ASSERT_TRUE(theirs.LoadFromSerializedProto(model).ok());
    const auto ours = ComposedTokenizer::from_spiece(model, "trained");
    EXPECT_EQ(ours->vocab_size(), theirs.GetPieceSize());
    expect_same_ids(*ours, theirs, "sst2-dev.tsv");
  }
}

// nmt_nfkc, the map in most models, on every character: the same ids and offsets as Hugging Face.
TEST(SentencePieceLibrary, NormalizesByNmtNfkcAsHuggingFace) {
  const auto map = testing::nmt_nfkc();
  if (!map) GTEST_SKIP() << "this library's nmt_nfkc differs from the golden cases'";
  const json golden = testing::read_tokenizer_golden("sentence_piece/nmt_nfkc.cases.json");
  json file = json::parse(read(trained_model())->to_json());
  const json metaspace = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
  file["model"] = golden["model"];
  file["added_tokens"] = json::array();
  file["pre_tokenizer"] = file["decoder"] = metaspace;
  file["post_processor"] = nullptr;
  const auto tokenizer = tokenizer_from_json(file.dump(), "nmt_nfkc");
  const PieceNormalizer normalize(
      {{.kind = NormalizerStep::Kind::precompiled,
        .charsmap = std::make_shared<const Charsmap>(*map, "nmt_nfkc")}});
  testing::expect_characters(
      *tokenizer,
      [&](std::string_view text) {
        NormalizedText normalized;
        normalize.normalize(text, 0, false, normalized);
        return normalized.text;
      },
      golden["characters"]);
}

}  // namespace
}  // namespace shoal
