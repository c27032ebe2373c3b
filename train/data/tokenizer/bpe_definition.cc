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

std::optional<BpeDefinition> byte_level_of(ComposedDefinition& definition) {
  using Kind = PreTokenizerStep::Kind;
  const std::vector<PreTokenizerStep>& cut = definition.cut;
  if (!definition.bpe || definition.bpe->model.byte_fallback || !definition.normalize.empty() ||
      cut.empty() || cut.back().kind != Kind::byte_level || !definition.decode ||
      definition.decode->size() != 1 ||
      definition.decode->front().kind != DecoderStep::Kind::byte_level)
    return std::nullopt;
  const PreTokenizerStep& bytes = cut.back();
  const bool split_is_gpt2 = cut.size() == 2 && cut[0].kind == Kind::gpt2;
  // If ByteLevel splits too, it gets the words of the first split as its texts. ByteLevelBpe cannot
  // do that.
  if (split_is_gpt2 && (bytes.use_regex || bytes.add_prefix_space)) return std::nullopt;
  const auto is_split = [](const PreTokenizerStep& step) { return step.kind == Kind::split; };
  if (!split_is_gpt2 && !std::all_of(cut.begin(), cut.end() - 1, is_split)) return std::nullopt;
  BpeDefinition result;
  static_cast<TokenizerDefinition&>(result) = std::move(definition);
  static_cast<BpeParts&>(result) = *std::move(definition.bpe);
  result.gpt2_words = split_is_gpt2 || bytes.use_regex;
  result.add_prefix_space = bytes.add_prefix_space;
  if (!split_is_gpt2)
    for (std::size_t i = 0; i + 1 < cut.size(); ++i) result.splits.push_back(*cut[i].pattern);
  return result;
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
