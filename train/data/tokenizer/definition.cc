#include "shoal/train/data/tokenizer/definition.h"

#include <algorithm>
#include <unordered_map>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/data/tokenizer/utf8.h"

namespace shoal {
namespace {

using nlohmann::json;

constexpr std::int64_t kMaxId = (std::int64_t{1} << 26) - 1;  // a hostile id must not cost memory

[[noreturn]] void corrupt(const std::string& source, const std::string& what) {
  throw_error(ErrorCode::corrupt_data, "{}: {}", source, what);
}

[[noreturn]] void unsupported(const std::string& source, const std::string& what) {
  throw Error(ErrorCode::unavailable, fmt::format("{}: {} is not supported", source, what),
              "Shoal reads byte-level BPE as GPT-2, RoBERTa and Llama 3 use it");
}

// One JSON object with its place, for messages. Keys that nobody asked about are refused at the
// end: nothing in a tokenizer.json may be ignored silently.
class Section {
 public:
  Section(const json& object, std::string where, const std::string& source)
      : object_(object), where_(std::move(where)), source_(source) {
    if (!object.is_object()) corrupt(source, where_ + " is not an object");
  }

  const json* find(const char* key) {
    known_.emplace_back(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  const json& need(const char* key) {
    const json* value = find(key);
    if (value == nullptr) corrupt(source_, fmt::format("{} lacks '{}'", where_, key));
    return *value;
  }
  std::string text(const char* key) {
    const json& value = need(key);
    if (!value.is_string()) wrong(key, "a string");
    return value.get<std::string>();
  }
  bool boolean(const char* key, std::optional<bool> otherwise = std::nullopt) {
    const json* value = find(key);
    if (value == nullptr && otherwise) return *otherwise;
    if (value == nullptr) corrupt(source_, fmt::format("{} lacks '{}'", where_, key));
    if (!value->is_boolean()) wrong(key, "true or false");
    return value->get<bool>();
  }
  TokenId id(const char* key) { return id_of(need(key), fmt::format("{}.{}", where_, key)); }
  TokenId id_of(const json& value, const std::string& what) const {
    if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
        value.get<std::int64_t>() > kMaxId)
      corrupt(source_, fmt::format("{} is {}; ids go from 0 to {}", what, value.dump(), kMaxId));
    return value.get<TokenId>();
  }
  void nothing_else() const {
    for (const auto& [key, value] : object_.items())
      if (std::find(known_.begin(), known_.end(), key) == known_.end())
        unsupported(source_, fmt::format("'{}' in {}", key, where_));
  }
  [[noreturn]] void wrong(const char* key, const char* wanted) const {
    corrupt(source_, fmt::format("{}.{} is not {}", where_, key, wanted));
  }
  const std::string& where() const { return where_; }
  const std::string& source() const { return source_; }

 private:
  const json& object_;
  std::string where_;
  const std::string& source_;
  std::vector<std::string> known_;
};

void read_vocab(const json& vocab, const std::string& source, BpeDefinition& definition) {
  if (!vocab.is_object()) corrupt(source, "the vocabulary is not an object of token: id");
  auto& tokens = definition.tokens;
  const Section ids(vocab, "the vocabulary", source);
  for (const auto& [token, value] : vocab.items()) {
    const auto id =
        static_cast<std::size_t>(ids.id_of(value, fmt::format("the id of '{}'", token)));
    if (id >= tokens.size()) tokens.resize(id + 1);
    if (tokens[id])
      corrupt(source,
              fmt::format("the tokens '{}' and '{}' both have the id {}", *tokens[id], token, id));
    tokens[id] = token;
  }
}

std::pair<std::string, std::string> split_merge(std::string_view line, std::size_t number,
                                                const std::string& source) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos)
    corrupt(source, fmt::format("merge {} is '{}'; two tokens with one space between them make one",
                                number, line));
  return {std::string(line.substr(0, space)), std::string(line.substr(space + 1))};
}

void read_model(const json& value, const std::string& source, BpeDefinition& definition) {
  Section model(value, "model", source);
  const json* type = model.find("type");
  if (type != nullptr && *type != "BPE")
    unsupported(source, fmt::format("the model type {}", type->dump()));
  if (type == nullptr && !value.contains("merges"))
    unsupported(source, "a model without a type and merges");
  if (const json* dropout = model.find("dropout"); dropout != nullptr && *dropout != 0.0)
    unsupported(source, fmt::format("model.dropout {}", dropout->dump()));
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    // NOLINTNEXTLINE(readability-container-size-empty): json::empty() is false for every text
    if (const json* affix = model.find(key); affix != nullptr && *affix != "")
      unsupported(source, fmt::format("model.{} {}", key, affix->dump()));
  if (model.boolean("byte_fallback", false)) unsupported(source, "model.byte_fallback");
  if (model.find("unk_token") != nullptr) definition.model.unk_token = model.text("unk_token");
  definition.model.fuse_unk = model.boolean("fuse_unk", false);
  definition.model.ignore_merges = model.boolean("ignore_merges", false);
  read_vocab(model.need("vocab"), source, definition);
  const json& merges = model.need("merges");
  if (!merges.is_array()) model.wrong("merges", "an array");
  definition.merges.reserve(merges.size());
  for (const json& merge : merges) {
    if (merge.is_string()) {
      definition.merges.push_back(
          split_merge(merge.get_ref<const std::string&>(), definition.merges.size() + 1, source));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      definition.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      corrupt(source, fmt::format("merge {} is {}", definition.merges.size() + 1, merge.dump()));
    }
  }
  model.nothing_else();
}

SplitBehavior behavior_of(const std::string& name, const std::string& source) {
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  unsupported(source, fmt::format("the Split behavior '{}'", name));
}

struct PreTokenizerSteps {
  std::optional<bool> byte_level_regex;  // set once ByteLevel was met
  bool split_is_gpt2 = false;
};

void read_split(Section& step, BpeDefinition& definition, PreTokenizerSteps& steps) {
  Section pattern(step.need("pattern"), step.where() + ".pattern", step.source());
  const SplitBehavior behavior = behavior_of(step.text("behavior"), step.source());
  const bool invert = step.boolean("invert");
  if (pattern.find("Regex") != nullptr) {
    const std::string regex = pattern.text("Regex");
    // Every character is matched by GPT-2's pattern, so isolating and inverted removing agree.
    if (is_gpt2_pattern(regex) && definition.splits.empty() && !steps.split_is_gpt2 &&
        ((behavior == SplitBehavior::isolated) || (behavior == SplitBehavior::removed && invert)))
      steps.split_is_gpt2 = true;
    else
      definition.splits.push_back(SplitPattern::regex(regex, behavior, invert, step.source()));
  } else {
    definition.splits.push_back(SplitPattern::literal(pattern.text("String"), behavior, invert));
  }
  pattern.nothing_else();
}

void read_pre_tokenizer_step(const json& value, const std::string& where, const std::string& source,
                             BpeDefinition& definition, PreTokenizerSteps& steps) {
  Section step(value, where, source);
  const std::string type = step.text("type");
  if (steps.byte_level_regex) unsupported(source, fmt::format("{} after ByteLevel", type));
  if (type == "ByteLevel") {
    definition.add_prefix_space = step.boolean("add_prefix_space");
    step.boolean("trim_offsets", true);  // of post-processors; here it says nothing
    steps.byte_level_regex = step.boolean("use_regex", true);
  } else if (type == "Split") {
    read_split(step, definition, steps);
  } else if (type == "Sequence") {
    const json& list = step.need("pretokenizers");
    if (!list.is_array()) step.wrong("pretokenizers", "an array");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_pre_tokenizer_step(list[i], fmt::format("{}.pretokenizers[{}]", where, i), source,
                              definition, steps);
  } else {
    unsupported(source, fmt::format("the pre-tokenizer '{}'", type));
  }
  step.nothing_else();
}

void read_pre_tokenizer(const json* value, const std::string& source, BpeDefinition& definition) {
  if (value == nullptr) unsupported(source, "BPE without the pre-tokenizer ByteLevel");
  PreTokenizerSteps steps;
  read_pre_tokenizer_step(*value, "pre_tokenizer", source, definition, steps);
  if (!steps.byte_level_regex) unsupported(source, "BPE without the pre-tokenizer ByteLevel");
  definition.gpt2_words = steps.split_is_gpt2 || *steps.byte_level_regex;
  // GPT-2's pattern first and something else after it, or twice with a prefix space between, would
  // need the words of one as the texts of the next.
  if (steps.split_is_gpt2 &&
      (!definition.splits.empty() || *steps.byte_level_regex || definition.add_prefix_space))
    unsupported(source, "a pre-tokenizer that splits by GPT-2's pattern and then again");
  definition.pre_tokenizer = *value;
}

std::vector<TokenId> template_ids(const json& item, Section& post) {
  Section special(item, post.where() + ".single", post.source());
  special.find("type_id");
  const std::string name = special.text("id");
  special.nothing_else();
  const json& all = post.need("special_tokens");
  if (!all.is_object() || !all.contains(name))
    corrupt(post.source(), fmt::format("{}.special_tokens lacks '{}'", post.where(), name));
  Section token(all[name], post.where() + ".special_tokens." + name, post.source());
  std::vector<TokenId> ids;
  for (const json& id : token.need("ids")) ids.push_back(token.id_of(id, token.where() + ".ids"));
  return ids;
}

void read_template(Section& post, BpeDefinition& definition) {
  std::vector<TokenId> before, after;
  int sequences = 0;
  post.find("pair");  // only single texts are encoded
  const json& items = post.need("single");
  if (!items.is_array()) post.wrong("single", "an array");
  for (const json& item : items) {
    Section piece(item, post.where() + ".single", post.source());
    if (const json* special = piece.find("SpecialToken")) {
      auto& side = sequences > 0 ? after : before;
      for (const TokenId id : template_ids(*special, post)) side.push_back(id);
    } else {
      Section sequence(piece.need("Sequence"), post.where() + ".single", post.source());
      if (sequence.text("id") != "A" || ++sequences > 1)
        unsupported(post.source(), "a TemplateProcessing.single other than one sequence A");
    }
    piece.find("Sequence");
    piece.nothing_else();
  }
  if (sequences != 1)
    unsupported(post.source(), "a TemplateProcessing.single other than one sequence A");
  post.need("special_tokens");
  definition.before.insert(definition.before.begin(), before.begin(), before.end());
  definition.after.insert(definition.after.end(), after.begin(), after.end());
}

void read_post_processor(const json& value, const std::string& where, const std::string& source,
                         BpeDefinition& definition) {
  Section post(value, where, source);
  const std::string type = post.text("type");
  const auto named_id = [&](const char* key) {
    const json& pair = post.need(key);
    if (!pair.is_array() || pair.size() != 2) post.wrong(key, "[token, id]");
    return post.id_of(pair[1], fmt::format("{}.{}", where, key));
  };
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    const bool prefix = post.boolean("add_prefix_space");
    if (post.boolean("trim_offsets")) {
      definition.trim_offsets = true;
      definition.trim_prefix_space = prefix;
    }
    post.find("use_regex");
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    definition.before.insert(definition.before.begin(), named_id("cls"));
    definition.after.push_back(named_id("sep"));
  } else if (type == "TemplateProcessing") {
    read_template(post, definition);
  } else if (type == "Sequence") {
    const json& list = post.need("processors");
    if (!list.is_array()) post.wrong("processors", "an array");
    for (std::size_t i = 0; i < list.size(); ++i)
      read_post_processor(list[i], fmt::format("{}.processors[{}]", where, i), source, definition);
  } else if (type != "ByteLevel") {
    unsupported(source, fmt::format("the post-processor '{}'", type));
  }
  post.nothing_else();
}

void read_decoder(const json* value, const std::string& source, BpeDefinition& definition) {
  if (value == nullptr) unsupported(source, "BPE without the decoder ByteLevel");
  Section decoder(*value, "decoder", source);
  if (const std::string type = decoder.text("type"); type != "ByteLevel")
    unsupported(source, fmt::format("the decoder '{}'", type));
  for (const char* key : {"add_prefix_space", "trim_offsets", "use_regex"}) decoder.find(key);
  decoder.nothing_else();
  definition.decoder = *value;
}

void read_added_tokens(const json* list, const std::string& source, BpeDefinition& definition) {
  if (list == nullptr) return;
  if (!list->is_array()) corrupt(source, "added_tokens is not an array");
  std::vector<AddedToken> tokens;
  std::vector<TokenId> ids;
  for (const json& item : *list) {
    Section token(item, fmt::format("added_tokens[{}]", tokens.size()), source);
    ids.push_back(token.id("id"));
    tokens.push_back({.content = token.text("content"),
                      .single_word = token.boolean("single_word"),
                      .lstrip = token.boolean("lstrip"),
                      .rstrip = token.boolean("rstrip"),
                      .normalized = token.boolean("normalized"),
                      .special = token.boolean("special")});
    token.nothing_else();
    if (tokens.back().content.empty())
      corrupt(source, fmt::format("added_tokens[{}] has no content", tokens.size() - 1));
  }
  add_tokens(definition, tokens);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto found =
        std::find_if(definition.added.begin(), definition.added.end(),
                     [&](const auto& added) { return added.first.content == tokens[i].content; });
    if (found->second != ids[i])
      corrupt(source, fmt::format("the added token '{}' claims the id {}, but its place is {}",
                                  tokens[i].content, ids[i], found->second));
  }
}

}  // namespace

void add_tokens(BpeDefinition& definition, const std::vector<AddedToken>& tokens) {
  std::unordered_map<std::string, TokenId> ids;
  TokenId vocabulary = 0;
  for (std::size_t id = 0; id < definition.tokens.size(); ++id)
    if (definition.tokens[id]) {
      ids.emplace(*definition.tokens[id], static_cast<TokenId>(id));
      ++vocabulary;
    }
  TokenId next = vocabulary;
  for (const auto& [token, id] : definition.added) {
    ids.emplace(token.content, id);
    next = std::max(next, id + 1);
  }
  for (const AddedToken& token : tokens) {
    if (token.content.empty()) continue;
    const auto [place, is_new] = ids.emplace(token.content, next);
    if (is_new) ++next;
    const TokenId id = place->second;
    const auto known = std::find_if(definition.added.begin(), definition.added.end(),
                                    [&](const auto& added) { return added.second == id; });
    if (known != definition.added.end())
      known->first = token;
    else
      definition.added.emplace_back(token, id);
  }
  std::sort(definition.added.begin(), definition.added.end(),
            [](const auto& a, const auto& b) { return a.second < b.second; });
}

BpeDefinition parse_tokenizer_json(std::string_view text, const std::string& source) {
  const json root = parse_json(text, source);
  BpeDefinition definition;
  Section top(root, "the file", source);
  top.find("version");
  for (const char* key : {"normalizer", "truncation", "padding"})
    if (const json* value = top.find(key))
      unsupported(source, fmt::format("{} {}", key, value->dump().substr(0, 80)));
  read_model(top.need("model"), source, definition);
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
  while (!merges_txt.empty()) {
    const std::size_t end = std::min(merges_txt.find('\n'), merges_txt.size());
    std::string_view line = merges_txt.substr(0, end);
    merges_txt.remove_prefix(std::min(end + 1, merges_txt.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with("#version")) continue;
    definition.merges.push_back(split_merge(line, definition.merges.size() + 1, source));
  }
  add_tokens(definition, options.added_tokens);
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
