// Each fault in a tokenizer.json or spiece.model of SentencePiece gives a one-line error.
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/train/data/tokenizer/composed_tokenizer.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string read_golden(const std::string& name) {
  return read_text_file(testing::golden_path("tokenizer/sentence_piece/" + name));
}

template <typename Make>
void expect_refused(const Make& make, ErrorCode code, const std::string& text) {
  try {
    make();
    ADD_FAILURE() << "accepted; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("\n")));
  }
}

constexpr auto kNo = ErrorCode::unavailable;
constexpr auto kBad = ErrorCode::corrupt_data;

TEST(SentencePieceJson, ChangedFilesAreRefusedByName) {
  const json good = json::parse(read_golden("albert.json"));
  struct Change {
    const char* pointer;
    json value;
    ErrorCode code;
    const char* text;
  };
  const Change changes[] = {
      {"/model/vocab", json::array(), kBad, "model.vocab is not a list of [token, score]"},
      {"/model/vocab/7", json::array({"a"}), kBad, "model.vocab[7] is [\"a\"]"},
      {"/model/vocab/7/1", "x", kBad, "model.vocab[7]"},
      {"/model/unk_id", 100000, kBad, "model.unk_id is 100000, but the highest id is"},
      {"/model/unk_id", -1, kBad, "model.unk_id is -1"},
      {"/model/byte_fallback", 1, kBad, "model.byte_fallback is not true or false"},
      {"/model/novelty", 1, kNo, "'novelty' in model"},
      {"/normalizer/normalizers/0/type", "Novel", kNo, "the normalizer 'Novel'"},
      {"/normalizer/normalizers/0/pattern", {{"Regex", "\\b"}}, kNo, "the pattern holds '\\b'"},
      {"/normalizer/normalizers/0/pattern", {{"String", ""}}, kBad, "one character or more"},
      {"/normalizer/normalizers/0/content", 3, kBad, "normalizers[0].content is not a string"},
      {"/normalizer/normalizers", 3, kBad, "normalizer.normalizers is not an array"},
      {"/normalizer/normalizers/5/precompiled_charsmap", "!!!!", kBad, "is not base64"},
      {"/normalizer/normalizers/5/precompiled_charsmap", "", kBad, "has 0 bytes"},
      {"/normalizer/normalizers/5/precompiled_charsmap", "/////w==", kBad, "has 4 bytes"},
      {"/pre_tokenizer", {{"type", "Novel"}}, kNo, "the pre-tokenizer 'Novel'"},
      {"/pre_tokenizer/pretokenizers/1/prepend_scheme", "no", kBad, "always, first or never"},
      {"/pre_tokenizer/pretokenizers/1/replacement", "ab", kBad, "is not one character"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", false, kBad, "what prepend_scheme says"},
      {"/decoder/type", "CTC", kNo, "the decoder 'CTC'"},
      {"/post_processor/special_tokens/[SEP]/ids", {100000}, kBad, "adds the id 100000"},
      {"/added_tokens/0/id", 7, kBad, "claims the id 7, but its place is 0"},
      {"/novelty", 1, kNo, "'novelty' in the file"},
  };
  for (const Change& change : changes) {
    SCOPED_TRACE(change.pointer + change.value.dump());
    json file = good;
    file[json::json_pointer(change.pointer)] = change.value;
    expect_refused([&] { tokenizer_from_json(file.dump(), "t.json"); }, change.code, change.text);
  }
}

TEST(SentencePieceJson, ACharacterThatNothingSpellsIsNamed) {
  json file = json::parse(read_golden("words.json"));
  file["model"]["unk_id"] = nullptr;
  const auto tokenizer = tokenizer_from_json(file.dump(), "t.json");
  EXPECT_FALSE(tokenizer->encode("the").ids.empty());
  expect_refused([&] { tokenizer->encode("the \u4e2d"); }, ErrorCode::invalid_argument,
                 "U+4E2D in '\u4e2d' is in no token");
}

// A charsmap that points outside itself is detected when it is read, before any text uses it.
TEST(SentencePieceJson, ACharsmapWithAWildPointerIsRefused) {
  json file = json::parse(read_golden("albert.json"));
  json& place = file["normalizer"]["normalizers"][5]["precompiled_charsmap"];
  std::string map = from_base64(place.get<std::string>()).value();
  std::size_t tried = 0;
  for (std::size_t at = 7; at < map.size() && tried < 3; at += 4) {
    if (!(map[at] & 0x80)) continue;  // only values have the highest bit
    ++tried;
    std::string wild = map;
    wild[at] = '\xFF';
    place = to_base64(wild);
    expect_refused([&] { tokenizer_from_json(file.dump(), "t.json"); }, kBad, "points at byte");
  }
  EXPECT_EQ(tried, 3u);
}

TEST(SpieceModel, BadFilesAreRefused) {
  const std::string good = read_golden("albert/spiece.model");
  const auto refused = [&](const std::string& model, ErrorCode code, const char* text) {
    expect_refused([&] { ComposedTokenizer::from_spiece(model, "s.model"); }, code, text);
  };
  refused("", kBad, "without pieces");
  refused("not a model", kBad, "s.model: field");
  for (std::size_t size = 1; size < good.size(); size += 331) {
    try {
      ComposedTokenizer::from_spiece(std::string_view(good).substr(0, size), "s.model");
      ADD_FAILURE() << "accepted " << size << " of " << good.size() << " bytes";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("s.model"));
    }
  }
  const auto with = [](const auto& trainer, std::string_view piece = "a") {
    ProtobufWriter inner, spec, model;
    inner.bytes(1, piece).real(2, -1.0F);
    trainer(spec);
    return model.bytes(1, inner.message()).bytes(2, spec.message()).message();
  };
  refused(with([](ProtobufWriter& spec) { spec.integer(3, 3); }), kNo, "of the type WORD");
  refused(with([](ProtobufWriter& spec) { spec.integer(3, 7); }), kNo, "of the type 7");
  refused(with([](ProtobufWriter& spec) { spec.integer(24, 1); }), kNo, "whitespace_as_suffix");
  refused(with([](ProtobufWriter& spec) { spec.integer(40, 9); }), kBad, "unk_id is 9, but");
  refused(with([](ProtobufWriter&) {}), kNo, "it lacks ALBERT's [CLS] and [SEP]");
  refused(with([](ProtobufWriter&) {}, "\xff"), kBad, "is not UTF-8");
}

TEST(SpieceModel, BadFilesOfLlamaAreRefused) {
  const testing::TemporaryDirectory folder;
  const auto refused = [&](const std::string& config, ErrorCode code, const char* text) {
    write_file_atomically(folder / "tokenizer_config.json", config);
    expect_refused([&] { load_tokenizer(folder.path()); }, code, text);
  };
  const auto model = folder / "tokenizer.model";
  write_file_atomically(model, "IQ== 0\nIg== 1\n");
  refused("{}", kNo, "tokenizer.model holds tiktoken's ranks, not a SentencePiece model");
  const std::string good = read_golden("llama/tokenizer.model");
  write_file_atomically(model, good.substr(0, good.size() / 2));
  refused("{}", kBad, "tokenizer.model");
  write_file_atomically(model, good);
  refused(R"({"tokenizer_class": "T5Tokenizer"})", kNo, "of the type BPE for ALBERT, T5 or XLNet");
  refused(R"({"add_bos_token": 1})", ErrorCode::invalid_argument,
          "tokenizer_config.json has add_bos_token: 1, where true or false is expected");
  refused(R"({"added_tokens_decoder": {"x": {"content": "y"}}})", kBad,
          "added_tokens_decoder: 'x' is not a token id");
  refused(R"({"added_tokens_decoder": {"0": {"content": "[y]"}}})", kBad,
          "the tokens '<unk>' and '[y]' both have the id 0");
}

TEST(SpieceModel, AClassThatShoalDoesNotKnowIsNamed) {
  const testing::TemporaryDirectory folder;
  write_file_atomically(folder / "spiece.model", read_golden("albert/spiece.model"));
  write_file_atomically(folder / "tokenizer_config.json",
                        R"({"tokenizer_class": "MBartTokenizer"})");
  expect_refused([&] { load_tokenizer(folder.path()); }, kNo, "'MBartTokenizer' is not supported");
  write_file_atomically(folder / "tokenizer_config.json", R"({"tokenizer_class": 3})");
  expect_refused([&] { load_tokenizer(folder.path()); }, ErrorCode::invalid_argument,
                 "has tokenizer_class: 3, where a string is expected");
}

}  // namespace
}  // namespace shoal
