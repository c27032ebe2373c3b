// The nine tasks of GLUE (Wang et al. 2018): their classes and metrics, under Hugging Face's names.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shoal {

struct GlueTask {
  std::string_view name;                 // cola, mnli, mrpc, qnli, qqp, rte, sst2, stsb, wnli
  std::vector<std::string_view> labels;  // by class; none: a score from 0 to 5 (regression)
  std::vector<std::string_view> metrics;
};

const std::vector<GlueTask>& glue_tasks();
// not_found names the nearest. "sst-2" and "sts-b" are accepted too, in any case.
const GlueTask& glue_task(std::string_view name);

// By the names that Hugging Face's `glue` metric has (accuracy, f1, matthews_correlation, pearson,
// spearmanr); with combined_score, their mean, where there are two. Classes are whole numbers.
std::map<std::string, double> glue_metrics(const GlueTask& task,
                                           std::span<const double> predictions,
                                           std::span<const double> labels);

}  // namespace shoal
