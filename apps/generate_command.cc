// shoal generate: continues a prompt, token by token.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/terminal.h"
#include "shoal/train/command/generate.h"

namespace shoal::app {
namespace {

int generate(const command::GenerateOptions& options) {
  bool said = false;
  command::generate(options,
                    {.on_text =
                         [&](const std::string& text) {
                           said = true;
                           terminal::write_result(stdout, text);
                           std::fflush(stdout);
                           return std::ferror(stdout) == 0;
                         },
                     .on_message = [](const std::string& line) { terminal::print("{}\n", line); }});
  if (said) terminal::write_result(stdout, "\n");
  return 0;
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  auto* command = app.add_subcommand("generate", "Continue a prompt with a trained model");
  auto o = std::make_shared<command::GenerateOptions>();
  command
      ->add_option("--model,-m", o->model,
                   "Hugging Face directory, or a run with checkpoints; its generation_config.json "
                   "sets defaults")
      ->required();
  command->add_option_function<std::string>(
      "--prompt,-p", [o](const std::string& text) { o->prompt = text; },
      "text to continue, or to translate or summarize");
  command->add_option("--prompts", o->prompts, "a file of prompts, one a line; prints JSON lines");
  command->add_option("--tokenizer", o->tokenizer, "where it is not in the model's directory");
  // Fields of generation_config.json, whose values are the defaults.
  const auto number = [&](const char* names, const char* field, const char* help, auto zero) {
    return command->add_option_function<decltype(zero)>(
        names, [o, field](const auto& value) { o->fields[field] = value; }, help);
  };
  constexpr std::int64_t kWhole = 0;
  constexpr double kAny = 0;
  number("--max-new-tokens,--max_new_tokens", "max_new_tokens", "at most so many", kWhole)
      ->check(at_least(0))
      ->default_str("20");
  number("--temperature", "temperature", "0: always the likeliest token", kAny)
      ->check(at_least(0))
      ->default_str("1");
  number("--top-k,--top_k", "top_k", "of the likeliest tokens; 0: all", kWhole)
      ->check(at_least(0))
      ->default_str("50");
  number("--top-p,--top_p", "top_p", "of the probability; 1: all", kAny)
      ->check(from_to(0.0, 1.0))
      ->default_str("1");
  number("--min-p,--min_p", "min_p", "least probability, relative to the likeliest token's", kAny)
      ->check(from_to(0.0, 1.0));
  number("--num-beams,--num_beams", "num_beams", "of beam search; 1: none", kWhole)
      ->check(at_least(1))
      ->default_str("1");
  number("--length-penalty,--length_penalty", "length_penalty", "above 0: longer beams win", kAny)
      ->default_str("1");
  command
      ->add_option_function<std::string>(
          "--early-stopping,--early_stopping",
          [o](const std::string& text) {
            o->fields["early_stopping"] =
                text == "never" ? nlohmann::json(text) : nlohmann::json(text == "true");
          },
          "of beam search")
      ->check(CLI::IsMember({"true", "false", "never"}))
      ->default_str("false");
  number("--repetition-penalty,--repetition_penalty", "repetition_penalty",
         "of tokens in the text; 1: none", kAny)
      ->default_str("1");
  number("--no-repeat-ngram-size,--no_repeat_ngram_size", "no_repeat_ngram_size",
         "no so many tokens in a row occur twice; 0: any", kWhole)
      ->check(at_least(0))
      ->default_str("0");
  command
      ->add_option_function<std::vector<std::string>>(
          "--stop", [o](const auto& texts) { o->fields["stop_strings"] = texts; },
          "a text that ends the output; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--batch-size,--batch_size", o->batch_size, "of a file's prompts")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("--seed", o->seed, "of the sampling")->capture_default_str();
  command->add_flag("--greedy", o->greedy, "always the likeliest token");
  command->add_flag("--bf16", o->bf16, "compute in bfloat16");
  command->add_flag("--no-stop", o->no_stop, "go on after the end-of-text token");
  command->add_option("--logits-out", o->logits_out,
                      "write input_ids and the logits of every position (safetensors)");
  command->add_option("--input-ids", o->input_ids,
                      "take input_ids [B, T] from this safetensors file instead of a prompt");
  rarely(*command, {"--tokenizer", "--top-k", "--min-p", "--length-penalty", "--early-stopping",
                    "--repetition-penalty", "--no-repeat-ngram-size", "--stop", "--batch-size",
                    "--bf16", "--no-stop", "--logits-out", "--input-ids"});
  command->callback([&action, o] { action = [o] { return generate(*o); }; });
}

}  // namespace shoal::app
