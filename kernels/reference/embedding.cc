#include <vector>

#include "shoal/kernels/checks.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/families.h"

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
    const std::int64_t length = args.x.shape[1], width = args.x.shape[2], dim = args.table.shape[1],
                       half = dim / 2;
    for (std::int64_t i = 0; i < args.x.shape.count(); ++i) {
      const std::int64_t pair = i % width % dim;
      if (pair >= half) continue;
      const std::int64_t angle = (args.first_position + i / width % length) * dim + pair;
      const double a = load(args.x, i), b = load(args.x, i + half), c = load(args.table, angle),
                   s = load(args.table, angle + half) * (args.backward ? -1 : 1);
      store(args.out, i, a * c - b * s);
      store(args.out, i + half, b * c + a * s);
    }
  }

 private:
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
