// shoal generate: continues a prompt, token by token.
#include <cstdio>
#include <memory>
#include <string>

#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>

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
  command->add_option("--model,-m", o->model, "Hugging Face directory, or a run with checkpoints")
      ->required();
  command->add_option_function<std::string>(
      "--prompt,-p", [o](const std::string& text) { o->prompt = text; }, "text to continue");
  command->add_option("--tokenizer", o->tokenizer, "where it is not in the model's directory");
  command
      ->add_option("--max-new-tokens,--max_new_tokens", o->generation.max_new_tokens,
                   "at most so many")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--temperature", o->generation.temperature, "0: always the likeliest token")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--top-k,--top_k", o->generation.top_k, "of the likeliest tokens; 0: all")
      ->check(at_least(0))
      ->capture_default_str();
  command->add_option("--top-p,--top_p", o->generation.top_p, "of the probability; 1: all")
      ->check(from_to(0.0, 1.0))
      ->capture_default_str();
  command->add_option("--seed", o->generation.seed, "of the sampling")->capture_default_str();
  command->add_flag("--greedy", o->greedy, "always the likeliest token");
  command->add_flag("--bf16", o->bf16, "compute in bfloat16");
  command->add_flag("--no-stop", o->no_stop, "go on after the end-of-text token");
  command->add_option("--logits-out", o->logits_out,
                      "write input_ids and the logits of every position (safetensors)");
  command->add_option("--input-ids", o->input_ids,
                      "take input_ids [B, T] from this safetensors file instead of a prompt");
  rarely(*command,
         {"--tokenizer", "--top-k", "--bf16", "--no-stop", "--logits-out", "--input-ids"});
  command->callback([&action, o] { action = [o] { return generate(*o); }; });
}

}  // namespace shoal::app
