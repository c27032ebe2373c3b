#include <algorithm>
#include <cstring>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cpu/families.h"
#include "shoal/kernels/cpu/ranges.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::kernels {
namespace {

constexpr std::int64_t kGrain = 32768;  // elements worth a thread
constexpr std::int64_t kStrip = 64;  // columns: whole cache lines of f32, so no two threads share

class CpuEmbedding final : public EmbeddingKernels {
 public:
  explicit CpuEmbedding(const CpuResources& resources) : threads_(resources.threads) {}

  void embedding(ConstView ids, ConstView table, View out, bool accumulate, Stream) override {
    check::embedding(ids, table, out);
    check::ids("embedding", ids, table.shape[0]);
    const std::int64_t columns = table.shape[1];
    if (columns == 0) return;
    const auto row_bytes = static_cast<std::int64_t>(size_of(table.dtype)) * columns;
    const auto* id = static_cast<const std::int32_t*>(ids.data);
    parallel_for(threads_, ids.shape.count(), std::max<std::int64_t>(1, kGrain / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::byte* from =
                         static_cast<const std::byte*>(table.data) + id[i] * row_bytes;
                     std::byte* to = static_cast<std::byte*>(out.data) + i * row_bytes;
                     if (accumulate)
                       add_range(table.dtype, to, from, to, columns);
                     else
                       std::memcpy(to, from, static_cast<std::size_t>(row_bytes));
                   }
                 });
  }

  // Each thread owns a range of columns, so each element is summed in the order of i for any number
  // of threads.
  void embedding_backward(ConstView ids, ConstView dout, View dtable, Stream) override {
    check::embedding_backward(ids, dout, dtable);
    check::ids("embedding_backward", ids, dtable.shape[0]);
    const std::int64_t columns = dtable.shape[1], count = ids.shape.count();
    const auto* id = static_cast<const std::int32_t*>(ids.data);
    over_columns(columns, count, [&](std::int64_t column, std::int64_t width) {
      for (std::int64_t i = 0; i < count; ++i)
        accumulate_range(dout.dtype, element(dout, i * columns + column),
                         static_cast<float*>(dtable.data) + id[i] * columns + column, width);
    });
  }

  void position_backward(ConstView dout, View dtable, Stream) override {
    check::position_backward(dout, dtable);
    const std::int64_t batch = dout.shape[0], length = dout.shape[1], columns = dout.shape[2];
    if (batch * columns == 0) return;
    parallel_for(threads_, length, std::max<std::int64_t>(1, kGrain / (batch * columns)),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t t = begin; t < end; ++t)
                     for (std::int64_t b = 0; b < batch; ++b)
                       accumulate_range(dout.dtype, element(dout, (b * length + t) * columns),
                                        static_cast<float*>(dtable.data) + t * columns, columns);
                 });
  }

  void rotary(const RotaryArgs& args, Stream) override {
    check::rotary(args);
    if (args.positions.defined()) check::ids("rotary", args.positions, args.table.shape[0]);
    const auto* const positions = static_cast<const std::int32_t*>(args.positions.data);
    const std::int64_t length = args.x.shape[1], width = args.x.shape[2],
                       turning = args.table.shape[1];
    if (width == 0) return;
    const auto row_bytes = static_cast<std::int64_t>(size_of(args.x.dtype)) * width;
    parallel_for(
        threads_, args.x.shape[0] * length, std::max<std::int64_t>(1, kGrain / width),
        [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row)
            rotary_heads(
                args.x.dtype, static_cast<const std::byte*>(args.x.data) + row * row_bytes,
                static_cast<const float*>(args.table.data) +
                    (positions ? positions[row] : args.first_position + row % length) * turning,
                args.backward, static_cast<std::byte*>(args.out.data) + row * row_bytes,
                {.count = width / args.head_channels(),
                 .channels = args.head_channels(),
                 .turning = turning});
        });
  }

  void select_rows(const RowSelection& rows, ConstView x, View out, std::uint8_t missing,
                   Stream) override {
    check::select_rows("select_rows", rows, out, x);
    check_numbers("select_rows", rows, x);
    over_selection(rows, out, [&](std::int64_t row, std::int64_t i, std::size_t bytes) {
      std::byte* to = const_cast<std::byte*>(element(out, i * out.shape.columns()));
      if (row < 0)
        std::memset(to, missing, bytes);
      else
        std::memcpy(to, element(x, row * x.shape.columns()), bytes);
    });
  }

  void select_rows_backward(const RowSelection& rows, ConstView dout, View dx, bool clear,
                            Stream) override {
    check::select_rows("select_rows_backward", rows, dout, dx);
    check_numbers("select_rows_backward", rows, dx);
    if (clear && dx.shape.count() > 0)
      std::memset(dx.data, 0, static_cast<std::size_t>(dx.shape.count()) * size_of(dx.dtype));
    over_selection(rows, dout, [&](std::int64_t row, std::int64_t i, std::size_t bytes) {
      if (row >= 0)
        std::memcpy(const_cast<std::byte*>(element(dx, row * dx.shape.columns())),
                    element(dout, i * dx.shape.columns()), bytes);
    });
  }

  void count_positions(ConstView ids, std::int32_t padding, View out, Stream) override {
    check::count_positions(ids, out);
    const std::int64_t length = ids.shape[1];
    const auto* id = static_cast<const std::int32_t*>(ids.data);
    auto* to = static_cast<std::int32_t*>(out.data);
    for (std::int64_t i = 0, next = 0; i < ids.shape.count(); ++i) {
      if (i % length == 0) next = padding;
      to[i] = id[i] == padding ? padding : static_cast<std::int32_t>(++next);
    }
  }

 private:
  static void check_numbers(const char* operation, const RowSelection& rows, const ConstView& x) {
    if (!rows.numbers.defined()) return;
    const std::int64_t limit = check::row_limit(rows, x);
    const auto* number = static_cast<const std::int32_t*>(rows.numbers.data);
    for (std::int64_t i = 0; i < rows.numbers.shape.count(); ++i)
      SHOAL_CHECK(number[i] < limit, "{}: number {} at position {} of {} is outside [0, {})",
                  operation, number[i], i, rows.numbers.shape.count(), limit);
  }
  // Calls move(row or -1, i, bytes of a row) for each row i of the selection.
  template <class Move>
  void over_selection(const RowSelection& rows, const ConstView& some, const Move& move) const {
    const std::int64_t columns = some.shape.columns();
    const std::size_t bytes = static_cast<std::size_t>(columns) * size_of(some.dtype);
    if (bytes == 0) return;
    const auto* number = static_cast<const std::int32_t*>(rows.numbers.data);
    parallel_for(threads_, some.shape[0], std::max<std::int64_t>(1, kGrain / columns),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t i = begin; i < end; ++i) {
                     const std::int64_t within = number ? number[i] : rows.offset;
                     move(within < 0 ? -1 : i * rows.stride + within, i, bytes);
                   }
                 });
  }
  static const std::byte* element(const ConstView& view, std::int64_t index) {
    return static_cast<const std::byte*>(view.data) +
           index * static_cast<std::int64_t>(size_of(view.dtype));
  }

  // Calls body(first column, columns) on whole strips; a column costs `rows` elements.
  template <class Body>
  void over_columns(std::int64_t columns, std::int64_t rows, const Body& body) const {
    const std::int64_t strips = (columns + kStrip - 1) / kStrip;
    const std::int64_t grain = kGrain / std::max<std::int64_t>(1, rows * kStrip);
    parallel_for(threads_, strips, grain, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t last = std::min(end * kStrip, columns);
      body(begin * kStrip, last - begin * kStrip);
    });
  }

  int threads_;
};

}  // namespace

std::unique_ptr<EmbeddingKernels> make_cpu_embedding(const CpuResources& resources) {
  return std::make_unique<CpuEmbedding>(resources);
}

}  // namespace shoal::kernels
