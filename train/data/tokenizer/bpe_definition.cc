#include <algorithm>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/text_lines.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

using nlohmann::json;

std::pair<std::string, std::string> split_merge(std::string_view line, std::size_t number,
                                                const std::string& source) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    corrupt_tokenizer(
        source, fmt::format("merge {} is '{}'; two tokens with one space between them make one",
                            number, line));
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

}  // namespace

void read_bpe_model(const json& value, const std::string& source, TokenizerDefinition& definition,
                    BpeParts& parts) {
  Section model(value, "model", source);
  const json* type = model.find("type");
  if (type != nullptr && *type != "BPE")
    unsupported_tokenizer(source, fmt::format("the model type {}", type->dump()));
  if (type == nullptr && !value.contains("merges"))
    unsupported_tokenizer(source, "a model without a type and merges");
  if (const json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0.0)
    unsupported_tokenizer(source, fmt::format("model.dropout {}", dropout->dump()));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    // NOLINTNEXTLINE(readability-container-size-empty): json::empty() is false for every text
    if (const json* affix = model.find(key); affix != nullptr && *affix != "")
      unsupported_tokenizer(source, fmt::format("model.{} {}", key, affix->dump()));
  if (model.find("unk_token") != nullptr) parts.model.unk_token = model.text("unk_token");
  parts.model.fuse_unk = model.boolean("fuse_unk", false);
  parts.model.byte_fallback = model.boolean("byte_fallback", false);
  parts.model.ignore_merges = model.boolean("ignore_merges", false);
  read_vocab(model.need("vocab"), source, definition);
  const json& merges = model.need("merges");
  if (!merges.is_array()) model.wrong("merges", "an array");
  parts.merges.reserve(merges.size());
  for (const json& merge : merges) {
    if (merge.is_string()) {
      parts.merges.push_back(
          split_merge(merge.get_ref<const std::string&>(), parts.merges.size() + 1, source));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      parts.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      corrupt_tokenizer(source,
                        fmt::format("merge {} is {}", parts.merges.size() + 1, merge.dump()));
    }
  }
  model.nothing_else();
}

namespace {

SplitBehavior behavior_of(const std::string& name, const std::string& source) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unsupported_tokenizer(source, fmt::format("the Split behavior '{}'", name));
}

struct PreTokenizerSteps {
  std::optional<bool> byte_level_regex;  // set once ByteLevel was met
  bool split_is_gpt2 = false;
};

// Every character is matched by GPT-2's pattern, so isolating and inverted removing agree.
bool splits_as_gpt2(const json& step) {
  const json& pattern = step["pattern"];
  return pattern.is_object() && pattern.contains("Regex") && pattern["Regex"].is_string() &&
         is_gpt2_pattern(pattern["Regex"].get<std::string>()) &&
         (step["behavior"] == "Isolated" ||
          (step["behavior"] == "Removed" && step["invert"] == true));
}

void read_pre_tokenizer_step(const json& value, const std::string& where, const std::string& source,
                             BpeDefinition& definition, PreTokenizerSteps& steps) {
  Section step(value, where, source);
  const std::string type = step.text("type");
  if (steps.byte_level_regex)
    unsupported_tokenizer(source, fmt::format("{} after ByteLevel", type));
  if (type == "ByteLevel") {
    definition.add_prefix_space = step.boolean("add_prefix_space");
    step.boolean("trim_offsets", true);  // of post-processors; here it says nothing
    steps.byte_level_regex = step.boolean("use_regex", true);
  } else if (type == "Split") {
    SplitPattern split = read_split(step);
    if (splits_as_gpt2(value) && definition.splits.empty() && !steps.split_is_gpt2)
      steps.split_is_gpt2 = true;
    else
      definition.splits.push_back(std::move(split));
  } else if (type == "Sequence") {
    const json& list = step.need("pretokenizers");
    if (!list.is_array()) step.wrong("pretokenizers", "an array");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_pre_tokenizer_step(list[i], fmt::format("{}.pretokenizers[{}]", where, i), source,
                              definition, steps);
  } else {
    unsupported_tokenizer(source, fmt::format("the pre-tokenizer '{}'", type));
  }
  step.nothing_else();
}

void read_pre_tokenizer(const json* value, const std::string& source, BpeDefinition& definition) {
  if (value == nullptr) unsupported_tokenizer(source, "BPE without the pre-tokenizer ByteLevel");
  PreTokenizerSteps steps;
  read_pre_tokenizer_step(*value, "pre_tokenizer", source, definition, steps);
  if (!steps.byte_level_regex)
    unsupported_tokenizer(source, "BPE without the pre-tokenizer ByteLevel");
  definition.gpt2_words = steps.split_is_gpt2 || *steps.byte_level_regex;
  // GPT-2's pattern first and something else after it, or twice with a prefix space between, would
  // need the words of one as the texts of the next.
  if (steps.split_is_gpt2 &&
      (!definition.splits.empty() || *steps.byte_level_regex || definition.add_prefix_space))
    unsupported_tokenizer(source, "a pre-tokenizer that splits by GPT-2's pattern and then again");
  definition.pre_tokenizer = *value;
}

void read_decoder(const json* value, const std::string& source, BpeDefinition& definition) {
  if (value == nullptr) unsupported_tokenizer(source, "BPE without the decoder ByteLevel");
  Section decoder(*value, "decoder", source);
  if (const std::string type = decoder.text("type"); type != "ByteLevel")
    unsupported_tokenizer(source, fmt::format("the decoder '{}'", type));
  for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) decoder.find(key);
  decoder.nothing_else();
  definition.decoder = *value;
}

}  // namespace

SplitPattern read_split(Section& step) {
  Section pattern(step.need("pattern"), step.where() + ".pattern", step.source());
  const SplitBehavior behavior = behavior_of(step.text("behavior"), step.source());
  const bool invert = step.boolean("invert");
  const bool is_regex = pattern.find("Regex") != nullptr;
  const std::string text = pattern.text(is_regex ? "Regex" : "String");
  pattern.nothing_else();
  return is_regex ? SplitPattern::regex(text, behavior, invert, step.source())
                  : SplitPattern::literal(text, behavior, invert);
}

BpeDefinition parse_bpe(const json& root, const std::string& source) {
  BpeDefinition definition;
  Section top(root, "the file", source);
  top.find("version");
  for (const char* key : {"truncation", "padding"}) top.find(key);  // the task's, not the text's
  if (const json* value = top.find("normalizer"))
    unsupported_tokenizer(source, "normalizer " + value->dump().substr(0, 80));
  read_bpe_model(top.need("model"), source, definition, definition);
  if (definition.model.byte_fallback) unsupported_tokenizer(source, "model.byte_fallback");
  read_added_tokens(top.find("added_tokens"), source, definition);
  read_pre_tokenizer(top.find("pre_tokenizer"), source, definition);
  if (const json* post = top.find("post_processor")) {
    read_post_processor(*post, "post_processor", source, definition);
    definition.post_processor = *post;
  }
  read_decoder(top.find("decoder"), source, definition);
  top.nothing_else();
  return definition;
}

BpeDefinition parse_vocab_and_merges(std::string_view vocab_json, std::string_view merges_txt,
                                     const std::string& source, const BpeFileOptions& options) {
  BpeDefinition definition;
  read_vocab(parse_json(vocab_json, source), source, definition);
  check_utf8(merges_txt, source);
  constexpr std::size_t kShortest = 4;  // "a b\n"
  definition.merges.reserve(merges_txt.size() / kShortest);
  std::string_view line;
  for (TextLines lines(merges_txt); lines.next(line);) {
    if (line.starts_with("#version")) continue;
    definition.merges.push_back(split_merge(line, definition.merges.size() + 1, source));
  }
  add_stated_tokens(definition, options.stated_tokens, options.added_tokens, source);
  set_gpt2_parts(definition, options.add_prefix_space, options.trim_offsets);
  return definition;
}

void set_gpt2_parts(BpeDefinition& definition, bool add_prefix_space, bool trim_offsets) {
  const auto byte_level = [](bool prefix, bool trim) {
    return json{{"type", "ByteLevel"},
                {"add_prefix_space", prefix},
                {"trim_offsets", trim},
                {"use_regex", true}};
  };
  definition.gpt2_words = true;
  definition.add_prefix_space = add_prefix_space;
  definition.trim_offsets = trim_offsets;
  definition.trim_prefix_space = true;
  definition.pre_tokenizer = byte_level(add_prefix_space, true);
  definition.post_processor = byte_level(true, trim_offsets);
  definition.decoder = byte_level(true, true);
}

}  // namespace shoal
