#include <cstring>
#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/families.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

using reference::load;
using reference::store;

class ReferenceEmbedding final : public EmbeddingKernels {
 public:
  void embedding(ConstView ids, ConstView table, View out, bool accumulate, Stream) override {
    check::embedding(ids, table, out);
    check::ids("embedding", ids, table.shape[0]);
    const std::int64_t columns = table.shape[1];
    for (std::int64_t i = 0; i < out.shape.count(); ++i) {
      const double value =
          load(table, static_cast<std::int64_t>(load(ids, i / columns)) * columns + i % columns);
      store(out, i, accumulate ? load(out, i) + value : value);
    }
  }

  void embedding_backward(ConstView ids, ConstView dout, View dtable, Stream) override {
    check::embedding_backward(ids, dout, dtable);
    check::ids("embedding_backward", ids, dtable.shape[0]);
    const std::int64_t columns = dtable.shape[1];
    std::vector<double> sums(static_cast<std::size_t>(dtable.shape.count()));
    for (std::int64_t i = 0; i < dout.shape.count(); ++i)
      sums[static_cast<std::size_t>(static_cast<std::int64_t>(load(ids, i / columns)) * columns +
                                    i % columns)] += load(dout, i);
    add(sums, dtable);
  }

  void position_backward(ConstView dout, View dtable, Stream) override {
    check::position_backward(dout, dtable);
    const std::int64_t plane = dout.shape[1] * dout.shape[2];
    std::vector<double> sums(static_cast<std::size_t>(dtable.shape.count()));
    for (std::int64_t i = 0; i < dout.shape.count(); ++i)
      sums[static_cast<std::size_t>(i % plane)] += load(dout, i);
    add(sums, dtable);
  }

  void rotary(const RotaryArgs& args, Stream) override {
    check::rotary(args);
    if (args.positions.defined()) check::ids("rotary", args.positions, args.table.shape[0]);
    const auto* const positions = static_cast<const std::int32_t*>(args.positions.data);
    const std::int64_t length = args.x.shape[1], width = args.x.shape[2],
                       dim = args.head_channels(), turning = args.table.shape[1],
                       half = turning / 2;
    for (std::int64_t i = 0; i < args.x.shape.count(); ++i) {
      const std::int64_t pair = i % width % dim;
      if (pair >= turning) store(args.out, i, load(args.x, i));
      if (pair >= half) continue;
      const std::int64_t row = i / width,
                         position = positions ? positions[row] : args.first_position + row % length,
                         angle = position * turning + pair;
      const double a = load(args.x, i), b = load(args.x, i + half), c = load(args.table, angle),
                   s = load(args.table, angle + half) * (args.backward ? -1 : 1);
      store(args.out, i, a * c - b * s);
      store(args.out, i + half, b * c + a * s);
    }
  }

  void select_rows(const RowSelection& rows, ConstView x, View out, std::uint8_t missing,
                   Stream) override {
    check::select_rows("select_rows", rows, out, x);
    const std::size_t bytes = static_cast<std::size_t>(x.shape.columns()) * size_of(x.dtype);
    for (std::int64_t i = 0; i < out.shape[0]; ++i) {
      std::byte* to = static_cast<std::byte*>(out.data) + static_cast<std::size_t>(i) * bytes;
      const std::int64_t row = row_of(rows, x, i);
      if (row < 0)
        std::memset(to, missing, bytes);
      else
        std::memcpy(to,
                    static_cast<const std::byte*>(x.data) + static_cast<std::size_t>(row) * bytes,
                    bytes);
    }
  }

  void select_rows_backward(const RowSelection& rows, ConstView dout, View dx, bool clear,
                            Stream) override {
    check::select_rows("select_rows_backward", rows, dout, dx);
    const std::int64_t columns = dx.shape.columns();
    for (std::int64_t i = 0; clear && i < dx.shape.count(); ++i) store(dx, i, 0);
    for (std::int64_t i = 0; i < dout.shape[0]; ++i) {
      const std::int64_t row = row_of(rows, dx, i);
      for (std::int64_t c = 0; row >= 0 && c < columns; ++c)
        store(dx, row * columns + c, load(dout, i * columns + c));
    }
  }

  void count_positions(ConstView ids, std::int32_t padding, View out, Stream) override {
    check::count_positions(ids, out);
    for (std::int64_t i = 0; i < ids.shape.count(); ++i) {
      std::int64_t before = 0;  // ids of the sample up to and including this one that are not
                                // padding
      for (std::int64_t j = i - i % ids.shape[1]; j <= i; ++j)
        before += load(ids, j) == padding ? 0 : 1;
      store(out, i, static_cast<double>(padding + (load(ids, i) == padding ? 0 : before)));
    }
  }

 private:
  static std::int64_t row_of(const RowSelection& rows, const ConstView& x, std::int64_t i) {
    if (!rows.numbers.defined()) return i * rows.stride + rows.offset;
    const auto number = static_cast<std::int64_t>(load(rows.numbers, i));
    SHOAL_CHECK(number < check::row_limit(rows, x),
                "select_rows: number {} of {} is outside [0, {})", number, i,
                check::row_limit(rows, x));
    return number < 0 ? -1 : i * rows.stride + number;
  }
  static void add(const std::vector<double>& sums, const View& out) {
    for (std::int64_t i = 0; i < out.shape.count(); ++i)
      store(out, i, load(out, i) + sums[static_cast<std::size_t>(i)]);
  }
};

}  // namespace

std::unique_ptr<EmbeddingKernels> make_reference_embedding() {
  return std::make_unique<ReferenceEmbedding>();
}

}  // namespace shoal::kernels
