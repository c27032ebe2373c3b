#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/definition.h"

namespace shoal {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

nlohmann::ordered_json ordered(const nlohmann::json& value) {
  return parse_ordered_json(value.dump(), "a part of the tokenizer");
}

}  // namespace

// {"token":id,...} by rising id, in Hugging Face's format.
std::string vocab_json_of(const std::vector<std::optional<std::string>>& tokens) {
  std::string text = "{";
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id]) continue;
    if (text.size() > 1) text += ',';
    text += quoted(*tokens[id]) + ':' + std::to_string(id);
  }
  return text + '}';
}

std::string merges_txt_of(const BpeModel& model) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : model.merges())
    text += *model.tokens()[static_cast<std::size_t>(left)] + ' ' +
            *model.tokens()[static_cast<std::size_t>(right)] + '\n';
  return text;
}

std::string tokenizer_json_of(const TokenizerDefinition& definition, std::string_view model) {
  nlohmann::ordered_json added = nlohmann::ordered_json::array();
  for (const auto& [token, id] : definition.added)
    added.push_back({{"id", id},
                     {"content", token.content},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  const nlohmann::ordered_json head = {{"version", "1.0"},
                                       {"truncation", nullptr},
                                       {"padding", nullptr},
                                       {"added_tokens", added},
                                       {"normalizer", ordered(definition.normalizer)},
                                       {"pre_tokenizer", ordered(definition.pre_tokenizer)},
                                       {"post_processor", ordered(definition.post_processor)},
                                       {"decoder", ordered(definition.decoder)}};
  std::string text = head.dump();
  text.back() = ',';
  return text.append("\"model\":").append(model) + '}';
}

// Writes the long parts by hand, because ordered_json searches its keys linearly.
std::string bpe_model_json_of(const BpeModel& model, const BpeModelOptions& model_options) {
  nlohmann::ordered_json options = {{"type", "BPE"},
                                    {"dropout", nullptr},
                                    {"unk_token", nullptr},
                                    {"continuing_subword_prefix", nullptr},
                                    {"end_of_word_suffix", nullptr},
                                    {"fuse_unk", model_options.fuse_unk},
                                    {"byte_fallback", model_options.byte_fallback},
                                    {"ignore_merges", model_options.ignore_merges}};
  if (model_options.unk_token) options["unk_token"] = *model_options.unk_token;
  std::string text = options.dump();
  text.back() = ',';
  text += "\"vocab\":" + vocab_json_of(model.tokens()) + ",\"merges\":[";
  bool first = true;
  for (const auto& [left, right] : model.merges()) {
    if (!first) text += ',';
    first = false;
    text += '[' + quoted(*model.tokens()[static_cast<std::size_t>(left)]) + ',' +
            quoted(*model.tokens()[static_cast<std::size_t>(right)]) + ']';
  }
  return text + "]}";
}

std::string unigram_model_json_of(const ComposedDefinition& definition) {
  std::string text = R"({"type":"Unigram","unk_id":)";
  text += definition.unknown ? std::to_string(*definition.unknown) : "null";
  text += ",\"vocab\":[";
  for (std::size_t id = 0; id < definition.tokens.size(); ++id) {
    if (id > 0) text += ',';
    text += '[' + quoted(*definition.tokens[id]) + ',' +
            nlohmann::json(definition.scores[id]).dump() + ']';
  }
  return text + "],\"byte_fallback\":" + (definition.byte_fallback ? "true}" : "false}");
}

}  // namespace shoal
