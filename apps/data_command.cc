// shoal data prepare
#include <cstdio>
#include <memory>

#include "command_line.h"
#include "commands.h"
#include "sources.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/train/data/prepare.h"
#include "shoal/train/data/token_shards.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::app {
namespace {

using Document = PrepareOptions::Document;
using Split = PrepareOptions::Split;

struct PrepareArguments {
  PrepareOptions prepare;
  std::string tokenizer;
  std::string document = "line", split = "last";
};

// Expands directories, patterns and @FILE to the text files they name. A plain file name is kept,
// with any extension.
void expand(std::vector<std::string>& names, const SourceRegistry& sources) {
  std::vector<std::string> files;
  for (const std::string& name : names) {
    std::vector<std::string> found = {name};
    if (name.starts_with('@') || !sources.is_one(name))
      found = expand_shards({name}, sources, {".txt", ".jsonl", ".json"});
    files.insert(files.end(), found.begin(), found.end());
  }
  names = std::move(files);
}

int prepare(PrepareArguments options) {
  add_sources(options.prepare.sources);
  expand(options.prepare.inputs, options.prepare.sources);
  expand(options.prepare.validation_inputs, options.prepare.sources);
  const auto tokenizer = load_tokenizer(options.tokenizer);
  options.prepare.document = options.document == "line"        ? Document::line
                             : options.document == "paragraph" ? Document::paragraph
                                                               : Document::file;
  options.prepare.split = options.split == "first"  ? Split::first
                          : options.split == "last" ? Split::last
                                                    : Split::scattered;
  if (options.prepare.threads <= 0) options.prepare.threads = available_cores();
  PreparedData data;
  {
    ProgressBar bar(stderr, "B");
    options.prepare.progress = [&](std::int64_t done, std::int64_t total) {
      if (total > 0) bar.update(done, total, "tokenizing");
    };
    data = prepare_data(*tokenizer, options.prepare);
  }
  const auto say = [](const char* name, const PreparedSplit& split) {
    if (!split.path.empty())
      terminal::print("{}: {} ({} documents, {} tokens)\n", name, split.path,
                      format_count(split.documents), format_count(split.tokens));
  };
  say("train", data.train);
  say("validation", data.validation);
  if (data.reused)
    terminal::print("prepared before from the same text and tokenizer\n");
  else
    terminal::print("prepared in {:.1f} s\n", data.seconds);
  return 0;
}

}  // namespace

void add_data(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("data", "Prepare data");
  group->require_subcommand(1);
  auto* command = group->add_subcommand("prepare", "Text to token files, once");
  auto o = std::make_shared<PrepareArguments>();
  o->prepare.threads = 0;
  command
      ->add_option("inputs", o->prepare.inputs,
                   ".txt, .jsonl or .json files, directories, patterns, @FILE with a name a line, "
                   "here or in s3://")
      ->required();
  command->add_option("--tokenizer,-t", o->tokenizer, "directory or tokenizer.json")->required();
  command->add_option("--output,-o", o->prepare.output_directory, "directory for token files")
      ->required();
  command->add_option("--validation", o->prepare.validation_inputs,
                      "files of the validation set, likewise");
  command
      ->add_option("--validation-fraction", o->prepare.validation_fraction,
                   "share of the documents for validation, where no files are given")
      ->capture_default_str();
  command->add_option("--split", o->split, "which documents that share is")
      ->check(CLI::IsMember({"first", "last", "scattered"}))
      ->capture_default_str();
  command->add_option("--document", o->document, "what a document of a .txt is")
      ->check(CLI::IsMember({"line", "paragraph", "file"}))
      ->capture_default_str();
  command->add_option("--text-field", o->prepare.text_field, "of .jsonl and .json records")
      ->capture_default_str();
  command
      ->add_option("--add-special-tokens,--add_special_tokens", o->prepare.add_special_tokens,
                   "around each document what the tokenizer puts around a text: Llama's <s>, "
                   "BERT's [CLS] and [SEP], of GPT-2 nothing")
      ->capture_default_str();
  command->add_flag("--append-eos", o->prepare.append_eos,
                    "end documents with the eos token, where they do not yet");
  command->add_flag("--repair-utf8", o->prepare.repair_utf8, "replace ill-formed bytes by U+FFFD");
  command->add_flag("--overwrite", o->prepare.overwrite_cache, "although nothing has changed");
  command->add_option("--threads", o->prepare.threads, "0: all cores")->capture_default_str();
  rarely(*command, {"--split", "--document", "--text-field", "--add-special-tokens", "--append-eos",
                    "--repair-utf8", "--overwrite", "--threads"});
  command->callback([&action, o] { action = [o] { return prepare(*o); }; });
}

}  // namespace shoal::app
