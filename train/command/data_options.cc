#include "shoal/train/command/data_options.h"

#include <filesystem>

#include <fmt/format.h>

#include "shoal/train/data/content_digest.h"
#include "shoal/train/data/corruption.h"
#include "shoal/train/data/masking.h"
#include "shoal/train/data/packing.h"

namespace shoal::command {
namespace {

// True if special tokens are added around the text of train_file.
bool adds_special_tokens(const DataArguments& data, const Tokenizer* tokenizer) {
  return data.add_special_tokens && tokenizer != nullptr &&
         tokenizer->sequence_template().special_tokens(false) > 0 &&
         !data.train_file.ends_with(".shoaltok");
}

nlohmann::json of_task(const DataArguments& data, const RunSetup& setup) {
  using enum TaskKind;
  const SpanCorruptionOptions spans;
  const DenoisingOptions noise;
  switch (setup.kind) {
    case causal_lm:
      return {{"add_special_tokens", adds_special_tokens(data, setup.tokenizer.get())},
              {"packing", data.packing},
              {"packing_strategy",
               data.packing ? nlohmann::json(to_string(data.packing_strategy)) : nlohmann::json()}};
    case masked_lm:
      return {{"line_by_line", data.line_by_line},
              {"mlm_probability", data.mlm_probability.value_or(MaskingOptions{}.probability)},
              {"whole_word_mask", data.whole_word_mask}};
    case span_corruption:
      return {{"mlm_probability", data.mlm_probability.value_or(spans.noise_density)},
              {"mean_noise_span_length",
               data.mean_noise_span_length.value_or(spans.mean_noise_span_length)}};
    case denoising:
      return {{"mlm_probability", data.mlm_probability.value_or(noise.mask_ratio)},
              {"poisson_lambda", data.poisson_lambda.value_or(noise.poisson_lambda)},
              {"permute_sentence_ratio",
               data.permute_sentence_ratio.value_or(noise.permute_sentence_ratio)}};
    case text_classification:
      return {{"task_name", data.task_name},
              {"column_names", data.column_names},
              {"text_column_names", data.text_column_names},
              {"label_column_name", data.label_column_name},
              {"label_list", data.label_list},
              {"skip_bad_rows", data.skip_bad_rows}};
    case question_answering:
      return {{"doc_stride", data.doc_stride},
              {"max_query_length", data.max_query_length},
              {"version_2_with_negative", data.version_2_with_negative},
              {"skip_bad_rows", data.skip_bad_rows}};
    case token_classification:
      return {{"task_name", data.task_name},
              {"text_column_names", data.text_column_names},
              {"label_column_name", data.label_column_name},
              {"label_list", data.label_list},
              {"label_all_tokens", data.label_all_tokens},
              {"skip_bad_rows", data.skip_bad_rows}};
    case summarization:
    case translation:
      return {
          {"column_names", data.column_names},     {"text_column", data.text_column},
          {"summary_column", data.summary_column}, {"source_lang", data.source_lang},
          {"target_lang", data.target_lang},       {"lang", data.lang},
          {"source_prefix", data.source_prefix},   {"max_target_length", data.max_target_length},
          {"skip_bad_rows", data.skip_bad_rows}};
  }
  return nlohmann::json::object();
}

}  // namespace

nlohmann::json data_options(const RunArguments& arguments, const RunSetup& setup,
                            const World& world) {
  const DataArguments& data = arguments.data;
  if (!arguments.training.do_train) return nlohmann::json::object();
  nlohmann::json options = of_task(data, setup);
  options["block_size"] = setup.block_size;
  if (setup.tokenizer) options["tokenizer"] = setup.tokenizer->hash().substr(0, 16);
  if (data.streaming) return options;  // StreamState records its shards
  options["max_train_samples"] =
      data.max_train_samples ? nlohmann::json(*data.max_train_samples) : nlohmann::json();
  options["validation_split_percentage"] =
      splits_train_file(data) ? data.validation_split_percentage : 0.0;
  if (world.rank == 0) {  // the other ranks would request the same remote file
    const auto file = setup.sources.open(data.train_file);
    options["train_file"] = fmt::format(
        "{}, {} bytes", std::filesystem::path(data.train_file).filename().string(), file->size());
    // A digest of a remote file would fetch the whole file once more.
    if (is_local(data.train_file)) options["train_file_content"] = content_digest(*file);
  }
  return options;
}

}  // namespace shoal::command
