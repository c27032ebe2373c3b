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
  std::vector<std::string_view> labels;  // by class; empty: a score from 0 to 5 (regression)
  std::vector<std::string_view> metrics;
};

const std::vector<GlueTask>& glue_tasks();
// Accepts "sst-2" and "sts-b" too, in any case. Throws not_found with the nearest name.
const GlueTask& glue_task(std::string_view name);

// Named as in Hugging Face's `glue` metric (accuracy, f1, matthews_correlation, pearson,
// spearmanr). If there are two, combined_score is their mean. Classes are whole numbers.
std::map<std::string, double> glue_metrics(const GlueTask& task,
                                           std::span<const double> predictions,
                                           std::span<const double> labels);

}  // namespace shoal
