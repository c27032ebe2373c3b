#include "shoal/kernels/cpu/adafactor.h"

#include <algorithm>
#include <cmath>

#include "shoal/kernels/cpu/optimizer_ranges.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {

AdafactorFactors::AdafactorFactors(const AdamWArgs& args, double decay_rate)
    : kept(1 - std::pow(args.state->step, decay_rate)),
      gradient_scale(args.state->gradient_scale),
      decay(static_cast<float>(1 - double{args.state->learning_rate} * args.weight_decay)),
      epsilon(static_cast<float>(args.epsilon)) {}

namespace {

constexpr std::int64_t kBlockElements = 65536;  // at least, unless the tensor is smaller
constexpr std::int64_t kMostBlocks = 64;        // of a matrix; each keeps sums of all columns

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

// A segment in blocks of rows of its part, each within one matrix. Depends on sizes only. Some
// blocks may be empty. A vector's "rows" have one element.
class RowBlocks {
 public:
  RowBlocks(const MatrixPlace& place, std::int64_t count)
      : first_(place.place.first),
        count_(count),
        width_(place.is_matrix() ? place.part_columns : 1),
        rows_(place.is_matrix() ? std::max<std::int64_t>(place.part_rows, 1) : first_ + count),
        height_(std::max(divided_up(kBlockElements, width_), divided_up(rows_, kMostBlocks))) {
    each_ = std::max<std::int64_t>(divided_up(rows_, height_), 1);
    const std::int64_t matrix = std::max<std::int64_t>(rows_ * width_, 1);
    begin_ = first_ / matrix;
    blocks_ = count == 0 ? 0 : (divided_up(first_ + count, matrix) - begin_) * each_;
  }
  std::int64_t size() const { return blocks_; }
  // Elements of the segment.
  std::int64_t begin(std::int64_t block) const { return clamped(row(block) * width_); }
  std::int64_t end(std::int64_t block) const {
    const std::int64_t last = std::min((block % each_ + 1) * height_, rows_);
    return clamped((matrix(block) * rows_ + last) * width_);
  }
  std::int64_t row(std::int64_t block) const {  // the first, of the part
    return matrix(block) * rows_ + block % each_ * height_;
  }

 private:
  std::int64_t matrix(std::int64_t block) const { return begin_ + block / each_; }
  std::int64_t clamped(std::int64_t element) const {
    return std::clamp<std::int64_t>(element - first_, 0, count_);
  }
  std::int64_t first_, count_, width_, rows_, height_, each_ = 1, begin_ = 0, blocks_ = 0;
};

// Calls use(first, count, row, column) for pieces of elements [begin, end) that are consecutive in
// one row. Row and column are among those of all matrices.
template <class Use>
void over_pieces(const MatrixPlace& place, std::int64_t begin, std::int64_t end, const Use& use) {
  for (std::int64_t i = begin; i < end;) {
    const auto element = static_cast<std::int64_t>(place.place.element(i));
    const std::int64_t row = element / place.columns, column = element % place.columns;
    const std::int64_t some = std::min(place.place.consecutive(i, end - i), place.columns - column);
    use(i, some, row, row / place.rows * place.columns + column);
    i += some;
  }
}

}  // namespace

struct CpuAdafactor::Tensor {
  const AdamWArgs& args;
  const MatrixPlace& place;
  double* sums;

  std::int64_t count() const { return args.master.shape.count(); }
  double* rows() const { return sums + 1; }
  double* columns() const { return rows() + place.all_rows(); }
  float* row_factors() const { return reinterpret_cast<float*>(columns() + place.all_columns()); }
  float* column_factors() const { return row_factors() + place.all_rows(); }
  // Calls use(first, count, row's factor, factors of columns or null) for pieces of a block.
  template <class Use>
  void over_block(const RowBlocks& blocks, std::int64_t block, const Use& use) const {
    const std::int64_t begin = blocks.begin(block), end = blocks.end(block);
    if (begin == end) return;
    if (!place.is_matrix()) return use(begin, end - begin, 0.0f, nullptr);
    over_pieces(place, begin, end,
                [&](std::int64_t i, std::int64_t some, std::int64_t row, std::int64_t column) {
                  use(i, some, row_factors()[row], column_factors() + column);
                });
  }
};

template <class Use>
void CpuAdafactor::for_each(const AdafactorArgs& args, const Use& use) {
  auto* sums = args.sums.as<double>();
  for (std::size_t i = 0; i < args.tensors.size(); ++i) {
    if (args.tensors[i].state->skip) return;
    use(Tensor{args.tensors[i], args.places[i], sums});
    sums += adafactor_room(args.places[i]);
  }
}

void CpuAdafactor::sums(const AdafactorArgs& args) {
  for_each(args, [&](const Tensor& x) {
    std::fill_n(x.sums, adafactor_added(x.place), 0.0);
    if (x.place.is_matrix()) sum_rows_and_columns(x);
  });
}

void CpuAdafactor::sum_rows_and_columns(const Tensor& x) {
  const RowBlocks blocks(x.place, x.count());
  const std::int64_t width = x.place.part_columns, first = x.place.place.first;
  double* const partial = scratch_.of<double>(std::max<std::int64_t>(blocks.size(), 1) * width);
  // A row is in one block, so no two threads add to one sum.
  parallel_for(threads_, blocks.size(), 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t b = from; b < to; ++b) {
      double* const mine = partial + b * width;
      std::fill_n(mine, width, 0.0);
      over_pieces(x.place, blocks.begin(b), blocks.end(b),
                  [&](std::int64_t i, std::int64_t some, std::int64_t row, std::int64_t) {
                    x.rows()[row] +=
                        factored_sums_range(x.args, i, some, mine + (first + i) % width);
                  });
    }
  });
  for (std::int64_t b = 0; b < blocks.size(); ++b) {
    if (blocks.begin(b) == blocks.end(b)) continue;
    const double* const mine = partial + b * width;
    const std::int64_t row = blocks.row(b) * width - first;  // its columns are those of the block
    over_pieces(x.place, row, row + width,
                [&](std::int64_t i, std::int64_t some, std::int64_t, std::int64_t column) {
                  for (std::int64_t k = 0; k < some; ++k)
                    x.columns()[column + k] += mine[i - row + k];
                });
  }
}

// Advances the moments of rows and columns, and computes the factors of u.
void CpuAdafactor::advance(const Tensor& x, double kept) {
  const auto moved = [&](float& moment, double mean) {
    moment = static_cast<float>(kept * moment + (1 - kept) * (mean + x.args.epsilon));
    return double{moment};
  };
  auto* const rows = x.args.first_moment.as<float>();
  auto* const columns = x.args.second_moment.as<float>();
  const auto height = static_cast<double>(x.place.rows);
  const auto width = static_cast<double>(x.place.columns);
  for (std::int64_t first = 0; first < x.place.all_rows(); first += x.place.rows) {
    double mean = 0;
    for (std::int64_t r = first; r < first + x.place.rows; ++r)
      mean += moved(rows[r], x.rows()[r] / width) / height;
    for (std::int64_t r = first; r < first + x.place.rows; ++r)
      x.row_factors()[r] = static_cast<float>(1 / std::sqrt(rows[r] / mean));
  }
  for (std::int64_t c = 0; c < x.place.all_columns(); ++c)
    x.column_factors()[c] =
        static_cast<float>(1 / std::sqrt(moved(columns[c], x.columns()[c] / height)));
}

void CpuAdafactor::moments(const AdafactorArgs& args) {
  for_each(args, [&](const Tensor& x) {
    const AdafactorFactors factors(x.args, args.decay_rate);
    if (x.place.is_matrix()) advance(x, factors.kept);
    const RowBlocks blocks(x.place, x.count());
    double* const partial = scratch_.of<double>(std::max<std::int64_t>(blocks.size(), 1));
    parallel_for(threads_, blocks.size(), 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t b = from; b < to; ++b) {
        partial[b] = 0;
        x.over_block(
            blocks, b, [&](std::int64_t i, std::int64_t some, float row, const float* columns) {
              partial[b] += adafactor_moments_range(x.args, factors, row, columns, i, some);
            });
      }
    });
    x.sums[0] = 0;
    for (std::int64_t b = 0; b < blocks.size(); ++b) x.sums[0] += partial[b];
  });
}

void CpuAdafactor::apply(const AdafactorArgs& args) {
  for_each(args, [&](const Tensor& x) {
    const AdafactorFactors factors(x.args, args.decay_rate);
    const double rms =
        std::sqrt(x.sums[0] / static_cast<double>(std::max<std::int64_t>(x.place.count, 1)));
    const auto rate =
        static_cast<float>(x.args.state->learning_rate / std::max(1.0, rms / args.clip_threshold));
    const RowBlocks blocks(x.place, x.count());
    parallel_for(threads_, blocks.size(), 1, [&](std::int64_t from, std::int64_t to) {
      for (std::int64_t b = from; b < to; ++b)
        x.over_block(blocks, b,
                     [&](std::int64_t i, std::int64_t some, float row, const float* columns) {
                       adafactor_apply_range(x.args, factors, rate, row, columns, i, some);
                     });
    });
  });
}

}  // namespace shoal::kernels
