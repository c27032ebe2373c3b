#include "shoal/train/command/choose_model.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/ranges.h>

#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/config.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/nn/models/model_type.h"
#include "shoal/nn/models/written_config.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/command/local_model.h"
#include "shoal/train/run/failures.h"
#include "shoal/train/run/model_config.h"

namespace shoal::command {
namespace {

// Adds model_type to a configuration without one. The value is the option's or, without the option,
// the type that the configuration's architectures name. Throws if the option contradicts the
// configuration.
nlohmann::json with_type(nlohmann::json config, const std::string& model_type,
                         const std::string& source) {
  if (!config.is_object()) return config;
  if (model_type.empty()) return nn::with_model_type(std::move(config), source);
  config_of_type(model_type);  // checks the option itself
  const nlohmann::json* said = find_field(config, "model_type");
  if (said == nullptr)
    config["model_type"] = model_type;
  else
    SHOAL_CHECK(*said == model_type, "model_type is {}, but {} is of a model of type {}",
                model_type, source, said->dump());
  return config;
}

nlohmann::json new_config(const ModelArguments& arguments, std::string& source) {
  const std::string& name = arguments.config_name;
  nlohmann::json config;
  if (!name.empty()) {
    source = name;
    if (is_directory(name)) source += "/config.json";
    if (path_exists(source))
      config = with_type(read_json_file(source, JsonIntegers::exact), arguments.model_type, source);
    else
      config = with_type(nn::gpt2_preset(name).known_fields(nn::DecoderHead::causal_lm),
                         arguments.model_type, name);
  } else if (!arguments.model_type.empty()) {
    source = "model_type " + arguments.model_type;
    config = completed_config(config_of_type(arguments.model_type), source);
  } else {
    throw_error(ErrorCode::invalid_argument,
                "there is no model: give model_name_or_path, config_name, or model_type ({})",
                fmt::join(nn::known_types(), ", "));
  }
  if (arguments.config_overrides.empty()) return config;
  config = overridden_config(completed_config(config, source), arguments.config_overrides, source);
  source = "config_overrides";
  return config;
}

TaskKind kind_of(const ModelArguments& arguments, const ChosenModel& model) {
  for (const TaskKind kind :
       {TaskKind::causal_lm, TaskKind::masked_lm, TaskKind::text_classification,
        TaskKind::question_answering, TaskKind::token_classification, TaskKind::summarization,
        TaskKind::translation, TaskKind::span_corruption, TaskKind::denoising})
    if (arguments.task == to_string(kind)) return kind;
  const std::optional<TaskKind> said = task_of(model.config);
  if (!said)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} does not say what the model is for", model.source),
                is_encoder_decoder_config(model.config)
                    ? "give --task summarization, translation, span-corruption, denoising, "
                      "text-classification or question-answering"
                    : "give --task masked-lm, text-classification, question-answering or "
                      "token-classification");
  return *said;
}

// PEFT's name of the task, and the heads that are trained whole because they may be new.
void name_task(nn::LoraOptions& lora, TaskKind kind) {
  const auto add_heads = [&](std::initializer_list<const char*> names) {
    lora.modules_to_save.insert(lora.modules_to_save.end(), names.begin(), names.end());
  };
  switch (kind) {
    case TaskKind::causal_lm:
      lora.task_type = "CAUSAL_LM";
      break;
    case TaskKind::masked_lm:
      break;  // PEFT has no name for it
    case TaskKind::text_classification:
      lora.task_type = "SEQ_CLS";
      add_heads({"classifier", "score", "pre_classifier", "classification_head"});
      break;
    case TaskKind::token_classification:
      lora.task_type = "TOKEN_CLS";
      add_heads({"classifier", "score"});
      break;
    case TaskKind::question_answering:
      lora.task_type = "QUESTION_ANS";
      add_heads({"qa_outputs"});
      break;
    case TaskKind::summarization:
    case TaskKind::translation:
    case TaskKind::span_corruption:
    case TaskKind::denoising:
      lora.task_type = "SEQ_2_SEQ_LM";
      break;
  }
}

// A lora option without lora_r would have no effect.
void check_lora(const ModelArguments& a) {
  const ModelArguments defaults;
  if (a.lora_r > 0 ||
      (a.lora_alpha == defaults.lora_alpha && a.lora_dropout == 0 && !a.use_rslora &&
       a.lora_target_modules.empty() && a.lora_modules_to_save.empty()))
    return;
  throw Error(ErrorCode::invalid_argument, "a lora option is given, but lora_r is 0",
              "give --lora_r 8, or leave the others out");
}

nn::LoraOptions new_adapters(const ModelArguments& a, const ChosenModel& model) {
  if (model.initial_weights.empty())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("lora_r is {}, but a new model has no weights to adapt", a.lora_r),
                "give model_name_or_path, or leave lora_r out");
  nn::LoraOptions lora{.r = a.lora_r,
                       .lora_alpha = a.lora_alpha,
                       .lora_dropout = a.lora_dropout,
                       .use_rslora = a.use_rslora,
                       .target_modules = a.lora_target_modules,
                       .modules_to_save = a.lora_modules_to_save,
                       .base_model_name_or_path = a.asked_model,
                       .base_directory = model.initial_weights};
  if (lora.base_model_name_or_path.empty())
    lora.base_model_name_or_path = std::filesystem::absolute(model.initial_weights).string();
  name_task(lora, model.kind);
  return lora;
}

}  // namespace

bool has_tokenizer(const std::string& directory) {
  constexpr std::array kFiles = {"tokenizer.json", "vocab.txt", "spiece.model", "tokenizer.model",
                                 "vocab.json"};
  return std::ranges::any_of(kFiles,
                             [&](const char* name) { return path_exists(directory + "/" + name); });
}

ModelPlace place_of(const std::string& directory) {
  ModelPlace place{.weights = directory,
                   .config = directory + "/config.json",
                   .files = directory,
                   .tokenizer = directory};
  if (!nn::is_adapter(directory)) return place;
  place.lora = nn::read_adapter_config(directory);
  const std::string& name = place.lora->base_model_name_or_path;
  const std::string base = local_model(name);
  if (!path_exists(base))
    throw Error(
        ErrorCode::not_found,
        fmt::format("{} adapts '{}': {}", directory, shortened(name), not_found_anywhere(name)),
        fmt::format("bring that model there, or change base_model_name_or_path in the "
                    "adapter's {}",
                    nn::kAdapterConfigFile));
  place.lora->base_directory = model_directory(base);
  const std::string own = fmt::format("{}/{}", directory, nn::kAdaptedConfigFile);
  place.config = path_exists(own) ? own : place.whole() + "/config.json";
  if (!path_exists(directory + "/generation_config.json")) place.files = place.whole();
  if (!has_tokenizer(directory)) place.tokenizer = place.whole();
  return place;
}

std::string model_directory(const std::string& path) {
  if (path_exists(path + "/config.json") || nn::is_adapter(path)) return path;
  if (is_directory(path)) {
    std::vector<DamagedCheckpoint> damaged;
    const auto newest =
        newest_checkpoint(path, [&](const std::string& checkpoint, const std::string& reason) {
          damaged.push_back({checkpoint, reason});
        });
    if (newest) return newest->path;
    if (!damaged.empty())
      throw none_is_whole(path, damaged, "give the directory of a whole checkpoint or model");
  }
  if (path_exists(path))
    throw Error(
        ErrorCode::not_found,
        fmt::format("{} is no model: it has neither config.json nor a complete checkpoint-N", path),
        "give a directory in Hugging Face's format");
  throw Error(ErrorCode::not_found,
              fmt::format("{} is no model: {}", path, not_found_anywhere(path)), how_to_get(path));
}

std::string shared_model_directory(const std::string& path, const World& world, Store& store,
                                   Deadline deadline,
                                   const std::function<std::string(const std::string&)>& find) {
  const auto look = [&] { return path.empty() ? path : find(path); };
  if (world.size == 1) return look();
  std::string answer;
  if (world.local_rank == 0) try {
      answer = as_text(HostAnswer{world.node, path, look()});
    } catch (const std::exception& problem) {
      answer = as_text(error_of(problem));
    }
  for (const HostAnswer& answered :
       exchange_answers(world, store, "model directory", answer, deadline))
    if (answered.node == world.node && answered.first == path) return answered.second;
  return look();  // this rank was given another path than its host's first rank
}

ChosenModel choose_model(const ModelArguments& arguments) {
  ChosenModel model;
  ModelPlace place;
  check_lora(arguments);
  if (!arguments.model_name_or_path.empty()) {
    place = place_of(model_directory(arguments.model_name_or_path));
    if (place.lora && arguments.lora_r > 0)
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("lora_r is {}, but {} is an adapter already", arguments.lora_r,
                              place.weights),
                  "leave lora_r out to train it on, or make it a whole model first: `shoal "
                  "checkpoint convert --merge`");
    model.initial_weights = place.weights;
    model.files = place.files;
    model.tokenizer = place.tokenizer;
    model.lora = place.lora;
  }
  if (!model.initial_weights.empty() && arguments.config_name.empty()) {
    SHOAL_CHECK(arguments.config_overrides.empty(),
                "config_overrides changes a new model; {} has its configuration",
                arguments.model_name_or_path);
    model.source = place.config;
    model.config = with_type(read_json_file(model.source, JsonIntegers::exact),
                             arguments.model_type, model.source);
  } else {
    model.config = new_config(arguments, model.source);
    model.takes_vocabulary = arguments.config_name.empty() &&
                             arguments.config_overrides.find("vocab_size") == std::string::npos;
  }
  check_model_type(model.config, model.source);
  if (!model.initial_weights.empty()) nn::check_sizes(model.config, model.source, place.whole());
  model.kind = kind_of(arguments, model);
  check_task(model.kind, model.config, model.source);
  if (arguments.lora_r > 0) model.lora = new_adapters(arguments, model);
  return model;
}

namespace {

// The ids that begin and end the decoder's texts, by the family's rule: BART begins with </s> and
// is made to end with it, T5 begins with padding.
void take_ends(nlohmann::json& config, const TokenRoles& roles) {
  SHOAL_CHECK(roles.pad && roles.eos,
              "the tokenizer names no {}: an encoder-decoder needs it; add it to "
              "special_tokens_map.json",
              roles.pad ? "end of text (eos_token)" : "padding (pad_token)");
  config["eos_token_id"] = *roles.eos;
  if (config.contains("bos_token_id") && roles.bos) config["bos_token_id"] = *roles.bos;
  if (config["model_type"] == "t5") config["decoder_start_token_id"] = *roles.pad;
  if (config["model_type"] != "bart") return;
  config["decoder_start_token_id"] = config["forced_eos_token_id"] = *roles.eos;
}

}  // namespace

void take_vocabulary(ChosenModel& model, const Tokenizer& tokenizer) {
  const auto id = [](const std::optional<TokenId>& role) {
    return role ? nlohmann::json(*role) : nlohmann::json();
  };
  model.config["vocab_size"] = tokenizer.max_id() + 1;
  if (is_decoder_config(model.config)) {
    model.config["bos_token_id"] = id(tokenizer.roles().bos);
    model.config["eos_token_id"] = id(tokenizer.roles().eos);
  } else {
    model.config["pad_token_id"] = id(tokenizer.roles().pad);
  }
  if (is_encoder_decoder_config(model.config)) take_ends(model.config, tokenizer.roles());
}

TokenId take_padding(ChosenModel& model, const Tokenizer& tokenizer,
                     std::vector<std::string>& notices) {
  const TokenRoles& roles = tokenizer.roles();
  if (model.kind == TaskKind::causal_lm || !is_decoder_config(model.config))
    return roles.pad.value_or(0);
  nlohmann::json& said = model.config["pad_token_id"];
  // Some configurations use -1 or the vocabulary size for none.
  const nlohmann::json* const size = find_field(model.config, "vocab_size");
  const bool in_vocabulary = size == nullptr || said < *size;
  if (said.is_number_integer() && said >= 0 && in_vocabulary) return said.get<TokenId>();
  if (roles.pad) {
    said = *roles.pad;
  } else if (roles.eos) {
    said = *roles.eos;
    notices.push_back(
        fmt::format("no token is for padding: {} ({}), the end of text, fills samples "
                    "up, and config.json names it as pad_token_id",
                    *tokenizer.id_to_token(*roles.eos), *roles.eos));
  } else {
    said = nullptr;
    notices.emplace_back(
        "no token is for padding, nor for the end of text: the attention mask says where samples "
        "end; transformers will take one sample at a time of this model");
    return 0;
  }
  return said.get<TokenId>();
}

}  // namespace shoal::command
