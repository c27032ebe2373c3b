#include "shoal/train/command/generated_texts.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/nn/models/generation/read_options.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"

namespace shoal::command {
namespace {

std::int64_t longest_text(const RunArguments& a) {
  return a.training.generation_max_length.value_or(
      a.data.val_max_target_length.value_or(a.data.max_target_length));
}

TokenId id_of(const Tokenizer& tokenizer, const char* option, const std::string& token) {
  const auto id = tokenizer.token_to_id(token);
  SHOAL_CHECK(id.has_value(), "{} is {}, and the tokenizer has no such token", option,
              shortened(token));
  return *id;
}

}  // namespace

bool learns_pairs(TaskKind kind) {
  return kind == TaskKind::summarization || kind == TaskKind::translation;
}

bool generates_texts(const RunArguments& a, TaskKind kind) {
  return learns_pairs(kind) &&
         a.training.predict_with_generate.value_or(a.training.do_predict || !a.training.do_train);
}

void check_pairs(const RunArguments& a) {
  const DataArguments& data = a.data;
  if (data.block_size)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("block_size is {}, but a source and a target have lengths of their own",
                            *data.block_size),
                "give max_source_length and max_target_length");
  if (!data.ignore_pad_token_for_loss)
    throw Error(ErrorCode::unavailable,
                "ignore_pad_token_for_loss is false: the loss would depend on how samples are "
                "padded, and so on the ranks",
                "leave it out");
  SHOAL_CHECK(!a.training.do_predict || a.training.predict_with_generate.value_or(true),
              "do_predict writes generated texts, but predict_with_generate is false");
  SHOAL_CHECK(!splits_train_file(data) || !data.val_max_target_length,
              "val_max_target_length is of validation_file, but validation_split_percentage takes "
              "the set from train_file");
}

std::optional<nn::GenerationOptions> generation_of(const RunArguments& a, RunSetup& setup) {
  if (!learns_pairs(setup.kind)) return std::nullopt;
  nn::EncoderDecoder& model = *setup.task->generator();
  if (!setup.model_files.empty()) model.keep_generation_config(setup.model_files);
  if (const std::string& token = a.data.forced_bos_token; !token.empty())
    model.set_generation_id("forced_bos_token_id",
                            id_of(*setup.tokenizer, "forced_bos_token", token));
  const std::string& language =
      setup.kind == TaskKind::translation ? a.data.target_lang : a.data.lang;
  // mBART's texts begin with their language.
  if (model.config().model_type == "mbart" && !model.generation_id("decoder_start_token_id"))
    model.set_generation_id("decoder_start_token_id",
                            id_of(*setup.tokenizer, "the target's language", language));
  if (!generates_texts(a, setup.kind)) return std::nullopt;
  const std::int64_t longest = longest_text(a);
  if (longest > setup.task->positions())
    throw Error(ErrorCode::invalid_argument,
                fmt::format("texts of {} tokens are to be generated, but the model has {} "
                            "positions",
                            longest, setup.task->positions()),
                fmt::format("give --generation_max_length {}", setup.task->positions()));
  nn::GenerationOptions options;
  const std::string path = setup.model_files + "/generation_config.json";
  if (!setup.model_files.empty() && path_exists(path))
    nn::read_options(read_json_file(path), path, 1, options);
  options.num_beams = a.training.generation_num_beams.value_or(options.num_beams);
  if (const std::int64_t texts = std::exchange(options.num_return_sequences, 1); texts != 1)
    setup.notices.push_back(
        fmt::format("generation_config.json has num_return_sequences {}; evaluation takes the best "
                    "text of each sample",
                    texts));
  options.seed = static_cast<std::uint64_t>(a.training.seed);
  // The length counts the start, as in transformers.
  options.max_new_tokens = longest - 1;
  if (options.stop_tokens.empty()) {
    const auto end = model.generation_id("eos_token_id");
    SHOAL_CHECK(end.has_value(),
                "neither config.json nor generation_config.json has an eos_token_id, "
                "which ends a generated text");
    options.stop_tokens = {static_cast<std::int32_t>(*end)};
  }
  return options;
}

}  // namespace shoal::command
