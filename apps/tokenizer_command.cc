// shoal tokenizer train | encode | decode
#include <charconv>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>
#include <utility>

#include "command_line.h"
#include "commands.h"
#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/data/tokenizer/bpe_trainer.h"
#include "shoal/train/data/tokenizer/load.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::app {
namespace {

struct TrainOptions {
  std::vector<std::string> files;
  std::string output;
  std::int64_t vocab_size = 8192, min_frequency = 2;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  bool add_prefix_space = false;
  int threads = 0;
};

int train(const TrainOptions& options) {
  const auto began = Clock::now();
  // Created before the work, so that an unwritable directory does not cost minutes.
  make_directories(options.output);
  std::string stage_now;
  auto bar = std::make_unique<ProgressBar>(stderr, "B");
  BpeTrainerOptions trainer_options;
  trainer_options.vocab_size = options.vocab_size;
  trainer_options.min_frequency = options.min_frequency;
  trainer_options.special_tokens = options.special_tokens;
  trainer_options.add_prefix_space = options.add_prefix_space;
  trainer_options.threads = options.threads > 0 ? options.threads : available_cores();
  trainer_options.progress = [&](std::string_view stage, std::int64_t done, std::int64_t total) {
    if (stage != stage_now) {
      const bool first =
          std::exchange(stage_now, stage).empty();  // the first stage uses the bar created above
      if (!first) bar = std::make_unique<ProgressBar>(stderr, stage == "merge" ? "merge" : "B");
    }
    bar->update(done, total, stage_now);
  };
  BpeTrainer trainer(trainer_options);
  for (const std::string& file : options.files) trainer.add_file(file);
  const auto tokenizer = trainer.train();
  bar.reset();
  save_tokenizer(*tokenizer, options.output);
  terminal::print("{} tokens from {} distinct words in {:.1f} s; saved in {}\n",
                  format_count(tokenizer->vocab_size()), format_count(trainer.distinct_words()),
                  seconds_since(began), options.output);
  if (tokenizer->vocab_size() < options.vocab_size)
    terminal::print("fewer than the {} asked for: no pair is left that occurs {} times\n",
                    options.vocab_size, options.min_frequency);
  return 0;
}

struct CodeOptions {
  std::string tokenizer, file;
  std::vector<std::string> words;
  bool skip_special = false;
};

// The input: the words of the command line, a file, or standard input.
std::string input_text(const CodeOptions& options) {
  SHOAL_CHECK(options.file.empty() || options.words.empty(),
              "--file {} and '{}' are both given; choose one", options.file,
              fmt::join(options.words, " "));
  if (!options.file.empty() && options.file != "-") return read_text_file(options.file);
  if (!options.words.empty()) return fmt::format("{}", fmt::join(options.words, " "));
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

int encode(const CodeOptions& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer);
  std::vector<TokenId> ids;
  tokenizer->append_ids(input_text(options), ids);
  terminal::print("{}\n", fmt::join(ids, " "));
  return 0;
}

int decode(const CodeOptions& options) {
  const auto tokenizer = load_tokenizer(options.tokenizer);
  std::istringstream words(input_text(options));
  std::vector<TokenId> ids;
  std::string word;
  while (words >> word) {
    TokenId id = -1;
    const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    SHOAL_CHECK(problem == std::errc() && end == word.data() + word.size() && id >= 0 &&
                    id <= tokenizer->max_id(),
                "'{}' is not a token id of {}: 0 to {}", word, options.tokenizer,
                tokenizer->max_id());
    ids.push_back(id);
  }
  terminal::write_result(stdout, tokenizer->decode(ids, options.skip_special) + '\n');
  return 0;
}

}  // namespace

void add_tokenizer(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("tokenizer", "Train a tokenizer, or use one");
  group->require_subcommand(1);

  auto* trainer = group->add_subcommand("train", "Learn a byte-level BPE vocabulary from text");
  auto options = std::make_shared<TrainOptions>();
  trainer->add_option("files", options->files, "UTF-8 text files")->required();
  trainer->add_option("--output,-o", options->output, "directory for the tokenizer")->required();
  trainer->add_option("--vocab-size,--vocab_size", options->vocab_size, "tokens, bytes included")
      ->capture_default_str();
  trainer
      ->add_option("--min-frequency,--min_frequency", options->min_frequency,
                   "merge pairs seen this often")
      ->capture_default_str();
  trainer->add_option("--special-token", options->special_tokens, "kept whole; may be repeated")
      ->capture_default_str();
  trainer->add_flag("--add-prefix-space", options->add_prefix_space, "as RoBERTa may");
  trainer->add_option("--threads", options->threads, "0: all cores")->capture_default_str();
  rarely(*trainer, {"--min-frequency", "--special-token", "--add-prefix-space", "--threads"});
  trainer->callback([&action, options] { action = [options] { return train(*options); }; });

  for (const bool encoding : {true, false}) {
    auto code = std::make_shared<CodeOptions>();
    auto* command = encoding ? group->add_subcommand("encode", "Text to token ids")
                             : group->add_subcommand("decode", "Token ids to text");
    command
        ->add_option("--tokenizer,-t", code->tokenizer,
                     "directory, tokenizer.json, vocab.txt or *.model")
        ->required();
    command->add_option("--file,-f", code->file, "read this instead; -: standard input");
    command->add_option("input", code->words, "what to convert; none: standard input");
    if (!encoding) command->add_flag("--skip-special", code->skip_special, "leave them out");
    command->callback([&action, code, encoding] {
      action = [code, encoding] { return encoding ? encode(*code) : decode(*code); };
    });
  }
}

}  // namespace shoal::app
