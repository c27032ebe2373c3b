// Texts that the model generates while it trains.
#include <algorithm>
#include <utility>

#include "shoal/nn/models/generate.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/train/trainer/trainer_impl.h"

namespace shoal {
namespace {

constexpr std::size_t kBytesLogged = 160;

std::vector<std::int32_t> targets_of(const SamplePrediction& sample) {
  std::vector<std::int32_t> ids = sample.labels;
  std::erase_if(ids, [](std::int32_t id) { return id < 0; });
  return ids;
}

nlohmann::ordered_json line_of(std::size_t index, const char* from, const std::string& source,
                               const std::string& reference, const std::string& text) {
  nlohmann::ordered_json line = {{"index", index}, {from, source}};
  if (!reference.empty()) line["reference"] = reference;
  line["text"] = text;
  return line;
}

}  // namespace

void Trainer::Impl::check_samples() const {
  const SampleTexts& wanted = parts.samples;
  SHOAL_CHECK(wanted.prompts.empty() || parts.task->causal_lm() != nullptr,
              "{} continues no prompts", parts.task->describe());
  SHOAL_CHECK(wanted.first_of_set == 0 || parts.generation,
              "TrainerParts::samples asks for texts of the validation set, but evaluation "
              "generates none; set TrainerParts::generation");
  SHOAL_CHECK(!wanted.any() || wanted.text_of, "TrainerParts::samples lacks text_of");
}

void Trainer::Impl::open_samples(bool resumed) {
  if (is_main() && !sample_log)
    sample_log = std::make_unique<SampleLog>(
        args.output_dir + "/samples.jsonl",
        !resumed ? -1 : state.global_step - (state.evaluation_due ? 1 : 0));
  weights_are_of_step = true;
  if (!parts.samples.prompts.empty() && !engine->runs_whole_model())
    say("note: samples.jsonl gets no texts: no rank of this layout can run the whole model, as it "
        "divides layers or parameters between ranks");
}

std::vector<nlohmann::ordered_json> Trainer::Impl::sample_lines(const Predictions& predictions) {
  const TraceSpan span(parts.tracer, "step", "samples");
  std::vector<nlohmann::ordered_json> lines;
  const SampleTexts& wanted = parts.samples;
  if (!weights_are_of_step || !wanted.any()) return lines;
  if (!wanted.prompts.empty() && engine->runs_whole_model()) {
    std::vector<std::vector<std::int32_t>> prompts, texts;
    for (const SampleTexts::Prompt& prompt : wanted.prompts) prompts.push_back(prompt.ids);
    // The ranks of the first data index compute the same; the others wait.
    with_memory_for(MemoryUse::evaluation, [&] {
      at_own_pace([&] {
        if (share.index == 0)
          texts = nn::generate_batch(engine->context(), *parts.task->causal_lm(), prompts,
                                     wanted.options);
      });
    });
    for (std::size_t i = 0; is_main() && i < prompts.size(); ++i)
      lines.push_back(line_of(lines.size(), "prompt", wanted.prompts[i].text,
                              wanted.prompts[i].reference, wanted.text_of(prompts[i], texts[i])));
  }
  const auto first = std::min<std::int64_t>(wanted.first_of_set, std::ssize(predictions.samples));
  for (std::int64_t i = 0; is_main() && i < first; ++i) {
    const SamplePrediction& sample = predictions.samples[static_cast<std::size_t>(i)];
    lines.push_back(
        line_of(lines.size(), "source", wanted.text_of({}, parts.eval_dataset->get(i).input_ids),
                wanted.text_of({}, targets_of(sample)), wanted.text_of({}, sample.tokens)));
  }
  return lines;
}

void Trainer::Impl::log_samples(const std::vector<nlohmann::ordered_json>& lines) {
  if (!sample_log || lines.empty()) return;
  check_output_dir();
  sample_log->write(state.global_step, lines);
  const nlohmann::ordered_json& line = lines.front();
  const auto prompt = line.find("prompt");
  say(fmt::format("text of step {}: {}", state.global_step,
                  shortened((prompt == line.end() ? "" : prompt->get<std::string>()) +
                                line.at("text").get<std::string>(),
                            kBytesLogged)));
}

void Trainer::Impl::sample_before_saving() {
  const bool evaluates = parts.eval_dataset && args.eval_strategy != Interval::no;
  if (evaluates || parts.samples.prompts.empty()) return;
  settle();
  log_samples(sample_lines({}));
}

}  // namespace shoal
