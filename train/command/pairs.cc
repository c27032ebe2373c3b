// --task summarization and translation: rows with a source and a target, as in transformers'
// examples run_summarization and run_translation.
#include <algorithm>
#include <array>
#include <utility>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/white_space.h"
#include "shoal/train/command/task_data.h"
#include "shoal/train/data/records.h"
#include "shoal/train/metrics/bleu.h"
#include "shoal/train/metrics/rouge.h"
#include "shoal/train/tasks/sequence_to_sequence/language_template.h"
#include "shoal/train/tasks/sequence_to_sequence/pair_dataset.h"
#include "shoal/train/trainer/log_format.h"

namespace shoal::command {
namespace {

constexpr const char* kTranslation = "translation";
// Columns of well-known sets of texts with summaries, as in run_summarization.
constexpr std::array kKnownColumns = {
    std::pair{"article", "highlights"}, std::pair{"document", "summary"},
    std::pair{"dialogue", "summary"}, std::pair{"text", "summary"},
    std::pair{"description", "abstract"}};

// A percentage as run_summarization and run_translation report it.
double percent(double share) { return round_to(100 * share, 4); }

std::string stripped(const std::string& text) {
  return std::string(
      without_spaces_in_front(without_spaces_behind(text, is_python_space), is_python_space));
}

// What a language is called in rows: "en" of mBART's "en_XX".
std::string key_of(const std::string& language) { return language.substr(0, language.find('_')); }

class PairedTexts final : public TaskData {
 public:
  PairedTexts(TaskKind kind, const PairedTextsOptions& options)
      : translates_(kind == TaskKind::translation),
        data_(options.data),
        tokenizer_(options.tokenizer),
        generates_(options.generates),
        source_template_(tokenizer_->sequence_template()),
        target_template_(source_template_) {
    if (translates_)
      SHOAL_CHECK(
          !data_.source_lang.empty() && !data_.target_lang.empty(),
          "translation needs source_lang and target_lang: the languages' names in the rows, "
          "such as en and de (mBART: en_XX and de_DE)");
    if (options.is_mbart) {
      SHOAL_CHECK(translates_ || !data_.lang.empty(),
                  "mbart needs the language of the texts: give lang, such as en_XX");
      source_template_ = with_language(*tokenizer_, translates_ ? data_.source_lang : data_.lang);
      target_template_ = with_language(*tokenizer_, translates_ ? data_.target_lang : data_.lang);
    }
    if (!target_template_.adds_tokens())
      throw Error(ErrorCode::invalid_argument,
                  "the tokenizer puts no token at the end of a text: a model could not learn where "
                  "a target ends",
                  "give a tokenizer of T5, BART or mBART, or one with a template that adds </s>");
  }

  void name_labels(nlohmann::json& /*config*/) const override {}
  LabelsOf labels_of() const override { return LabelsOf::sequence; }
  std::vector<std::string> metric_names() const override {
    if (!generates_) return {};
    if (translates_) return {"bleu", "chrf", "gen_len"};
    return {"rouge1", "rouge2", "rougeL", "rougeLsum", "gen_len"};
  }

  std::shared_ptr<const Dataset> open(const Opening& opening,
                                      std::vector<std::string>& notices) const override {
    const BadRecords bad = data_.skip_bad_rows ? BadRecords::skip : BadRecords::stop;
    auto file = std::make_shared<RecordFile>(
        opening.path, RecordOptions{.columns = data_.column_names, .bad = bad});
    file->need_rows();
    const std::int64_t longest_target =
        opening.trains ? data_.max_target_length
                       : data_.val_max_target_length.value_or(data_.max_target_length);
    const PairColumns columns = columns_of(*file, opening.may_lack_answers);
    same_.check(opening.path, {columns.within, columns.source, columns.target});
    auto rows =
        std::make_shared<PairDataset>(file, tokenizer_,
                                      PairOptions{.columns = columns,
                                                  .source_prefix = data_.source_prefix,
                                                  .max_source_length = opening.max_length,
                                                  .max_target_length = longest_target,
                                                  .source_template = source_template_,
                                                  .target_template = target_template_,
                                                  .may_lack_targets = opening.may_lack_answers,
                                                  .bad = bad});
    note_skipped(notices, opening.path, "rows", rows->skipped(), rows->first_skipped());
    return first_samples(std::move(rows), opening.limit);
  }

  nlohmann::ordered_json metrics(const Dataset& /*dataset*/,
                                 const Predictions& predictions) const override {
    std::vector<std::string> said, right;
    double tokens = 0;
    for (const SamplePrediction& sample : predictions.samples) {
      const std::optional<std::string> target = target_of(sample);
      if (!target) continue;
      said.push_back(text_of(sample));
      right.push_back(*target);
      tokens += static_cast<double>(sample.tokens.size());
    }
    nlohmann::ordered_json metrics;
    if (said.empty()) return nlohmann::ordered_json::object();
    if (translates_) {
      metrics["bleu"] = round_to(bleu(said, right).score, 4);
      metrics["chrf"] = round_to(chrf(said, right), 4);
    } else {
      const RougeScores scores = rouge(said, right, {.use_stemmer = true});
      metrics["rouge1"] = percent(scores.rouge1);
      metrics["rouge2"] = percent(scores.rouge2);
      metrics["rougeL"] = percent(scores.rouge_l);
      metrics["rougeLsum"] = percent(scores.rouge_lsum);
    }
    metrics["gen_len"] = round_to(tokens / static_cast<double>(said.size()), 4);
    return metrics;
  }

  // A line per row, so the line ends of a text become spaces.
  std::vector<File> predicted(const Dataset& /*dataset*/,
                              const Predictions& predictions) const override {
    std::string lines;
    for (const SamplePrediction& sample : predictions.samples) {
      std::string text = text_of(sample);
      std::ranges::replace(text, '\n', ' ');
      lines += text + "\n";
    }
    return {{"generated_predictions.txt", std::move(lines)}};
  }

  std::vector<nlohmann::ordered_json> answers(const Dataset& /*dataset*/,
                                              const Predictions& predictions) const override {
    std::vector<nlohmann::ordered_json> rows;
    for (const SamplePrediction& sample : predictions.samples)
      rows.push_back({{"index", rows.size()}, {"prediction", text_of(sample)}});
    return rows;
  }

 private:
  PairColumns columns_of(const RecordFile& rows, bool may_lack_targets) const {
    return translates_ ? translation_columns(rows, may_lack_targets)
                       : summary_columns(rows, may_lack_targets);
  }

  static bool has(const RecordFile& rows, const std::string& name) {
    return std::ranges::count(rows.columns(), name) > 0;
  }

  PairColumns translation_columns(const RecordFile& rows, bool may_lack_targets) const {
    PairColumns columns{.source = key_of(data_.source_lang), .target = key_of(data_.target_lang)};
    if (has(rows, kTranslation)) {
      columns.within = kTranslation;
      return columns;
    }
    const std::string remedy = fmt::format(
        "rows are {{\"translation\": {{\"{0}\": \"...\", \"{1}\": \"...\"}}}}, or have columns {0} "
        "and {1} (source_lang, target_lang)",
        columns.source, columns.target);
    rows.need_column(columns.source, remedy);
    if (!may_lack_targets) rows.need_column(columns.target, remedy);
    return columns;
  }

  PairColumns summary_columns(const RecordFile& rows, bool may_lack_targets) const {
    PairColumns columns{.source = data_.text_column, .target = data_.summary_column};
    const std::vector<std::string>& there = rows.columns();
    for (const auto& [text, summary] : kKnownColumns)
      if (has(rows, text) && (may_lack_targets || has(rows, summary))) {
        if (columns.source.empty()) columns.source = text;
        if (columns.target.empty()) columns.target = summary;
      }
    // The fields of a JSON record have no order.
    if (rows.format() != RecordFormat::json && there.size() > 1) {
      if (columns.source.empty()) columns.source = there[0];
      if (columns.target.empty()) columns.target = there[1];
    }
    const std::string remedy = "give text_column and summary_column";
    rows.need_column(columns.source.empty() ? "text" : columns.source, remedy);
    if (columns.target.empty()) columns.target = "summary";
    if (!may_lack_targets) rows.need_column(columns.target, remedy);
    return columns;
  }

  std::string text_of(const SamplePrediction& sample) const {
    return stripped(tokenizer_->decode(sample.tokens));
  }
  // The reference, from its tokens as in transformers' examples; nullopt: the row has none.
  std::optional<std::string> target_of(const SamplePrediction& sample) const {
    std::vector<TokenId> ids = sample.labels;
    std::erase_if(ids, [](TokenId id) { return id < 0; });
    if (ids.empty()) return std::nullopt;
    return stripped(tokenizer_->decode(ids));
  }

  const bool translates_;
  const DataArguments data_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const bool generates_;
  SequenceTemplate source_template_, target_template_;
  SameColumns same_;
};

}  // namespace

std::shared_ptr<const TaskData> paired_texts(TaskKind kind, const PairedTextsOptions& options) {
  return std::make_shared<PairedTexts>(kind, options);
}

}  // namespace shoal::command
