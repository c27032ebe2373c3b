#include "shoal/train/report/records.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::report {

void Records::add(const nlohmann::json& record) {
  const double step_before = rows_ > 0 ? column("step").back() : 0;
  const auto put = [this](const std::string& name) -> Column& {
    Column& column = columns_[name];
    column.values.resize(rows_, kAbsent);  // a new column is filled with kAbsent
    return column;
  };
  for (const auto& [name, value] : record.items()) {
    if (value.is_number() || value.is_null()) ++given_;
    if (value.is_number()) {
      const auto number = value.get<double>();
      Column& column = put(name);
      if (!std::isfinite(number)) column.not_finite.push_back(rows_);
      column.values.push_back(std::isfinite(number) ? number : kAbsent);
    } else if (value.is_null()) {
      Column& column = put(name);
      column.not_finite.push_back(rows_);
      column.values.push_back(kAbsent);
    }
  }
  ++rows_;
  check_filled();
  Column& steps = columns_["step"];
  steps.values.resize(rows_, kAbsent);
  if (std::isnan(steps.values.back())) steps.values.back() = step_before;
  for (auto& [name, column] : columns_) column.values.resize(rows_, kAbsent);
}

void Records::check_filled() const {
  // Names that occur in few records each would make the table far larger than its file.
  constexpr std::size_t kUsual = 8, kAtLeast = std::size_t{1} << 20;
  if (rows_ * columns_.size() > kUsual * given_ + kAtLeast)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("{} records have {} names of numbers, of which most stand in few",
                            rows_, columns_.size()),
                "this is no log of shoal train");
  constexpr std::size_t kMostNames = 2000;  // each becomes a plot
  if (columns_.size() > kMostNames)
    throw Error(ErrorCode::corrupt_data,
                fmt::format("records have more than {} names of numbers", kMostNames),
                "this is no log of shoal train");
}

bool Records::join(const nlohmann::json& record) {
  if (rows_ == 0) return false;
  const auto is_new = [this](const auto& item) {
    const nlohmann::json& value = item.value();
    if (item.key() == "step" || item.key() == "epoch" || !(value.is_number() || value.is_null()))
      return true;
    const auto found = columns_.find(item.key());
    if (found == columns_.end()) return true;
    const auto& [values, not_finite] = found->second;
    return std::isnan(values.back()) && (not_finite.empty() || not_finite.back() + 1 != rows_);
  };
  if (!std::ranges::all_of(record.items(), is_new)) return false;
  // Visits only the record's columns, because a step may have any number of records.
  for (const auto& [name, value] : record.items()) {
    if (!value.is_number() && !value.is_null()) continue;
    ++given_;
    auto& [values, not_finite] = columns_[name];
    values.resize(rows_, kAbsent);
    if (!std::isnan(values.back())) continue;  // keeps the existing step and epoch
    const double number = value.is_number() ? value.get<double>() : kAbsent;
    if (std::isfinite(number))
      values.back() = number;
    else if (not_finite.empty() || not_finite.back() + 1 != rows_)
      not_finite.push_back(rows_ - 1);
  }
  check_filled();
  return true;
}

std::int64_t Records::drop_from(double step) {
  const auto steps = column("step");
  std::size_t keep = rows_;
  while (keep > 0 && steps[keep - 1] >= step) --keep;
  const auto dropped = static_cast<std::int64_t>(rows_ - keep);
  if (dropped == 0) return 0;
  rows_ = keep;
  for (auto& [name, column] : columns_) {
    column.values.resize(rows_);
    auto& rows = column.not_finite;  // in ascending order
    while (!rows.empty() && rows.back() >= keep) rows.pop_back();
  }
  return dropped;
}

std::vector<std::string> Records::names() const {
  std::vector<std::string> all;
  for (const auto& [name, column] : columns_) all.push_back(name);
  return all;
}

std::span<const double> Records::column(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? std::span<const double>() : found->second.values;
}

std::span<const std::size_t> Records::not_finite(std::string_view name) const {
  const auto found = columns_.find(name);
  return found == columns_.end() ? std::span<const std::size_t>() : found->second.not_finite;
}

std::optional<double> Records::first(std::string_view name) const {
  for (const double value : column(name))
    if (std::isfinite(value)) return value;
  return std::nullopt;
}

std::optional<double> Records::last(std::string_view name) const {
  const auto values = column(name);
  for (std::size_t i = values.size(); i-- > 0;)
    if (std::isfinite(values[i])) return values[i];
  return std::nullopt;
}

std::optional<double> Records::median(std::string_view name) const {
  const auto values = column(name);
  return report::median({values.begin(), values.end()});
}

std::optional<std::size_t> Records::row_of_least(std::string_view name) const {
  const auto values = column(name);
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && (!best || values[i] < values[*best])) best = i;
  return best;
}

std::optional<std::size_t> Records::row_of_most(std::string_view name) const {
  const auto values = column(name);
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && (!best || values[i] > values[*best])) best = i;
  return best;
}

std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  const double upper = *middle;
  if (values.size() % 2 == 1) return upper;
  return (upper + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace shoal::report
