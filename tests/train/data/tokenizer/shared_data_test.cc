// Tokenizers with vocabularies of real size on every line of ../shared/data and every text of the
// golden lists: ids and offsets against Hugging Face's (tools/golden/make_tokenizer_data.py).
#include <algorithm>
#include <map>
#include <span>

#include "golden_cases.h"
#include "support/golden.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"

namespace shoal {
namespace {

using nlohmann::json;

constexpr const char* kSquad = "squad-v1.1-sample.json";

const json& golden(const std::string& name) {
  static std::map<std::string, json> files;
  const auto [place, is_new] = files.try_emplace(name);
  if (is_new) place->second = testing::read_tokenizer_golden("data/" + name + ".json");
  return place->second;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0;;) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    if (end == text.size()) return lines;
    at = end + 1;
  }
}

// The model with GPT-2's vocabulary. If `missing` is not 0, every missing-th merge is left out.
json gpt2_model(const std::string& vocab, const std::string& merges, std::size_t missing) {
  json model = {{"type", "BPE"}, {"vocab", json::parse(read_text_file(vocab))}};
  json& list = model["merges"] = json::array();
  std::size_t index = 0;
  for (const std::string& line : lines_of(read_text_file(merges))) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos || line.starts_with("#version")) continue;
    if (missing == 0 || index % missing != missing - 1)
      list.push_back({line.substr(0, space), line.substr(space + 1)});
    ++index;
  }
  return model;
}

// The model with the pieces of t5/spiece.model between those that the family has.
json unigram_model(const json& before, const json& after) {
  const std::string path = testing::golden_path("tokenizer/data/t5/spiece.model");
  const SpieceModel t5 = read_spiece_model(read_text_file(path), path);
  json vocab = before;
  for (std::size_t id = 3; id < t5.tokens.size(); ++id)  // not <pad>, </s> and <unk>
    vocab.push_back({t5.tokens[id].value(), t5.scores[id]});
  vocab.insert(vocab.end(), after.begin(), after.end());
  return {{"type", "Unigram"}, {"byte_fallback", false}, {"vocab", vocab}};
}

void expect_hashes(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                   std::size_t size, const json& hashes) {
  ASSERT_EQ(hashes.size(), (texts.size() + size - 1) / size);
  for (std::size_t first = 0; first < texts.size(); first += size) {
    const std::size_t end = std::min(first + size, texts.size());
    const std::vector<std::string_view> some(texts.begin() + static_cast<std::ptrdiff_t>(first),
                                             texts.begin() + static_cast<std::ptrdiff_t>(end));
    std::vector<std::int32_t> numbers;
    std::vector<TokenId> ids, appended;
    std::size_t index = 0;
    for (const Encoding& encoding : encode_batch(tokenizer, some, {.offsets = true}, 2)) {
      const auto offsets = testing::character_offsets(encoding);
      numbers.insert(numbers.end(), encoding.ids.begin(), encoding.ids.end());
      numbers.insert(numbers.end(), offsets.begin(), offsets.end());
      ids.insert(ids.end(), encoding.ids.begin(), encoding.ids.end());
      tokenizer.append_ids(some[index++], appended, true);
    }
    EXPECT_EQ(testing::digest(numbers), hashes[first / size].get<std::string>())
        << "texts " << first << " to " << end - 1;
    EXPECT_EQ(appended, ids) << "texts " << first << " to " << end - 1;
  }
}

class SharedData : public ::testing::TestWithParam<std::string> {
 protected:
  // Skips the test if the vocabulary or the map of characters is missing.
  void SetUp() override {
    const json& families = golden("families");
    const auto family = families.find(GetParam());
    if (family == families.end()) {
      tokenizer_ = load_tokenizer(testing::golden_path("tokenizer/data/" + GetParam()));
      return;
    }
    json file = family->at("file");
    if (family->at("model") == "gpt2") {
      SHOAL_SHARED_DATA_OR_SKIP(vocab, "gpt2-vocab.json");
      SHOAL_SHARED_DATA_OR_SKIP(merges, "gpt2-merges.txt");
      file["model"] = gpt2_model(vocab, merges, family->at("missing_merge").get<std::size_t>());
    } else {
      file["model"] = unigram_model(family->at("before"), family->at("after"));
      if (file["normalizer"]["type"] == "Precompiled") {
        const auto map = testing::nmt_nfkc();
        if (!map) GTEST_SKIP() << "this library's nmt_nfkc differs from the golden cases'";
        file["normalizer"]["precompiled_charsmap"] = to_base64(*map);
      }
    }
    file["model"].update(family->at("options"));
    tokenizer_ = tokenizer_from_json(file.dump(), GetParam());
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
};

TEST_P(SharedData, EqualsHuggingFaceOnEveryText) {
  const json& family = golden("hashes").at("families").at(GetParam());
  testing::expect_pairs(*tokenizer_, family.at("pair"));
  const auto each = [&](const char* size, const std::string& name,
                        const std::vector<std::string>& texts) {
    SCOPED_TRACE(name);
    expect_hashes(*tokenizer_, texts, golden("hashes").at(size).get<std::size_t>(),
                  family.at("files").at(name));
  };
  for (const char* list : {"texts", "word_piece.texts", "sentence_piece/texts", "families/texts"})
    each("texts", list,
         testing::read_tokenizer_golden(fmt::format("{}.json", list))
             .get<std::vector<std::string>>());
  for (const char* name : {"mrpc-test.txt", "mrpc-train.txt", kSquad, "sst2-dev.tsv",
                           "sst2-train.tsv", "wikitext2-test.txt", "wikitext2-valid.txt"}) {
    SHOAL_SHARED_DATA_OR_SKIP(path, name);
    each("lines", name, lines_of(read_text_file(path)));
  }
  SHOAL_SHARED_DATA_OR_SKIP(path, kSquad);
  const json squad = json::parse(read_text_file(path));
  std::vector<std::string> texts;
  for (const json& article : squad.at("data"))
    for (const json& paragraph : article.at("paragraphs")) {
      texts.push_back(paragraph.at("context"));
      for (const json& answered : paragraph.at("qas")) texts.push_back(answered.at("question"));
    }
  each("lines", "squad", texts);
}

std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const auto& [name, family] : golden("hashes").at("families").items()) names.push_back(name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, SharedData, ::testing::ValuesIn(names()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace shoal
