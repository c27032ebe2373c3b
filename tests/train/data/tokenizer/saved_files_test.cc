// Files of a tokenizer that are read and saved again.
#include <filesystem>
#include <map>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/load.h"

namespace shoal {
namespace {

using Files = std::map<std::string, std::string>;

void expect_kept(const Files& files, std::optional<TokenId> padding = {}) {
  const testing::TemporaryDirectory read, made;
  std::filesystem::create_directories(read / "additional_chat_templates");
  for (const auto& [name, text] : files) write_file_atomically(read / name, text);
  const auto tokenizer = load_tokenizer(read.path());
  save_tokenizer(*tokenizer, made.path(), 512, padding);
  for (const auto& [name, text] : files)
    if (!padding || name != "tokenizer_config.json") {
      EXPECT_EQ(read_text_file(made / name), text) << name;
    }
  EXPECT_EQ(load_tokenizer(made.path())->hash(), tokenizer->hash());
  if (!padding || !files.contains("tokenizer_config.json")) return;
  auto expected = nlohmann::json::parse(files.at("tokenizer_config.json"));
  expected["pad_token"] = *tokenizer->id_to_token(*padding);
  EXPECT_EQ(read_json_file(made / "tokenizer_config.json"), expected);
}

std::string golden(const std::string& name) {
  return read_text_file(testing::golden_path("tokenizer/" + name));
}

TEST(SavedFiles, AreUnchangedInADirectory) {
  const Files sides = {
      {"tokenizer_config.json", "{ \"model_max_length\" : 77, \"a_field_of_tomorrow\": [1, null]}"},
      {"special_tokens_map.json", "{}"},
      {"chat_template.jinja", "{{ messages }}"},
      {"additional_chat_templates/tool.jinja", "{{ tools }}"}};
  Files whole = sides;
  whole["tokenizer.json"] = golden("plain.json");
  expect_kept(whole);
  Files pieces = sides;
  pieces["vocab.txt"] = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\n##s\n";
  expect_kept(pieces);
}

// The only change is the padding token that the model now has.
TEST(SavedFiles, HaveThePaddingThatIsNew) {
  expect_kept({{"tokenizer.json", golden("plain.json")},
               {"tokenizer_config.json", R"({"model_max_length": 77, "pad_token": null})"}},
              0);
}

// A token may have a role only by its name. A file that stated the role would make it special.
TEST(SavedFiles, DoNotStateARoleThatNoFileStated) {
  auto file = nlohmann::json::parse(golden("plain.json"));
  file["added_tokens"].clear();
  expect_kept({{"tokenizer.json", file.dump()}});
}

}  // namespace
}  // namespace shoal
