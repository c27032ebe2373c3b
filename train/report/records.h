// The records of one kind in a run's metrics.jsonl as a table: one row per record, one column per
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
  // Adds the record's numbers, and nulls, which stand for NaN or infinity; ignores other fields. A
  // record without "step" gets the previous record's step. Throws corrupt_data if most cells of the
  // table would be empty.
  void add(const nlohmann::json& record);
  // Merges a record of the same step into the last row. If the row already has one of its numbers,
  // changes nothing and returns false.
  bool join(const nlohmann::json& record);
  // Removes the rows of this and later steps, which a resumed run writes again. Returns their
  // number.
  std::int64_t drop_from(double step);

  std::size_t rows() const { return rows_; }
  std::vector<std::string> names() const;
  bool has(std::string_view name) const { return columns_.contains(name); }
  // [rows()]; NaN if the record lacks the name or has null. Empty: no record has it.
  std::span<const double> column(std::string_view name) const;
  std::span<const double> steps() const { return column("step"); }
  // Rows whose record has null under the name.
  std::span<const std::size_t> not_finite(std::string_view name) const;

  std::optional<double> first(std::string_view name) const;  // first finite value
  std::optional<double> last(std::string_view name) const;
  std::optional<double> median(std::string_view name) const;
  std::optional<std::size_t> row_of_least(std::string_view name) const;
  std::optional<std::size_t> row_of_most(std::string_view name) const;

 private:
  struct Column {
    std::vector<double> values;
    std::vector<std::size_t> not_finite;
  };
  // Throws if the table would be far larger than its file because most names occur in few records,
  // or if there are too many names.
  void check_filled() const;

  std::map<std::string, Column, std::less<>> columns_;
  std::size_t rows_ = 0, given_ = 0;  // given_: numbers in all records that were added
};

std::optional<double> median(std::vector<double> values);  // of the finite values

}  // namespace shoal::report
