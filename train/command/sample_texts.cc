#include "shoal/train/command/sample_texts.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/command/generated_texts.h"
#include "shoal/train/command/generation_choice.h"

namespace shoal::command {
namespace {

constexpr std::int64_t kUsualTexts = 4;
constexpr std::int64_t kPromptTokens = 16;  // of a text of the validation set
constexpr double kTemperature = 0.8;
constexpr std::int64_t kTopK = 50;

bool continues_texts(const TrainingArguments& a) {
  return !a.sample_prompts.empty() || a.sample_texts.value_or(0) > 0;
}

// The beginning of a block as prompt, and the tokens that follow in the same document.
SampleTexts::Prompt beginning_of(const Sample& block, const Tokenizer& tokenizer,
                                 std::int64_t new_tokens) {
  const std::vector<TokenId>& ids = block.input_ids;
  const std::int64_t whole =
      block.sequences.size() > 1 ? block.sequences[1] : static_cast<std::int64_t>(ids.size());
  const auto cut = std::clamp<std::int64_t>(whole / 2, 1, kPromptTokens);
  const auto end = std::clamp(cut + new_tokens, cut, std::max(whole, cut));
  const std::vector<TokenId> prompt(ids.begin(), ids.begin() + cut);
  const std::vector<TokenId> rest(ids.begin() + cut, ids.begin() + end);
  return {.text = text_after(tokenizer, {}, prompt),
          .ids = prompt,
          .reference = text_after(tokenizer, prompt, rest)};
}

}  // namespace

void check_sample_options(const RunArguments& a, TaskKind kind) {
  const TrainingArguments& t = a.training;
  const bool continues = continues_texts(t);
  const bool held_out = !a.data.validation_file.empty() || splits_train_file(a.data);
  if (learns_pairs(kind)) {
    SHOAL_CHECK(t.sample_texts.value_or(0) == 0 || generates_texts(a, kind),
                "sample_texts is {}, but predict_with_generate is false: evaluation generates no "
                "texts",
                *t.sample_texts);
    return;
  }
  SHOAL_CHECK(continues || t.sample_max_new_tokens == TrainingArguments{}.sample_max_new_tokens,
              "sample_max_new_tokens is {}, but there are neither sample_prompts nor sample_texts",
              t.sample_max_new_tokens);
  if (!continues || !t.do_train) return;
  SHOAL_CHECK(t.sample_texts.value_or(0) == 0 || held_out,
              "sample_texts continues the beginnings of validation texts, but there are none; give "
              "validation_file, validation_split_percentage, or sample_prompts");
  SHOAL_CHECK(
      t.eval_strategy != Interval::no || t.save_strategy != Interval::no || (held_out && t.do_eval),
      "sample_prompts are continued at each evaluation or checkpoint, but the run has "
      "neither; set eval_strategy or save_strategy");
}

SampleTexts sample_prompts(const RunArguments& a, const RunSetup& setup) {
  const TrainingArguments& t = a.training;
  SampleTexts texts;
  const bool continues = setup.kind == TaskKind::causal_lm && continues_texts(t);
  if (!t.do_train || (!continues && !setup.generation)) return texts;
  SHOAL_CHECK(setup.tokenizer != nullptr,
              "sample_prompts and sample_texts need a tokenizer; give tokenizer_name");
  texts.text_of = [tokenizer = setup.tokenizer](std::span<const TokenId> before,
                                                std::span<const TokenId> ids) {
    return text_after(*tokenizer, before, ids);
  };
  if (!continues) return texts;
  const std::int64_t positions = setup.task->positions();
  std::int64_t longest = std::min(kPromptTokens, positions - 1);
  for (const std::string& prompt : t.sample_prompts) {
    std::vector<TokenId> ids = prompt_ids(*setup.tokenizer, prompt, false);
    SHOAL_CHECK(!ids.empty(), "one of sample_prompts is empty: a model continues at least a token");
    SHOAL_CHECK(std::ssize(ids) < positions,
                "of sample_prompts, '{}' has {} tokens, which fill all {} positions of the model",
                shortened(prompt), ids.size(), positions);
    longest = std::max(longest, std::ssize(ids));
    texts.prompts.push_back({.text = prompt, .ids = std::move(ids)});
  }
  texts.options = {.max_new_tokens = std::min(t.sample_max_new_tokens, positions - longest),
                   .do_sample = true,
                   .temperature = kTemperature,
                   .top_k = kTopK,
                   .seed = static_cast<std::uint64_t>(t.seed)};
  if (const auto end = setup.tokenizer->roles().eos) texts.options.stop_tokens = {*end};
  return texts;
}

SampleTexts with_texts_of_set(const RunArguments& a, const RunSetup& setup) {
  SampleTexts texts = setup.sample_texts;
  if (!texts.text_of || !setup.eval_dataset) return texts;
  const std::int64_t usual = setup.generation ? kUsualTexts : 0;
  const std::int64_t count =
      std::min(a.training.sample_texts.value_or(usual), setup.eval_dataset->size());
  if (setup.generation)
    texts.first_of_set = count;
  else
    for (std::int64_t i = 0; i < count; ++i)
      texts.prompts.push_back(
          beginning_of(setup.eval_dataset->get(i), *setup.tokenizer, texts.options.max_new_tokens));
  return texts;
}

}  // namespace shoal::command
