#include "shoal/train/tasks/classification/glue.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/train/data/json_records.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// A column's names in the different files.
struct TaskFiles {
  std::string_view task, folder;
  Names first, second, label;
};

const TaskFiles& files_of(const GlueTask& task) {
  static const std::vector<TaskFiles> all = {
      {"cola", "CoLA", {"sentence"}, {}, {"is_acceptable", "label"}},
      {"mnli",
       "MNLI",
       {"sentence1", "premise"},
       {"sentence2", "hypothesis"},
       {"gold_label", "label"}},
      {"mrpc",
       "MRPC",
       {"#1 String", "sentence1"},
       {"#2 String", "sentence2"},
       {"Quality", "label"}},
      {"qnli", "QNLI", {"question"}, {"sentence"}, {"label"}},
      {"qqp", "QQP", {"question1"}, {"question2"}, {"is_duplicate", "label"}},
      {"rte", "RTE", {"sentence1"}, {"sentence2"}, {"label"}},
      {"sst2", "SST-2", {"sentence"}, {}, {"label"}},
      {"stsb", "STS-B", {"sentence1"}, {"sentence2"}, {"score", "label"}},
      {"wnli", "WNLI", {"sentence1"}, {"sentence2"}, {"label"}}};
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& row) { return row.task == task.name; });
  SHOAL_ASSERT(found != all.end());
  return *found;
}

std::string first_of(const Names& wanted, const Names& there) {
  for (const std::string& name : wanted)
    if (std::find(there.begin(), there.end(), name) != there.end()) return name;
  return {};
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The layout of a file without a header, by its number of fields.
std::optional<GlueLayout> headerless(const TaskFiles& files, std::size_t fields) {
  if (files.task == "cola" && fields == 4)
    return GlueLayout{{"sentence", "", "is_acceptable"},
                      {"source", "is_acceptable", "author's mark", "sentence"}};
  GlueLayout layout{{files.first[0], files.second.empty() ? "" : files.second[0], files.label[0]},
                    {}};
  layout.header.push_back(layout.columns.first);
  if (!layout.columns.second.empty()) layout.header.push_back(layout.columns.second);
  layout.header.push_back(layout.columns.label);
  if (layout.header.size() != fields) return std::nullopt;
  return layout;
}

Names stems(const GlueTask& task, GlueSplit split) {
  if (split == GlueSplit::train) return {"train"};
  const std::string stem = split == GlueSplit::validation ? "dev" : "test";
  if (task.name != "mnli") return {stem};
  return {stem + "_matched", stem + "_mismatched"};
}

}  // namespace

std::vector<GlueFile> glue_files(const std::string& directory, const GlueTask& task,
                                 GlueSplit split) {
  const TaskFiles& files = files_of(task);
  std::vector<GlueFile> result;
  std::string looked_for;
  for (const std::string& stem : stems(task, split)) {
    Names candidates = {stem + ".tsv", stem + ".jsonl", stem + ".csv"};
    std::string part = stem;
    if (stem.starts_with("dev")) {
      part = "validation" + stem.substr(3);
      candidates.insert(candidates.end(), {part + ".tsv", part + ".jsonl", part + ".csv"});
    }
    if (task.name == "mrpc" && stem != "dev")
      candidates.push_back("msr_paraphrase_" + stem + ".txt");
    for (const fs::path& folder : {fs::path(directory), fs::path(directory) / files.folder}) {
      for (const std::string& name : candidates) {
        const bool is_new = result.empty() || result.back().part != part;
        if (is_new && is_regular_file(folder / name))
          result.push_back({part, (folder / name).string()});
      }
    }
    looked_for = joined(candidates);
    if (result.empty() || result.back().part != part)
      throw_error(ErrorCode::not_found, "{}: no {} of GLUE's {}; looked for {}, and in {}/",
                  directory, part, task.name, looked_for, files.folder);
  }
  return result;
}

GlueLayout glue_layout(const std::string& path, const GlueTask& task, const Names& there) {
  const TaskFiles& files = files_of(task);
  GlueLayout layout{
      {first_of(files.first, there), first_of(files.second, there), first_of(files.label, there)},
      {}};
  const bool has_texts =
      !layout.columns.first.empty() && (files.second.empty() || !layout.columns.second.empty());
  if (has_texts) return layout;
  const bool is_json = is_json_path(path);
  if (const auto found = headerless(files, there.size()); found && !is_json) return *found;
  Names wanted = {files.first[0]};
  if (!files.second.empty()) wanted.push_back(files.second[0]);
  wanted.push_back(files.label[0]);
  throw_error(ErrorCode::not_found, "{}: GLUE's {} has the columns {}; {} {} fields ({})", path,
              task.name, joined(wanted), is_json ? "its records have" : "the first line has",
              there.size(), shortened(joined(there), 120));
}

std::shared_ptr<const TextClassificationDataset> open_glue(
    const std::string& path, const GlueTask& task, std::shared_ptr<const Tokenizer> tokenizer,
    const GlueOptions& options) {
  GlueLayout layout;
  std::shared_ptr<RecordFile> rows;
  if (is_json_path(path)) {
    rows = std::make_shared<RecordFile>(path, RecordOptions{.bad = options.bad});
    rows->need_rows();
    layout = glue_layout(path, task, rows->columns());
  } else {
    layout = glue_layout(path, task, RecordFile::first_fields(path));
    rows = std::make_shared<RecordFile>(
        path, RecordOptions{.columns = layout.header, .bad = options.bad});
  }
  if (layout.columns.label.empty() && options.needs_labels)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: no column has the labels of GLUE's {}", path, task.name),
                "use it to predict, not to train or evaluate");
  TextClassificationOptions classes{.columns = layout.columns,
                                    .may_lack_labels = !options.needs_labels,
                                    .max_seq_length = options.max_seq_length,
                                    .bad = options.bad};
  if (task.labels.empty())
    classes.most = 5;
  else
    classes.labels = LabelSet({task.labels.begin(), task.labels.end()});
  if (!options.model_labels.empty() && !task.labels.empty())
    if (auto ids = classes.labels.ids_in(options.model_labels)) classes.model_ids = std::move(*ids);
  return std::make_shared<TextClassificationDataset>(std::move(rows), std::move(tokenizer),
                                                     classes);
}

}  // namespace shoal
