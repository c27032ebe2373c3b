#include "shoal/parallel/predict/unit_times.h"

#include <algorithm>
#include <cmath>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

double flops_of(const Machine& machine, DType dtype) {
  const auto found = machine.products.flops.find(dtype);
  SHOAL_CHECK(found != machine.products.flops.end(), "machine {} has no rate for {}", machine.name,
              to_string(dtype));
  return found->second;
}

class UnitClock {
 public:
  UnitClock(const Machine& machine, const UnitShape& unit, std::int64_t channels,
            const RankBatch& batch)
      : machine_(machine),
        unit_(unit),
        batch_(batch),
        tokens_(unit.share * static_cast<double>(batch.rows) * static_cast<double>(batch.length)),
        channels_(static_cast<double>(channels)),
        tensor_(batch.tensor),
        bytes_(static_cast<double>(size_of(batch.dtype))) {}

  UnitTimes times() const {
    UnitTimes times;
    products(times);
    attention(times);
    passes(times);
    if (unit_.heads > 0) {
      exchanges(times);
      times.launch =
          machine_.software.block_launch * (1 + machine_.software.launch_per_rank * (tensor_ - 1));
    }
    return times;
  }

 private:
  // A product that widens is split by columns, another one by rows.
  void products(UnitTimes& times) const {
    for (const ProductShape& shape : unit_.products) {
      double in = static_cast<double>(shape.in), out = static_cast<double>(shape.out);
      (out > in ? out : in) /= tensor_;
      const auto measured = machine_.products.measured.find(batch_.dtype);
      if (measured != machine_.products.measured.end()) {
        const auto& [forward, input, weight] = measured->second;
        const double efficiency = machine_.products.efficiency;
        times.forward.products += forward.at(tokens_, in, out) / efficiency;
        add_backward(shape, input.at(tokens_, in, out) / efficiency,
                     weight.at(tokens_, in, out) / efficiency, times);
        continue;
      }
      const auto seconds = [&](double m, double n, double k) {
        return product_seconds(machine_, batch_.dtype, m, n, k);
      };
      times.forward.products += seconds(tokens_, out, in);
      add_backward(shape, seconds(tokens_, in, out), seconds(in, out, tokens_), times);
    }
  }
  static void add_backward(const ProductShape& shape, double input, double weight,
                           UnitTimes& times) {
    times.backward.products += shape.frozen ? input : input + weight;
    // A split backward computes the gradients of inputs first, which is half of the products.
    if (!shape.frozen) times.weights += (input + weight) / 2;
  }

  // Scores and values: two products forward, four backward (five where the scores are not kept).
  void attention(UnitTimes& times) const {
    if (unit_.heads == 0) return;
    const Software& software = machine_.software;
    const auto length = static_cast<double>(batch_.length);
    const double heads =
        static_cast<double>(batch_.rows) * static_cast<double>(unit_.heads) / tensor_;
    const double one = 2 * heads * length * length * static_cast<double>(unit_.head_width) /
                       (flops_of(machine_, batch_.dtype) * machine_.products.attention_efficiency);
    const bool skips = software.fused_attention && software.skips_masked_scores && unit_.causal;
    const double share = skips ? 0.5 : 1;
    times.forward.attention = 2 * share * one;
    times.backward.attention = (software.fused_attention ? 5 : 4) * share * one;
    if (software.fused_attention) return;
    const double scores = heads * length * length * bytes_;
    // Forward a product writes them, softmax and dropout read and write them, dropout writes a mask
    // of bytes, and a product reads them. Backward three products read and one writes them, dropout
    // passes over two and its mask, softmax over three.
    times.forward.attention += move(software.pass_factor * scores * (6 + 1 / bytes_));
    times.backward.attention += move(software.pass_factor * scores * (9 + 1 / bytes_));
  }

  void passes(UnitTimes& times) const {
    const Software& software = machine_.software;
    const double outside = batch_.sequence ? tensor_ : 1;
    const double stream = tokens_ * channels_ * bytes_ / outside;
    const double inner =
        tokens_ * static_cast<double>(unit_.inner * unit_.branches) * bytes_ / tensor_;
    const auto norms = static_cast<double>(unit_.norms);
    // A norm with its residual reads two tensors and writes two; dropout and bias take as many.
    times.forward.passes = move(software.pass_factor * (9 * norms * stream + 4 * inner));
    times.backward.passes = move(software.pass_factor * (10 * norms * stream + 6 * inner));
    if (unit_.products.empty())  // embeddings
      times.forward.passes += move(3 * stream), times.backward.passes += move(3 * stream);
    if (unit_.vocabulary == 0) return;
    const double logits = tokens_ * static_cast<double>(unit_.vocabulary) * bytes_ / tensor_;
    times.forward.loss = move(software.head_factor * 3 * logits);
    times.backward.loss = move(software.head_factor * 2 * logits);
  }

  // Two sums of the stream forward and two backward.
  void exchanges(UnitTimes& times) const {
    if (tensor_ <= 1) return;
    const double one = all_reduce_seconds(machine_, tokens_ * channels_ * bytes_, batch_.tensor,
                                          batch_.nodes, 1, machine_.network_tensor_efficiency);
    times.forward.exchanges = times.backward.exchanges = 2 * one;
  }

  double move(double bytes) const {
    return bytes / (machine_.bandwidth * machine_.copy_efficiency);
  }

  const Machine& machine_;
  const UnitShape& unit_;
  const RankBatch& batch_;
  double tokens_, channels_, tensor_, bytes_;
};

}  // namespace

double product_seconds(const Machine& machine, DType dtype, double m, double n, double k) {
  const ProductRates& rates = machine.products;
  const double rate = flops_of(machine, dtype) * rates.efficiency * k / (k + rates.half_depth);
  double seconds = 2 * m * n * k / rate;
  if (rates.tile > 0) {
    const auto tile = static_cast<double>(rates.tile);
    const auto processors = static_cast<double>(rates.processors);
    const double waves = std::ceil(std::ceil(m / tile) * std::ceil(n / tile) / processors);
    seconds = (seconds + 2 * tile * tile * k * waves * processors / rate) / 2;
  }
  const double bytes = (m * k + k * n + m * n) * static_cast<double>(size_of(dtype));
  return std::max(seconds, bytes / (machine.bandwidth * machine.copy_efficiency));
}

UnitTimes unit_times(const Machine& machine, const UnitShape& unit, std::int64_t channels,
                     const RankBatch& batch) {
  return UnitClock(machine, unit, channels, batch).times();
}

double update_bytes(const Elements& elements, int gradient_reads, DType dtype, int parts) {
  const double each =
      4.0 * (gradient_reads + 2) + (dtype == DType::f32 ? 0 : static_cast<double>(size_of(dtype)));
  return (each * static_cast<double>(elements.trained) +
          8 * static_cast<double>(elements.rule.states)) /
             parts +
         8 * static_cast<double>(elements.rule.means);
}

double stream_bytes(std::int64_t channels, const RankBatch& batch) {
  return static_cast<double>(batch.rows * batch.length * channels) *
         static_cast<double>(size_of(batch.dtype)) / (batch.sequence ? batch.tensor : 1);
}

namespace {

// True if the MLP's last product keeps its input, of the inner width. A frozen product without an
// adapter does not.
bool keeps_inner(const UnitShape& unit) {
  return std::ranges::any_of(unit.products, [&](const ProductShape& product) {
    return product.in == unit.inner && product.keeps;
  });
}
// The same of the MLP's first products, whose results have that width.
bool keeps_outer(const UnitShape& unit) {
  return std::ranges::any_of(unit.products, [&](const ProductShape& product) {
    return (product.out == unit.inner || product.out == unit.branches * unit.inner) &&
           product.keeps;
  });
}

}  // namespace

double kept_bytes(const UnitShape& unit, std::int64_t channels, const RankBatch& batch) {
  const double stream = stream_bytes(channels, batch);
  if (unit.heads == 0) return unit.vocabulary > 0 ? 3 * stream : stream;
  const auto tokens = static_cast<double>(batch.rows * batch.length);
  const auto width = static_cast<double>(size_of(batch.dtype));
  // Besides both sub-layers' sums: the attention's input and the MLP's.
  const int streams = keeps_outer(unit) ? 4 : 3;
  // Queries, keys, values and the heads' output; the inner activation and its inputs.
  const auto split =
      static_cast<double>(2 * (unit.heads + unit.key_heads) * unit.head_width +
                          unit.inner * (unit.branches + (keeps_inner(unit) ? 1 : 0)));
  const auto sums = 4.0 * static_cast<double>(unit.heads);  // f32
  return streams * stream + 8 * static_cast<double>(unit.norms) * tokens +
         tokens * (split * width + sums) / batch.tensor;
}

double working_bytes(const UnitShape& unit, std::int64_t channels, const RankBatch& batch) {
  const double stream = stream_bytes(channels, batch);
  if (unit.heads == 0) return stream;
  const auto values = static_cast<double>(batch.rows * batch.length) *
                      static_cast<double>(size_of(batch.dtype)) / batch.tensor;
  // Backward puts the inner activation's gradient into the place of the activation, if it was kept.
  const double inner = keeps_inner(unit) ? 0 : values * static_cast<double>(unit.inner);
  // The gradients of a gate's two inputs, and of the input of their products.
  const double gated =
      unit.branches > 1 ? values * static_cast<double>(unit.inner * unit.branches) + stream : 0;
  return std::max(2 * stream, gated) + inner;
}

double all_reduce_seconds(const Machine& machine, double bytes, int ranks, int nodes, int sharing,
                          double network_efficiency) {
  if (ranks <= 1) return 0;
  const int inside = std::max(ranks / nodes, 1);
  double seconds = 0;
  if (inside > 1) {
    const auto table = machine.node.all_reduce.find(inside);
    const double share = 2.0 * (inside - 1) / inside;
    seconds += table != machine.node.all_reduce.end() ? table->second.at(bytes)
                                                      : share * bytes / machine.node.bandwidth +
                                                            2 * (inside - 1) * machine.node.latency;
  }
  if (nodes > 1)
    seconds += 2.0 * (nodes - 1) / nodes * bytes /
                   (machine.network.bandwidth / sharing * network_efficiency) +
               2 * (nodes - 1) * machine.network.latency;
  return seconds;
}

double message_seconds(const Machine& machine, double bytes, bool same_node) {
  if (same_node) return bytes / machine.node.bandwidth + machine.node.latency;
  return bytes / (machine.network.bandwidth / machine.devices) + machine.network.latency;
}

}  // namespace shoal::parallel
