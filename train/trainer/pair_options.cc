// Options of summarization and translation, with the names of transformers' examples
// run_summarization and run_translation.
#include "shoal/train/trainer/arguments.h"

namespace shoal {

void declare_pairs(OptionSet& options, DataArguments& arguments) {
  options.section("pairs", "Texts with a summary or a translation (summarization, translation)")
      .string("text_column", &arguments.text_column,
              {.help = "the texts; empty: a usual name, or a table's first column"})
      .string("summary_column", &arguments.summary_column,
              {.help = "their summaries; empty: a usual name, or a table's second column"})
      .string("source_lang", &arguments.source_lang,
              {.help = "en of rows {\"translation\": {\"en\": ..., \"de\": ...}}, or of columns"})
      .string("target_lang", &arguments.target_lang, {.help = "de of such rows"})
      .string("lang", &arguments.lang, {.help = "mbart: the language of summaries, such as en_XX"})
      .string("source_prefix", &arguments.source_prefix,
              {.help = "put before each text: \"summarize: \" for T5"})
      .integer("max_source_length", &arguments.max_source_length,
               {.min = 2, .help = "tokens of a text; null: 1024 or the model's positions"})
      .integer("max_target_length", &arguments.max_target_length,
               {.min = 2, .help = "tokens of a target"})
      .integer("val_max_target_length", &arguments.val_max_target_length,
               {.min = 2, .help = "of evaluation; null: max_target_length"})
      .string("forced_bos_token", &arguments.forced_bos_token,
              {.help = "generated first, such as mBART-50's target language"})
      .boolean("ignore_pad_token_for_loss", &arguments.ignore_pad_token_for_loss,
               {.help = "false is refused: the loss would depend on padding"});
}

}  // namespace shoal
