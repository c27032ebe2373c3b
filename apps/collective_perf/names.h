// Names of operations, dtypes and reductions on the command line. Of several names of a value, the
// first is printed.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "shoal/collectives/transport/operation.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/tensor/dtype.h"

namespace shoal::perf {

template <typename Value>
using Name = std::pair<std::string_view, Value>;

inline constexpr auto kOperations = [] {
  using enum collectives::Operation;
  return std::to_array<Name<collectives::Operation>>(
      {{"all_reduce", all_reduce},
       {"reduce_scatter", reduce_scatter},
       {"all_gather", all_gather},
       {"broadcast", broadcast},
       {"reduce", reduce},
       {"gather", gather},
       {"scatter", scatter},
       {"all_to_all", all_to_all},
       {"barrier", barrier},
       {"send_recv", send},
       {"alltoall", all_to_all},
       {"sendrecv", send}});  // the last two: nccl-tests' names
}();

// In nccl-tests' order, which -d all follows; then Shoal's names.
inline constexpr auto kDTypes = std::to_array<Name<DType>>({{"int8", DType::i8},
                                                            {"uint8", DType::u8},
                                                            {"int32", DType::i32},
                                                            {"int64", DType::i64},
                                                            {"half", DType::f16},
                                                            {"float", DType::f32},
                                                            {"double", DType::f64},
                                                            {"bfloat16", DType::bf16},
                                                            {"i8", DType::i8},
                                                            {"u8", DType::u8},
                                                            {"i32", DType::i32},
                                                            {"i64", DType::i64},
                                                            {"f16", DType::f16},
                                                            {"f32", DType::f32},
                                                            {"f64", DType::f64},
                                                            {"bf16", DType::bf16}});
// nccl-tests' dtypes that Shoal lacks.
inline constexpr std::array<std::string_view, 4> kNoDTypes{"uint32", "uint64", "f8e4m3", "f8e5m2"};

inline constexpr auto kReductions = [] {
  using enum collectives::ReduceOp;
  return std::to_array<Name<collectives::ReduceOp>>({{"sum", sum},
                                                     {"prod", prod},
                                                     {"max", max},
                                                     {"min", min},
                                                     {"avg", avg},
                                                     {"mulsum", premultiplied_sum},
                                                     {"premultiplied_sum", premultiplied_sum}});
}();

template <typename Table>
auto look_up(const Table& table, const std::string& text, std::string_view what) {
  std::vector<std::string> names;
  for (const auto& [name, value] : table) {
    if (text == name) return value;
    names.emplace_back(name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("'{}' is not {}", text, what),
              names_there_are(text, names));
}

template <typename Table, typename Value>
std::string_view first_name(const Table& table, Value value) {
  for (const auto& [name, each] : table)
    if (each == value) return name;
  return "?";
}

// Every value once, in the table's order.
template <typename Table>
auto all_values(const Table& table) {
  std::vector<decltype(table[0].second)> values;
  for (const auto& [name, value] : table)
    if (name == first_name(table, value)) values.push_back(value);
  return values;
}

}  // namespace shoal::perf
