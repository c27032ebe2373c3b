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
#include "shoal/train/data/tokenizer/unigram_trainer.h"
#include "shoal/train/trainer/console.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::app {
namespace {

struct TrainOptions {
  std::vector<std::string> files;
  std::string output, like = "gpt2";
  std::int64_t vocab_size = 8192, min_frequency = 2;
  std::vector<std::string> special_tokens = {"<|endoftext|>"};
  bool add_prefix_space = false;
  int threads = 0;
  std::string only_gpt2;  // an option that was given and that T5's trainer does not have
};

// Shows a bar for each stage of a trainer.
class TrainingBar {
 public:
  void operator()(std::string_view stage, std::int64_t done, std::int64_t total) {
    if (stage != stage_) bar_ = std::make_unique<ProgressBar>(stderr, unit_of(stage));
    stage_ = stage;
    bar_->update(done, total, stage_);
  }
  void close() { bar_.reset(); }

 private:
  static const char* unit_of(std::string_view stage) {
    return stage == "merge" ? "merge" : stage == "fit" ? "piece" : "B";
  }
  std::string stage_ = "count words";
  std::unique_ptr<ProgressBar> bar_ = std::make_unique<ProgressBar>(stderr, "B");
};

template <typename Trainer, typename Options>
int train(const TrainOptions& options, Options trainer_options) {
  const auto began = Clock::now();
  // Created before the work, so that an unwritable directory does not cost minutes.
  make_directories(options.output);
  auto bar = std::make_shared<TrainingBar>();
  trainer_options.vocab_size = options.vocab_size;
  trainer_options.threads = options.threads > 0 ? options.threads : available_cores();
  trainer_options.progress = [bar](std::string_view stage, std::int64_t done, std::int64_t total) {
    (*bar)(stage, done, total);
  };
  Trainer trainer(trainer_options);
  for (const std::string& file : options.files) trainer.add_file(file);
  const auto tokenizer = trainer.train();
  bar->close();
  save_tokenizer(*tokenizer, options.output);
  terminal::print("{} tokens from {} distinct words in {:.1f} s; saved in {}\n",
                  format_count(tokenizer->vocab_size()), format_count(trainer.distinct_words()),
                  seconds_since(began), options.output);
  if (tokenizer->vocab_size() < options.vocab_size)
    terminal::print("fewer than the {} asked for: the text repeats too few parts of words\n",
                    options.vocab_size);
  return 0;
}

int train(const TrainOptions& options) {
  if (options.like == "t5") {
    SHOAL_CHECK(options.only_gpt2.empty(), "{} is only for --like gpt2", options.only_gpt2);
    return train<UnigramTrainer>(options, UnigramTrainerOptions{});
  }
  BpeTrainerOptions bpe;
  bpe.min_frequency = options.min_frequency;
  bpe.special_tokens = options.special_tokens;
  bpe.add_prefix_space = options.add_prefix_space;
  return train<BpeTrainer>(options, std::move(bpe));
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

  auto* trainer = group->add_subcommand("train", "Learn a vocabulary from text");
  auto options = std::make_shared<TrainOptions>();
  trainer->add_option("files", options->files, "UTF-8 text files")->required();
  trainer->add_option("--output,-o", options->output, "directory for the tokenizer")->required();
  trainer
      ->add_option("--like", options->like,
                   "gpt2: byte-level BPE; t5: unigram, with </s> and 100 <extra_id_...>")
      ->check(CLI::IsMember({"gpt2", "t5"}))
      ->capture_default_str();
  trainer->add_option("--vocab-size,--vocab_size", options->vocab_size, "all tokens")
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
  trainer->callback([&action, options, trainer] {
    for (const char* name : {"--min-frequency", "--special-token", "--add-prefix-space"})
      if (trainer->count(name) > 0) options->only_gpt2 = name;
    action = [options] { return train(*options); };
  });

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
