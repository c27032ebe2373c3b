// Hostile tokenizer files stay within their budget.
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"

#include <fstream>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/protobuf.h"
#include "shoal/train/data/tokenizer/added_vocabulary.h"
#include "shoal/train/data/tokenizer/charsmap.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/split_pattern.h"
#include "shoal/train/data/tokenizer/tokenizer_base.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::within_budget;

// The error of load_tokenizer() for a directory with these files.
std::string problem_of(const std::vector<std::pair<std::string, std::string>>& files,
                       const std::string& what) {
  const testing::TemporaryDirectory directory;
  std::size_t bytes = 0;
  for (const auto& [name, text] : files) {
    std::ofstream(directory / name) << text;
    bytes += text.size();
  }
  return within_budget(bytes, what, [&] { (void)load_tokenizer(directory.path()); });
}

json golden(const std::string& name) {
  return json::parse(read_text_file(testing::golden_path("tokenizer/" + name)));
}

std::string vocab_of(std::size_t tokens, std::int64_t shift = 0) {
  std::string text = "{";
  for (std::size_t i = 0; i < tokens; ++i)
    text += fmt::format("\"t{}\":{},", i, static_cast<std::int64_t>(i) + shift);
  text.back() = '}';
  return text;
}

json added_token(const std::string& content, std::int64_t id) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", true}};
}

json replacing(const std::string& what, const std::string& by) {
  return {{"type", "Replace"}, {"pattern", {{"String", what}}}, {"content", by}};
}
json sequence(const char* key, const json& step, int times) {
  return {{"type", "Sequence"}, {key, json(static_cast<std::size_t>(times), step)}};
}

TEST(TokenizerBudget, AFarId) {
  constexpr std::int64_t kFar = (std::int64_t{1} << 26) - 1;
  for (const char* name : {"plain.json", "word_piece.json"}) {
    json file = golden(name);
    file["model"]["vocab"]["far"] = kFar;
    EXPECT_THAT(problem_of({{"tokenizer.json", file.dump()}}, "vocab"),
                HasSubstr("the highest id is 67108863"));
    file = golden(name);
    file["added_tokens"].push_back(added_token("<far>", kFar));
    EXPECT_NE(problem_of({{"tokenizer.json", file.dump()}}, "added token"), "");
  }
  EXPECT_THAT(problem_of({{"vocab.json", R"({"a":67108863})"}, {"merges.txt", ""}}, "vocab.json"),
              HasSubstr("the highest id is 67108863"));
}

TEST(TokenizerBudget, ManyTokens) {
  EXPECT_EQ(problem_of({{"vocab.json", vocab_of(50'000)}, {"merges.txt", ""}}, "vocab.json"), "");
  EXPECT_NE(problem_of({{"vocab.json", vocab_of(50'000, 1'000'000)}, {"merges.txt", ""}}, "gap"),
            "");
  json file = golden("plain.json");
  const auto first = static_cast<std::int64_t>(file["model"]["vocab"].size());
  json added = json::array();
  for (int i = 0; i < 20'000; ++i) added.push_back(added_token(fmt::format("<{}>", i), first + i));
  file["added_tokens"] = added;
  EXPECT_EQ(problem_of({{"tokenizer.json", file.dump()}}, "added tokens"), "");
}

// Commit f990d27 compared each of them with the text wherever their first letter occurs.
TEST(TokenizerBudget, ManyTokensToLookForInAText) {
  std::vector<std::pair<AddedToken, TokenId>> tokens;
  for (int i = 0; i < 20'000; ++i) tokens.push_back({{.content = fmt::format("<u{}>", i)}, i});
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "<u";
  const AddedVocabulary added(tokens);
  EXPECT_EQ(
      within_budget(
          text.size(), "texts",
          [&] { added.split(text, [](std::string_view) {}, [](std::string_view, TokenId) {}); }),
      "");
}

// A token that is a space was once searched anew at each space of a run of spaces.
TEST(TokenizerBudget, TokensThatAreSpaces) {
  const std::string text(200'000, ' ');
  for (const bool left : {true, false}) {
    const AddedVocabulary added({{{.content = " ", .lstrip = left, .rstrip = !left}, 0}});
    std::size_t found = 0;
    EXPECT_EQ(within_budget(text.size(), "spaces",
                            [&] {
                              found = 0;
                              added.split(
                                  text, [](std::string_view) {},
                                  [&](std::string_view, TokenId) { ++found; });
                            }),
              "");
    EXPECT_EQ(found, text.size());
  }
}

// As in `tokenizers` 0.23, a token that strips on both sides swallows its neighbours.
TEST(AddedVocabulary, ATokenThatIsASpaceSwallowsTheNext) {
  const AddedVocabulary added({{{.content = " ", .lstrip = true, .rstrip = true}, 0}});
  std::string found;
  added.split(
      "a   b ", [&](std::string_view text) { found += fmt::format("'{}' ", text); },
      [&](std::string_view text, TokenId id) { found += fmt::format("{}={} ", text, id); });
  EXPECT_EQ(found, "'a'    =0 'b'  =0 ");
}

// The leftmost match wins, and the longest of those that begin there.
TEST(AddedVocabulary, FindsTheLongestOfMany) {
  std::vector<std::pair<AddedToken, TokenId>> tokens;
  for (const char* content : {"ab", "abc", "a", "abcde", "abcdf", "b", "<s>", "<", "ab"})
    tokens.push_back({{.content = content}, static_cast<TokenId>(tokens.size())});
  const AddedVocabulary added(tokens);
  std::string found;
  added.split(
      "xabcdxabcdeabab<s<s>az", [&](std::string_view text) { found += fmt::format("'{}' ", text); },
      [&](std::string_view text, TokenId id) { found += fmt::format("{}={} ", text, id); });
  EXPECT_EQ(found, "'x' abc=1 'dx' abcde=3 ab=0 ab=0 <=7 's' <s>=6 a=2 'z' ");
}

TEST(TokenizerBudget, ManySpecialTokensBesideIt) {
  json extra = json::array(), config;
  for (int i = 0; i < 30'000; ++i) extra.push_back(fmt::format("<{}>", i));
  const std::string file = golden("plain.json").dump();
  for (const char* key : {"extra_special_tokens", "additional_special_tokens"}) {
    EXPECT_EQ(
        problem_of({{"tokenizer.json", file}, {"tokenizer_config.json", json{{key, extra}}.dump()}},
                   key),
        "");
    EXPECT_EQ(problem_of({{"tokenizer.json", file},
                          {"special_tokens_map.json", json{{key, extra}}.dump()}},
                         key),
              "");
  }
  for (int i = 0; i < 30'000; ++i) config[fmt::format("a{}_token", i)] = fmt::format("<{}>", i);
  EXPECT_EQ(problem_of({{"tokenizer.json", file}, {"tokenizer_config.json", config.dump()}},
                       "named tokens"),
            "");
}

TEST(TokenizerBudget, ManySteps) {
  json file = golden("sentence_piece/t5.json");
  file["normalizer"] = sequence("normalizers", {{"type", "NFC"}}, 30'000);
  file["pre_tokenizer"] = sequence("pretokenizers", {{"type", "Whitespace"}}, 30'000);
  file["decoder"] = sequence("decoders", {{"type", "Fuse"}}, 30'000);
  EXPECT_EQ(problem_of({{"tokenizer.json", file.dump()}}, "steps"), "");
}

// Each step processes the whole text.
TEST(TokenizerBudget, ManyStepsOnAText) {
  json plain = golden("sentence_piece/t5.json");
  plain["normalizer"] = plain["decoder"] = nullptr;
  const auto problem = [&](const char* part, const json& steps, const std::string& text) {
    json file = plain;
    file[part] = steps;
    const auto tokenizer = tokenizer_from_json(file.dump(), "f");
    return within_budget(text.size(), part, [&] {
      std::vector<TokenId> ids;
      tokenizer->append_ids(text, ids);
      (void)tokenizer->decode(ids);
    });
  };
  std::string accents, letters;
  for (int i = 0; i < 20'000; ++i) accents += "\u00e9", letters += "a ";
  EXPECT_THAT(problem("normalizer", sequence("normalizers", {{"type", "NFC"}}, 300), accents),
              HasSubstr("(NFC): the steps up to this one are too many for a text of 40000 bytes"));
  EXPECT_THAT(
      problem("pre_tokenizer",
              sequence("pretokenizers", {{"type", "Digits"}, {"individual_digits", true}}, 300),
              std::string(40'000, '1')),
      HasSubstr("(Digits): the steps up to this one are too many"));
  const json strip = {{"type", "Strip"}, {"content", "q"}, {"start", 1}, {"stop", 1}};
  EXPECT_THAT(problem("decoder", sequence("decoders", strip, 1'000), letters),
              HasSubstr("(Strip): the steps up to this one are too many"));
}

TEST(TokenizerBudget, ManyMerges) {
  json file = golden("plain.json");
  const json one = file["model"]["merges"][0];
  for (int i = 0; i < 100'000; ++i) file["model"]["merges"].push_back(one);
  EXPECT_EQ(problem_of({{"tokenizer.json", file.dump()}}, "merges"), "");
  std::string merges;
  for (int i = 0; i < 200'000; ++i) merges += "a b\n";
  EXPECT_EQ(problem_of({{"vocab.json", R"({"a":0,"b":1,"ab":2})"}, {"merges.txt", merges}}, "txt"),
            "");
}

TEST(TokenizerBudget, VocabTxt) {
  const std::string head = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  EXPECT_EQ(problem_of({{"vocab.txt", head + std::string(1'000'000, '\n')}}, "lines"), "");
  EXPECT_EQ(problem_of({{"vocab.txt", head + std::string(1'000'000, 'a')}}, "a long one"), "");
}

TEST(TokenizerBudget, Unigram) {
  json file = golden("sentence_piece/t5.json");
  json wide = file;
  for (int i = 0; i < 50'000; ++i)
    wide["model"]["vocab"].push_back(json::array({fmt::format("w{}", i), -1.5}));
  EXPECT_EQ(problem_of({{"tokenizer.json", wide.dump()}}, "many"), "");
  json deep = file;
  deep["model"]["vocab"].push_back(json::array({std::string(1'000'000, 'a'), -1.5}));
  EXPECT_EQ(problem_of({{"tokenizer.json", deep.dump()}}, "long"), "");
}

// Each character once began a walk along the whole of a long token.
TEST(TokenizerBudget, ATextOfLongUnigramTokens) {
  json file = golden("sentence_piece/t5.json");
  file["normalizer"] = file["decoder"] = nullptr;
  const std::string text(300'000, 'a');
  const auto problem = [&](std::size_t longest, const char* end) {
    json with = file;
    for (std::size_t length = 1; length <= longest; ++length)
      with["model"]["vocab"].push_back(json::array({std::string(length, 'a') + end, -1.5}));
    const auto tokenizer = tokenizer_from_json(with.dump(), "f");
    std::vector<TokenId> ids;
    return within_budget(text.size(), fmt::format("{} tokens", longest), [&] {
      ids.clear();
      tokenizer->append_ids(text, ids);
    });
  };
  EXPECT_EQ(problem(64, ""), "");  // SentencePiece's longest
  for (const char* end : {"", "b"})
    EXPECT_THAT(problem(1'000, end), HasSubstr("f: the unigram model takes too many steps on "));
}

// Each position of a word was once looked up with each length.
TEST(TokenizerBudget, LongWordsOfWordPiece) {
  json file = golden("word_piece.json");
  file["added_tokens"] = json::array();
  file["post_processor"] = nullptr;
  json& vocab = file["model"]["vocab"];
  const auto add = [&](const std::string& token) {
    if (!vocab.contains(token)) vocab[token] = vocab.size();
  };
  for (const char* prefix : {"", "##"})
    for (const char letter : {'a', 'b'}) add(prefix + std::string(1, letter));
  add(std::string(1'000, 'a') + 'c');
  const auto problem = [&](std::size_t letters) {
    file["model"]["max_input_chars_per_word"] = letters;
    const auto tokenizer = tokenizer_from_json(file.dump(), "f");
    std::string text;  // no word occurs twice
    for (std::uint32_t seed = 1; text.size() < 100'000; text += ' ')
      for (std::size_t i = 0; i < letters; ++i)
        text += ((seed = seed * 1'664'525 + 1'013'904'223) >> 31) != 0 ? 'a' : 'b';
    return within_budget(text.size() + 50'000, fmt::format("words of {}", letters), [&] {
      std::vector<TokenId> ids;
      tokenizer->append_ids(text, ids);
    });
  };
  EXPECT_EQ(problem(100), "");  // BERT's longest
  EXPECT_THAT(problem(1'000), HasSubstr("f: WordPiece takes too many steps on "));
}

TEST(TokenizerBudget, ATemplateOfAMillionTokens) {
  json file = golden("plain.json");
  json ids = json::array(), single = json::array();
  for (int i = 0; i < 5'000; ++i) ids.push_back(0);
  for (int i = 0; i < 5'000; ++i)
    single.push_back({{"SpecialToken", {{"id", "x"}, {"type_id", 0}}}});
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  file["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single", single},
      {"pair", json::array()},
      {"special_tokens", {{"x", {{"id", "x"}, {"ids", ids}, {"tokens", json::array()}}}}}};
  EXPECT_THAT(problem_of({{"tokenizer.json", file.dump()}}, "template"),
              HasSubstr("more than 1024 tokens"));
}

// The error of opening a tokenizer.json, or of encoding and decoding with it.
std::string problem_of_text(const json& file, const std::string& text, const std::string& what) {
  const std::string bytes = file.dump();
  return within_budget(bytes.size() + text.size(), what, [&] {
    const auto tokenizer = tokenizer_from_json(bytes, "f");
    (void)tokenizer->decode(tokenizer->encode(text).ids);
  });
}

// Commit f990d27 used up all memory when it opened the first of these.
TEST(TokenizerBudget, StepsThatMakeMuchOfAText) {
  json plain = golden("sentence_piece/t5.json");
  plain["normalizer"] = plain["decoder"] = nullptr;
  const std::string ten(10, 'a'), many(2'000, 'a'), text(2'000, 'a');
  const auto normalizer = [&](const json& steps) {
    json file = plain;
    file["normalizer"] = steps;
    return file;
  };
  const auto problem = [&](const json& steps, const std::string& of, const char* what) {
    return problem_of_text(normalizer(steps), of, what);
  };
  const json twelve = sequence("normalizers", replacing("a", ten), 12);
  EXPECT_EQ(problem(twelve, "b", "twelve"), "");
  EXPECT_THAT(problem(twelve, "a", "twelve"),
              HasSubstr("f: normalizer.normalizers[4] (Replace) makes more than 65600 bytes"));
  json behind = twelve;
  behind["normalizers"].push_back({{"type", "NFC"}});
  EXPECT_THAT(problem(behind, text, "twelve and NFC"), HasSubstr("normalizers[1] (Replace)"));
  EXPECT_THAT(problem(replacing("aa", many), text, "a long text"), HasSubstr("(Replace)"));
  json regex = replacing("a", many);
  regex["pattern"] = {{"Regex", "[ab]"}};
  EXPECT_THAT(problem(regex, text, "a regex"), HasSubstr("normalizer (Replace)"));
  // Each text between two matches is a stretch of its own.
  std::string places;
  for (int i = 0; i < 2'000; ++i) places += "bba.xx";
  EXPECT_THAT(problem(sequence("normalizers", replacing("a.", std::string(4'000, 'b')), 2), places,
                      "stretches"),
              HasSubstr("(Replace)"));
  EXPECT_THAT(problem(sequence("normalizers", {{"type", "Prepend"}, {"prepend", many}}, 100), "b",
                      "prefixes"),
              HasSubstr("normalizers[8] (Prepend)"));
  EXPECT_THAT(problem(sequence("normalizers", {{"type", "ByteLevel"}}, 40), "\u00e9", "bytes"),
              HasSubstr("(ByteLevel)"));
  // Each text between added tokens is short, but together they are long.
  json pieces = normalizer({{"type", "Prepend"}, {"prepend", many}});
  pieces["added_tokens"].push_back(
      added_token("<x>", static_cast<std::int64_t>(pieces["model"]["vocab"].size())));
  std::string between;
  for (int i = 0; i < 1'000; ++i) between += "a<x>";
  EXPECT_THAT(problem_of_text(pieces, between, "pieces"), HasSubstr("the tokenizer's normalizer"));
  json added = normalizer(twelve);
  added["added_tokens"].push_back(added_token("aa", 0));
  added["added_tokens"].back()["normalized"] = true;
  added["added_tokens"].back()["id"] = static_cast<std::int64_t>(plain["model"]["vocab"].size());
  EXPECT_THAT(problem_of_text(added, "b", "an added token"), HasSubstr("(Replace)"));
}

TEST(TokenizerBudget, OtherStepsThatMakeMuchOfAText) {
  json file = golden("sentence_piece/t5.json");
  file["normalizer"] = file["decoder"] = nullptr;
  json cut = file;
  cut["pre_tokenizer"] =
      sequence("pretokenizers",
               {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}}, 40);
  EXPECT_THAT(problem_of_text(cut, "\u00e9", "pre-tokenizers"),
              HasSubstr("f: pre_tokenizer.pretokenizers[15] (ByteLevel) makes more than"));
  json joined = file;
  joined["decoder"] = sequence("decoders", replacing("a", std::string(10, 'a')), 12);
  EXPECT_THAT(problem_of_text(joined, "a", "decoders"),
              HasSubstr("f: decoder.decoders[4] (Replace) makes more than"));
}

// A SentencePiece model. Type 1: unigram, type 2: BPE.
std::string spiece_of(const std::vector<std::string>& pieces, std::uint64_t type) {
  ProtobufWriter model;
  for (const std::string& piece : pieces)
    model.bytes(1, ProtobufWriter().bytes(1, piece).real(2, -1).message());
  return model.bytes(2, ProtobufWriter().integer(3, type).message()).message();
}

TEST(TokenizerBudget, SpieceModels) {
  const json t5 = {{"tokenizer_class", "T5Tokenizer"}};
  std::vector<std::string> pieces = {"<unk>", "<s>", "</s>", "<pad>"};
  for (int i = 0; i < 50'000; ++i) pieces.push_back(fmt::format("p{}", i));
  EXPECT_EQ(
      problem_of({{"spiece.model", spiece_of(pieces, 1)}, {"tokenizer_config.json", t5.dump()}},
                 "pieces"),
      "");
  EXPECT_EQ(problem_of({{"tokenizer.model", spiece_of(pieces, 2)}}, "BPE"), "");
  for (const std::int64_t extra :
       {std::int64_t{2147483647}, std::int64_t{100'000}, std::int64_t{-1}}) {
    json config = t5;
    config["extra_ids"] = extra;
    EXPECT_THAT(problem_of({{"spiece.model", spiece_of({"<unk>", "</s>", "<pad>"}, 1)},
                            {"tokenizer_config.json", config.dump()}},
                           "extra_ids"),
                HasSubstr("0 to 10000 are possible"));
  }
  // Each piece can be merged from any two shorter ones whose lengths add up.
  pieces = {"<unk>", "<s>", "</s>"};
  for (std::size_t length = 1; length < 1'400; ++length) pieces.emplace_back(length, 'a');
  EXPECT_THAT(problem_of({{"tokenizer.model", spiece_of(pieces, 2)}}, "all of a kind"),
              HasSubstr("is not supported"));
  pieces = {"<unk>", "<s>", "</s>"};
  for (const char letter : std::string_view("abcdefghijklmnopqrstuvwxyz"))
    for (std::size_t length = 1; length <= 93; ++length) pieces.emplace_back(length, letter);
  EXPECT_EQ(problem_of({{"tokenizer.model", spiece_of(pieces, 2)}}, "runs"), "");
  // Commit f990d27 searched linearly for each token that tokenizer_config.json names.
  json decoder = json::object();
  pieces = {"<unk>", "<s>", "</s>"};
  for (int i = 3; i < 10'000; ++i) {
    pieces.push_back(fmt::format("<{}>", i));
    decoder[std::to_string(i)] = {{"content", pieces.back()}};
  }
  EXPECT_EQ(problem_of({{"tokenizer.model", spiece_of(pieces, 2)},
                        {"tokenizer_config.json", json{{"added_tokens_decoder", decoder}}.dump()}},
                       "added_tokens_decoder"),
            "");
}

TEST(TokenizerBudget, Charsmaps) {
  const auto problem = [](const std::string& map) {
    return within_budget(map.size(), "a charsmap", [&] { (void)Charsmap(map, "f"); });
  };
  EXPECT_NE(problem(std::string("\xff\xff\xff\xff", 4)), "");
  EXPECT_NE(problem(std::string("\xfc\xff\xff\xff", 4) + std::string(1'000'000, '\0')), "");
  std::string whole = std::string("\x00\x00\x10\x00", 4) + std::string(1 << 20, '\0');
  EXPECT_EQ(problem(whole), "");
}

// Exponential and quadratic backtracking. Commit f990d27 practically never finished
// the first of these.
TEST(TokenizerBudget, PatternsThatBacktrack) {
  for (const char* pattern : {"(?:a+)+b", "(?:a|a)*b", "(?:a|aa)+b", "a*a*a*a*a*b", "(?:a*)*b",
                              "(?:(?:a*)*)*b", "a*b", "(?=(?:a+)+b)a"}) {
    for (const std::size_t bytes : {30U, 3'000U, 100'000U}) {
      const std::string text(bytes, 'a');
      const auto split =
          SplitPattern::regex(pattern, SplitBehavior::isolated, false, "tokenizer.json");
      std::vector<std::string_view> pieces;
      const std::string problem = within_budget(bytes + 10'000, pattern,
                                                [&] { pieces.clear(), split.split(text, pieces); });
      if (bytes == 100'000U) {
        EXPECT_THAT(problem, HasSubstr(fmt::format("tokenizer.json: the pattern '{}'", pattern)));
      }
    }
  }
}

TEST(TokenizerBudget, UsualPatternsHaveNoLimitToMeet) {
  const std::string pattern =
      R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  const auto split = SplitPattern::regex(pattern, SplitBehavior::isolated, false, "f");
  std::string text;
  for (const std::string& part :
       {std::string(100'000, ' '), std::string(100'000, 'a'), std::string(100'000, '1'),
        std::string(100'000, '.'), std::string(100'000, '\n'), std::string(100'000, '\'')}) {
    std::vector<std::string_view> pieces;
    EXPECT_NO_THROW(split.split(part, pieces)) << part[0];
    text += part.substr(0, 5'000);
  }
  std::vector<std::string_view> pieces;
  EXPECT_NO_THROW(split.split(text, pieces));
}

TEST(TokenizerBudget, PatternsToCompile) {
  const auto repeated = [](std::string_view piece, std::size_t times) {
    std::string text;
    for (std::size_t i = 0; i < times; ++i) text += piece;
    return text;
  };
  for (const std::string& pattern :
       {repeated("\\p{L}", 200'000), repeated("\\p{L}", 200), repeated("\\p{L}", 64),
        repeated("\\w", 16), "(?i:" + repeated("\\p{L}", 5) + ")",
        "(?i:" + repeated("\\w", 2) + ")", "(?i:" + repeated("[b-\\x{10ffff}]", 20) + ")",
        "(?i:(" + repeated("[b-\U0010ffff]", 20) + "))", std::string(1'000'000, 'a'),
        std::string(2'000, '(') + std::string(2'000, ')'),
        std::string("(?:(?:(?:a{1,1000}){1,1000}){1,1000}){1,1000}"), std::string("a{2147483647}")})
    within_budget(pattern.size(), pattern.substr(0, 40),
                  [&] { (void)SplitPattern::regex(pattern, SplitBehavior::isolated, false, "f"); });
}

}  // namespace
}  // namespace shoal
