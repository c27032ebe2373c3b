#include "shoal/train/data/tokenizer/load.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/base64.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/data/tokenizer/definition.h"
#include "shoal/train/data/tokenizer/make_tokenizer.h"
#include "shoal/train/data/tokenizer/saved_files.h"
#include "shoal/train/data/tokenizer/section.h"
#include "shoal/train/data/tokenizer/side_files.h"
#include "shoal/train/data/tokenizer/spiece_proto.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::optional<SpieceOptions::Family> family_named(std::string_view name) {
  using Family = SpieceOptions::Family;
  const auto starts = [&](std::string_view with) { return name.starts_with(with); };
  if (starts("Albert") || name == "albert") return Family::albert;
  if (starts("T5") || name == "t5") return Family::t5;
  if (starts("XLNet") || name == "xlnet") return Family::xlnet;
  if (starts("Gemma") || starts("gemma")) return Family::gemma;
  return std::nullopt;
}

// Tokens with GPT-2's and RoBERTa's usual names. Used if no file names the special tokens.
std::vector<AddedToken> usual_tokens(const BpeDefinition& definition) {
  std::vector<AddedToken> tokens;
  for (const char* name : {"<|endoftext|>", "<s>", "<pad>", "</s>", "<unk>", "<mask>"}) {
    const auto is_name = [&](const auto& token) { return token && *token == name; };
    if (std::any_of(definition.tokens.begin(), definition.tokens.end(), is_name))
      tokens.push_back({.content = name, .lstrip = std::string_view(name) == "<mask>"});
  }
  return tokens;
}

std::shared_ptr<const TokenizerBase> from_tokenizer_json(std::string_view text,
                                                         const std::string& source,
                                                         const SideFiles& files) {
  const json file = parse_json(text, source);
  const RoleNames roles = names_of(files.named);
  const json* const model = find_field(file, "model");
  if (model != nullptr && field_or(*model, "type", json(), source) == "WordPiece") {
    WordPieceDefinition definition = parse_word_piece(file, source);
    add_side_tokens(definition, files, source);
    return make_word_piece(std::move(definition), source, roles);
  }
  ComposedDefinition definition = parse_composed(file, source);
  add_side_tokens(definition, files, source);
  if (!definition.bpe && definition.tokens.size() != definition.scores.size())
    unsupported_tokenizer(source,
                          fmt::format("a unigram model of {} pieces and a token of the id {}",
                                      definition.scores.size(), definition.tokens.size() - 1));
  if (auto bytes = byte_level_of(definition))
    return make_byte_level_bpe(*std::move(bytes), source, roles);
  return make_composed_tokenizer(std::move(definition), source, roles);
}

// The class in tokenizer_config.json, otherwise the model_type in config.json, otherwise empty.
std::string class_or_type(const fs::path& directory, const SideFiles& files) {
  const std::string path = (directory / "config.json").string();
  if (!files.tokenizer_class.empty() || !path_exists(path)) return files.tokenizer_class;
  const json config = read_json_file(path);
  std::string type;
  if (config.is_object()) JsonFields(config, path).text("model_type", type);
  return type;
}

// The transformers family named by the files beside a SentencePiece model, if any.
std::optional<SpieceOptions::Family> spiece_family(const fs::path& directory,
                                                   const SideFiles& files, SpieceModel::Type type) {
  const std::string name = class_or_type(directory, files);
  const auto family = family_named(name);
  if (name.empty() || type == SpieceModel::Type::bpe ||
      (family && *family != SpieceOptions::Family::gemma))
    return family;
  throw Error(ErrorCode::unavailable,
              fmt::format("{}: a unigram model for '{}' is not supported", directory.string(),
                          shortened(name)),
              "Shoal knows those of ALBERT, T5 and XLNet; of others it reads the tokenizer.json "
              "that transformers saves");
}

// Whether the file holds ranks of OpenAI's tiktoken, as Llama 3's tokenizer.model does: base64,
// space, rank.
bool is_tiktoken(std::string_view model) {
  const std::string_view line = model.substr(0, std::min(model.find('\n'), model.size()));
  const std::size_t space = std::min(line.find(' '), line.size());
  return space > 0 && space + 1 < line.size() && from_base64(line.substr(0, space)) &&
         line.find_first_not_of("0123456789", space + 1) == std::string_view::npos;
}

std::shared_ptr<const Tokenizer> from_spiece_model(const fs::path& path, const SideFiles& files) {
  const std::string source = path.string(), bytes = read_text_file(source);
  if (is_tiktoken(bytes))
    throw Error(ErrorCode::unavailable,
                fmt::format("{} holds tiktoken's ranks, not a SentencePiece model", source),
                "give the tokenizer.json that lies beside it in Hugging Face's directories");
  SpieceModel model = read_spiece_model(bytes, source);
  SpieceOptions options = files.spiece;
  options.family = spiece_family(path.parent_path(), files, model.type);
  options.add_bos_token = files.add_bos_token.value_or(options.add_bos_token);
  options.add_eos_token = files.add_eos_token.value_or(options.add_eos_token);
  options.special_tokens = files.named;
  options.stated_tokens = files.stated;
  options.extra_tokens = files.extra;
  const RoleNames roles = names_of(model.type == SpieceModel::Type::bpe
                                       ? spiece_special_tokens(model, options)
                                       : unigram_special_tokens(model, source, options));
  return make_composed_tokenizer(spiece_definition(std::move(model), source, options), source,
                                 roles);
}

std::shared_ptr<const Tokenizer> from_vocab_txt(const std::string& path, const SideFiles& files) {
  WordPieceFileOptions options;
  options.normalize.lowercase = files.do_lower_case;
  options.normalize.strip_accents = files.strip_accents.value_or(files.do_lower_case);
  options.normalize.handle_chinese_chars = files.tokenize_chinese_chars;
  const NamedTokens named = named_or(files.named, {{"unk_token", {.content = "[UNK]"}},
                                                   {"sep_token", {.content = "[SEP]"}},
                                                   {"pad_token", {.content = "[PAD]"}},
                                                   {"cls_token", {.content = "[CLS]"}},
                                                   {"mask_token", {.content = "[MASK]"}}});
  const RoleNames roles = names_of(named);
  options.unk_token = roles.at("unk_token");
  options.cls_token = roles.at("cls_token");
  options.sep_token = roles.at("sep_token");
  options.stated_tokens = with_roles(files.stated, named);
  options.special_tokens = tokens_without_ids(files, named);
  return make_word_piece(parse_vocab_txt(read_text_file(path), path, options), path, roles);
}

// The tokens with roles of GPT2Tokenizer and RobertaTokenizer.
NamedTokens bpe_tokens(bool roberta) {
  const AddedToken bos{.content = roberta ? "<s>" : "<|endoftext|>"};
  const AddedToken eos{.content = roberta ? "</s>" : "<|endoftext|>"};
  if (!roberta) return {{"bos_token", bos}, {"eos_token", eos}, {"unk_token", bos}};
  return {{"bos_token", bos},
          {"eos_token", eos},
          {"unk_token", {.content = "<unk>"}},
          {"sep_token", eos},
          {"pad_token", {.content = "<pad>"}},
          {"cls_token", bos},
          {"mask_token", {.content = "<mask>"}}};
}

// RobertaTokenizer's post-processor.
json roberta_json(const BpeDefinition& definition, const RoleNames& roles) {
  const auto pair = [&](const char* role) {
    const std::string& token = roles.at(role);
    const auto found = std::ranges::find_if(
        definition.added, [&](const auto& added) { return added.first.content == token; });
    return json::array({token, found->second});
  };
  return {{"type", "RobertaProcessing"},
          {"sep", pair("sep_token")},
          {"cls", pair("cls_token")},
          {"trim_offsets", true},
          {"add_prefix_space", definition.add_prefix_space}};
}

// Adds the template that transformers uses: RoBERTa's tokens, or those that tokenizer_config.json
// enables.
void add_bpe_template(BpeDefinition& definition, const SideFiles& files, const RoleNames& roles,
                      bool roberta, const std::string& source) {
  std::vector<TemplatePart> single, pair;
  const auto put = [&](const char* role, bool wanted, int type) {
    if (const auto token = roles.find(role); wanted && token != roles.end()) {
      if (type == 0) single.push_back({token->second, type});
      pair.push_back({token->second, type});
    }
  };
  for (const int type : {0, 1}) {
    put("bos_token", files.add_bos_token.value_or(false), type);
    if (type == 0) single.push_back({"A"});
    pair.push_back({type == 0 ? "A" : "B", type});
    put("eos_token", files.add_eos_token.value_or(false), type);
  }
  if (roberta)
    definition.post_processor = roberta_json(definition, roles);
  else if (single.size() > 1)
    definition.post_processor = template_json(definition, source, single, pair);
  else
    return;
  read_post_processor(definition.post_processor, "post_processor", source, definition);
}

// Loads vocab.json and merges.txt. The class that a file names determines the tokens with roles. If
// no file names a class, they are the usual names that the vocabulary contains.
std::shared_ptr<const Tokenizer> from_vocab_and_merges(const fs::path& directory,
                                                       const std::string& vocab,
                                                       const std::string& merges,
                                                       const SideFiles& files) {
  const std::string source = directory.string(), name = class_or_type(directory, files);
  const auto is = [&](std::initializer_list<std::string_view> families) {
    return std::ranges::any_of(families, [&](std::string_view f) { return name.starts_with(f); });
  };
  if (is({"Qwen", "qwen", "Deberta", "deberta", "CLIP", "clip"}))
    throw Error(ErrorCode::unavailable,
                fmt::format("{}: vocab.json and merges.txt of '{}' are not supported", source,
                            shortened(name)),
                "give the tokenizer.json that transformers saves");
  // transformers opens the files of these families as RobertaTokenizer.
  const bool roberta =
      is({"Roberta", "roberta", "Bart", "bart", "Longformer", "longformer", "LED", "led"});
  const bool gpt2 = name.starts_with("GPT2") || name == "gpt2";
  const NamedTokens named =
      roberta || gpt2 ? named_or(files.named, bpe_tokens(roberta)) : files.named;
  BpeFileOptions options;
  options.add_prefix_space = files.add_prefix_space;
  options.stated_tokens = with_roles(files.stated, named);
  options.added_tokens = tokens_without_ids(files, named);
  BpeDefinition definition =
      parse_vocab_and_merges(read_text_file(vocab), read_text_file(merges), source, options);
  if (named.empty()) add_tokens(definition, usual_tokens(definition));
  const RoleNames roles = names_of(named);
  add_bpe_template(definition, files, roles, roberta, source);
  return make_byte_level_bpe(std::move(definition), source, roles);
}

std::shared_ptr<const Tokenizer> opened(const std::string& path) {
  const fs::path place(path);
  if (!path_exists(place)) throw_error(ErrorCode::not_found, "there is no tokenizer at '{}'", path);
  const bool whole_directory = is_directory(place);
  const fs::path directory = whole_directory ? place : place.parent_path();
  const fs::path whole = whole_directory ? place / "tokenizer.json" : place;
  const SideFiles files = read_side_files(directory);
  if (!whole_directory && place.extension() == ".txt") return from_vocab_txt(path, files);
  if (!whole_directory && place.extension() == ".model") return from_spiece_model(place, files);
  if (path_exists(whole))
    return from_tokenizer_json(read_text_file(whole.string()), whole.string(), files);
  const fs::path vocab = place / "vocab.json", merges = place / "merges.txt";
  const fs::path word_pieces = place / "vocab.txt";
  if (path_exists(word_pieces)) return from_vocab_txt(word_pieces.string(), files);
  for (const char* name : {"spiece.model", "tokenizer.model"})
    if (path_exists(place / name)) return from_spiece_model(place / name, files);
  if (!path_exists(vocab) || !path_exists(merges))
    throw Error(ErrorCode::not_found,
                fmt::format("'{}' holds no tokenizer.json, no vocab.json with merges.txt, no "
                            "vocab.txt, no spiece.model and no tokenizer.model",
                            path),
                "give the directory that a tokenizer was saved in");
  return from_vocab_and_merges(place, vocab.string(), merges.string(), files);
}

}  // namespace

std::shared_ptr<const Tokenizer> load_tokenizer(const std::string& path) {
  const auto tokenizer = std::const_pointer_cast<Tokenizer>(opened(path));  // not shared yet
  tokenizer->keep_files_read(tokenizer_files_at(path));
  return tokenizer;
}

std::shared_ptr<const TokenizerBase> tokenizer_from_json(std::string_view json,
                                                         const std::string& source) {
  return from_tokenizer_json(json, source, SideFiles{});
}

std::shared_ptr<const ByteLevelBpe> load_vocab_and_merges(const std::string& vocab_path,
                                                          const std::string& merges_path,
                                                          const BpeFileOptions& options) {
  return ByteLevelBpe::from_vocab_and_merges(read_text_file(vocab_path),
                                             read_text_file(merges_path),
                                             vocab_path + " + " + merges_path, options);
}

}  // namespace shoal
