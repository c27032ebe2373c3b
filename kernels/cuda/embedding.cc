#include "shoal/kernels/cuda/embedding.cuh"

#include "shoal/kernels/checks.h"
#include "shoal/kernels/cuda/families.h"
#include "shoal/kernels/cuda/rows.cuh"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels {
namespace {

class CudaEmbedding final : public EmbeddingKernels {
 public:
  explicit CudaEmbedding(CudaResources& resources) : resources_(resources) {}

  void embedding(ConstView ids, ConstView table, View out, bool accumulate,
                 Stream stream) override {
    check::embedding(ids, table, out);
    const Launch at = begin(stream);
    const EmbeddingShape shape = shape_of("embedding", ids, table);
    check_cuda(launch_embedding(at, table.dtype, shape, static_cast<const std::int32_t*>(ids.data),
                                table.data, out.data, accumulate, resources_.fault()),
               "embedding");
  }

  void embedding_backward(ConstView ids, ConstView dout, View dtable, Stream stream) override {
    check::embedding_backward(ids, dout, dtable);
    const Launch at = begin(stream);
    const EmbeddingShape shape = shape_of("embedding_backward", ids, dtable);
    if (shape.count == 0 || shape.columns == 0) return;
    // Sorted positions have 32 bits.
    SHOAL_CHECK(shape.count < std::int64_t{1} << 31, "embedding_backward: {} ids at once",
                shape.count);
    const EmbeddingSort sort(shape);
    const Buffer scratch = resources_.scratch(sort.bytes, stream);
    check_cuda(launch_embedding_backward(
                   at, dout.dtype, shape, sort, static_cast<const std::int32_t*>(ids.data),
                   dout.data, static_cast<float*>(dtable.data),
                   static_cast<std::byte*>(scratch.data()), resources_.fault()),
               "embedding_backward");
  }

  void position_backward(ConstView dout, View dtable, Stream stream) override {
    check::position_backward(dout, dtable);
    check_cuda(launch_position_backward(begin(stream), dout.dtype, dout.shape[0],
                                        dout.shape[1] * dout.shape[2], dout.data,
                                        static_cast<float*>(dtable.data)),
               "position_backward");
  }

  void rotary(const RotaryArgs& args, Stream stream) override {
    check::rotary(args);
    const Shape& x = args.x.shape;
    const std::int64_t dim = args.head_channels(), turning = args.table.shape[1];
    const std::int64_t first = args.positions.defined() ? 0 : args.first_position;
    check_cuda(launch_rotary(begin(stream), args.x.dtype,
                             {x[0] * x[1], x[1], x[2], dim, turning, args.x.data,
                              static_cast<const float*>(args.table.data) + first * turning,
                              args.out.data, args.backward ? -1.0f : 1.0f,
                              static_cast<const std::int32_t*>(args.positions.data),
                              args.table.shape[0], resources_.fault()}),
               "rotary");
  }

  void select_rows(const RowSelection& rows, ConstView x, View out, std::uint8_t missing,
                   Stream stream) override {
    check::select_rows("select_rows", rows, out, x);
    check_cuda(
        launch_select_rows(begin(stream), selection(rows, out, x), x.data, out.data, missing),
        "select_rows");
  }

  void select_rows_backward(const RowSelection& rows, ConstView dout, View dx, bool clear,
                            Stream stream) override {
    check::select_rows("select_rows_backward", rows, dout, dx);
    const Launch at = begin(stream);
    if (dx.shape.count() == 0) return;
    if (clear)
      check_cuda(cudaMemsetAsync(dx.data, 0,
                                 static_cast<std::size_t>(dx.shape.count()) * size_of(dx.dtype),
                                 at.stream),
                 "select_rows_backward");
    check_cuda(launch_place_rows(at, selection(rows, dout, dx), dout.data, dx.data),
               "select_rows_backward");
  }

  void count_positions(ConstView ids, std::int32_t padding, View out, Stream stream) override {
    check::count_positions(ids, out);
    check_cuda(launch_count_positions(begin(stream), ids.shape[0], ids.shape[1],
                                      static_cast<const std::int32_t*>(ids.data), padding,
                                      static_cast<std::int32_t*>(out.data)),
               "count_positions");
  }

 private:
  SelectedRows selection(const RowSelection& rows, const ConstView& some, const ConstView& x) {
    return {some.shape[0],
            x.shape.columns() * static_cast<std::int64_t>(size_of(x.dtype)),
            static_cast<const std::int32_t*>(rows.numbers.data),
            rows.stride,
            rows.offset,
            check::row_limit(rows, x),
            resources_.fault()};
  }
  Launch begin(Stream stream) { return {resources_.begin(stream), resources_.multiprocessors()}; }

  // An id outside the table is replaced by 0, so row 0 must exist.
  static EmbeddingShape shape_of(const char* operation, const ConstView& ids,
                                 const ConstView& table) {
    const EmbeddingShape shape{ids.shape.count(), table.shape[0], table.shape[1]};
    SHOAL_CHECK(shape.count == 0 || shape.vocabulary > 0, "{}: {} ids into a table without rows",
                operation, shape.count);
    return shape;
  }

  CudaResources& resources_;
};

}  // namespace

std::unique_ptr<EmbeddingKernels> make_cuda_embedding(CudaResources& resources) {
  return std::make_unique<CudaEmbedding>(resources);
}

}  // namespace shoal::kernels
