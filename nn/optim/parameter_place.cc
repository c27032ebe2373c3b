#include "shoal/nn/optim/parameter_place.h"

#include <algorithm>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {
namespace {

// A range of elements that is contiguous in both this part and the whole parameter.
struct Run {
  std::int64_t here = 0, whole = 0, count = 0;
};

std::int64_t offset_of(const Shape& strides, const Shape& corner) {
  std::int64_t offset = 0;
  for (int dim = 0; dim < strides.rank(); ++dim) offset += strides[dim] * corner[dim];
  return offset;
}

std::vector<Run> runs_of(const Parameter& parameter) {
  const Shape here = contiguous_strides(parameter.shape()),
              whole = contiguous_strides(parameter.whole_shape());
  std::vector<Run> runs;
  for (const ParameterPiece& piece : parameter.pieces()) {
    const int rank = piece.sizes.rank();
    const std::int64_t row = rank == 0 ? 1 : piece.sizes[rank - 1];
    for (std::int64_t i = 0; row > 0 && i < piece.sizes.count() / row; ++i) {
      Run run{offset_of(here, piece.local), offset_of(whole, piece.whole), row};
      std::int64_t rest = i;
      for (int dim = rank - 1; dim-- > 0;) {
        run.here += rest % piece.sizes[dim] * here[dim];
        run.whole += rest % piece.sizes[dim] * whole[dim];
        rest /= piece.sizes[dim];
      }
      runs.push_back(run);
    }
  }
  std::ranges::sort(runs, {}, &Run::here);
  std::vector<Run> joined;
  for (const Run& run : runs)
    if (!joined.empty() && joined.back().whole + joined.back().count == run.whole)
      joined.back().count += run.count;
    else
      joined.push_back(run);
  return joined;
}

}  // namespace

kernels::ElementPlace element_place(const Parameter& parameter, std::int64_t first) {
  kernels::ElementPlace place{.first = first};
  const std::vector<Run> runs = parameter.is_part() ? runs_of(parameter) : std::vector<Run>{};
  if (runs.empty()) return place;
  place.base = runs[0].whole;
  if (runs.size() == 1) return place;
  place.run = runs[0].count;
  place.run_step = runs[1].whole - runs[0].whole;
  std::size_t row = 1;  // number of runs per row
  while (row < runs.size() && runs[row].whole - runs[row - 1].whole == place.run_step) ++row;
  place.row = static_cast<std::int64_t>(row) * place.run;
  if (row < runs.size()) place.row_step = runs[row].whole - place.base;
  kernels::ElementPlace all = place;
  all.first = 0;
  for (const Run& run : runs)
    if (run.count != place.run || all.element(run.here) != static_cast<std::uint64_t>(run.whole))
      throw Error(ErrorCode::unavailable,
                  fmt::format("{} is {} of {} in pieces whose places stochastic rounding and "
                              "Adafactor do not know",
                              parameter.name(), to_string(parameter.shape()),
                              to_string(parameter.whole_shape())),
                  "leave stochastic_rounding out, and take another optim than adafactor");
  return place;
}

kernels::RoundingPlace rounding_place(const Parameter& parameter, std::uint64_t seed,
                                      std::int64_t first) {
  kernels::RoundingPlace place;
  static_cast<kernels::ElementPlace&>(place) = element_place(parameter, first);
  place.seed = seed;
  place.parameter = hash_name(parameter.name());
  return place;
}

kernels::MatrixPlace matrix_place(const Shape& whole, const Shape& part) {
  kernels::MatrixPlace place{.count = whole.count()};
  if (whole.rank() < 2 || place.count == 0) return place;
  place.rows = whole[-2];
  place.columns = whole[-1];
  place.part_rows = part[-2];
  place.part_columns = part[-1];
  return place;
}

}  // namespace shoal::nn
