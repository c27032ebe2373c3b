// Metrics of classifiers and of regression, as scikit-learn and SciPy define them.
//
// All take as many predictions as labels (else invalid_argument), and of none return NaN.
#pragma once

#include <cstdint>
#include <span>

namespace shoal {

using Classes = std::span<const std::int64_t>;

double accuracy(Classes predictions, Classes labels);
// Of class 1 against the rest: 2 TP / (2 TP + FP + FN); 0 where nobody predicts it and nothing is.
double f1_score(Classes predictions, Classes labels);
// For any number of classes (Gorodkin 2004); 0 where predictions or labels are all alike.
double matthews_correlation(Classes predictions, Classes labels);

// NaN where one side is constant or there are fewer than two.
double pearson_correlation(std::span<const double> a, std::span<const double> b);
// Of the ranks; equal values share the mean of theirs.
double spearman_correlation(std::span<const double> a, std::span<const double> b);

}  // namespace shoal
