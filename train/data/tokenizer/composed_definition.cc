#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/section.h"

namespace shoal {
namespace {

using nlohmann::json;

void read_model(const json& value, const std::string& source, ComposedDefinition& definition) {
  Section model(value, "model", source);
  // Old files have no type. A list of tokens with scores means a unigram model.
  const bool has_scores = value.contains("vocab") && value["vocab"].is_array();
  const std::string type = model.find("type") != nullptr ? model.text("type")
                           : has_scores                  ? "Unigram"
                                                         : "BPE";
  if (type != "Unigram") {
    definition.bpe.emplace();
    read_bpe_model(value, source, definition, *definition.bpe);
    return;
  }
  const json& vocab = model.need("vocab");
  if (!vocab.is_array() || vocab.empty()) model.wrong("vocab", "a list of [token, score]");
  definition.tokens.reserve(vocab.size());
  definition.scores.reserve(vocab.size());
  for (const json& item : vocab) {
    if (!item.is_array() || item.size() != 2 || !item[0].is_string() || !item[1].is_number())
      corrupt_tokenizer(source,
                        fmt::format("model.vocab[{}] is {}; a token and its score are wanted",
                                    definition.tokens.size(), shortened(item.dump(), 80)));
    definition.tokens.emplace_back(item[0].get<std::string>());
    definition.scores.push_back(item[1].get<double>());
  }
  if (model.find("unk_id") != nullptr) {
    definition.unknown = model.id("unk_id");
    if (static_cast<std::size_t>(*definition.unknown) >= definition.tokens.size())
      corrupt_tokenizer(source, fmt::format("model.unk_id is {}, but the highest id is {}",
                                            *definition.unknown, definition.tokens.size() - 1));
  }
  definition.byte_fallback = model.boolean("byte_fallback", false);
  model.nothing_else();
}

}  // namespace

void read_composed_parts(const std::string& source, ComposedDefinition& definition) {
  if (!definition.normalizer.is_null())
    definition.normalize = read_normalizers(definition.normalizer, source);
  if (!definition.pre_tokenizer.is_null())
    definition.cut = read_pre_tokenizers(definition.pre_tokenizer, source);
  if (!definition.post_processor.is_null())
    read_post_processor(definition.post_processor, "post_processor", source, definition);
  if (!definition.decoder.is_null()) definition.decode = read_decoders(definition.decoder, source);
}

ComposedDefinition parse_composed(const json& file, const std::string& source) {
  ComposedDefinition definition;
  Section top(file, "the file", source);
  top.find("version");
  for (const char* key : {"truncation", "padding"}) top.find(key);  // do not affect ids
  read_model(top.need("model"), source, definition);
  read_added_tokens(top.find("added_tokens"), source, definition);
  const auto part = [&](const char* key) {
    const json* value = top.find(key);
    return value == nullptr ? json() : *value;
  };
  definition.normalizer = part("normalizer");
  definition.pre_tokenizer = part("pre_tokenizer");
  definition.post_processor = part("post_processor");
  definition.decoder = part("decoder");
  top.nothing_else();
  read_composed_parts(source, definition);
  return definition;
}

}  // namespace shoal
