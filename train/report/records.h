// The numbers of a run's metrics.jsonl: records of one kind as a table, a row a record, a column a
// name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::report {

inline constexpr double kAbsent = std::numeric_limits<double>::quiet_NaN();

class Records {
 public:
  // Numbers, and null, which is how a NaN or an infinity is written; other fields are passed over.
  // A record without "step" has the one before. corrupt_data where most places would stay empty.
  void add(const nlohmann::json& record);
  // Into the last row: what else was measured at its step. False, and nothing is done, where the
  // row has one of these numbers already.
  bool join(const nlohmann::json& record);
  // Rows of this step and later ones go: a run that was continued has them again. How many.
  std::int64_t drop_from(double step);

  std::size_t rows() const { return rows_; }
  std::vector<std::string> names() const;
  bool has(std::string_view name) const { return columns_.contains(name); }
  // [rows()]; NaN where the record lacks the name or has null there. Empty: no record has it.
  std::span<const double> column(std::string_view name) const;
  std::span<const double> steps() const { return column("step"); }
  // Rows whose record has the name, but with null.
  std::span<const std::size_t> not_finite(std::string_view name) const;

  std::optional<double> first(std::string_view name) const;  // finite one
  std::optional<double> last(std::string_view name) const;
  std::optional<double> median(std::string_view name) const;
  std::optional<std::size_t> row_of_least(std::string_view name) const;
  std::optional<std::size_t> row_of_most(std::string_view name) const;

 private:
  struct Column {
    std::vector<double> values;
    std::vector<std::size_t> not_finite;
  };
  std::map<std::string, Column, std::less<>> columns_;
  std::size_t rows_ = 0, given_ = 0;  // given_: numbers in all records that were added
};

std::optional<double> median(std::vector<double> values);  // of the finite ones

}  // namespace shoal::report
