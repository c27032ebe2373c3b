// Metrics of classification and regression, as scikit-learn and SciPy define them.
//
// All functions throw invalid_argument unless there are as many predictions as labels, and return
// NaN if there are none.
#pragma once

#include <cstdint>
#include <span>

namespace shoal {

using Classes = std::span<const std::int64_t>;

double accuracy(Classes predictions, Classes labels);
// F1 of class 1 against the rest: 2 TP / (2 TP + FP + FN); 0 if class 1 is neither predicted nor
// labelled.
double f1_score(Classes predictions, Classes labels);
// For any number of classes (Gorodkin 2004); 0 if all predictions or all labels are equal.
double matthews_correlation(Classes predictions, Classes labels);

// NaN if one side is constant or has fewer than two values.
double pearson_correlation(std::span<const double> a, std::span<const double> b);
// Pearson's correlation of the ranks; equal values share the mean of their ranks.
double spearman_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace shoal
