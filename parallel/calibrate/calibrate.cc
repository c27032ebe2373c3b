#include "shoal/parallel/calibrate/calibrate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/parallel/calibrate/fit.h"
#include "shoal/parallel/calibrate/traced_step.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

using nlohmann::ordered_json;

// Weights that no cache holds, as in a model that is larger than the caches: each call gives
// others.
class ColdWeights {
 public:
  explicit ColdWeights(Tensor all) : all_(std::move(all)) {}
  View next(const Shape& shape) {
    if (at_ + shape.count() > all_.count()) at_ = 0;
    View view = all_.view();
    view.data = static_cast<char*>(view.data) +
                static_cast<std::size_t>(at_) * static_cast<std::size_t>(size_of(view.dtype));
    view.shape = shape;
    at_ += (shape.count() + kLine - 1) / kLine * kLine;
    return view;
  }

 private:
  static constexpr std::int64_t kLine = 64;  // elements: whole cache lines
  Tensor all_;
  std::int64_t at_ = 0;
};

class Calibration {
 public:
  explicit Calibration(const CalibrateRequest& request)
      : request_(request), bench_(request.ranks) {}

  ordered_json run() {
    file_ = {{"name", request_.name},
             {"description", request_.description},
             {"devices", request_.ranks.size()},
             {"memory", request_.memory_bytes}};
    bandwidth();
    for (const DType dtype : request_.dtypes) products(dtype);
    links();
    software();
    return std::move(file_);
  }

 private:
  void say(std::string_view what) const {
    if (request_.progress) request_.progress(what);
  }
  Tensor filled(const Shape& shape, DType dtype) {
    Tensor tensor = Tensor::empty(shape, dtype, request_.memory, MemoryTag::activations);
    request_.kernels.elementwise().fill(tensor.view(), 0.01F, {});
    return tensor;
  }

  void bandwidth() {
    say("memory bandwidth");
    constexpr std::int64_t kElements = std::int64_t{1} << 24;  // 64 MiB, beyond the caches
    const Tensor from = filled({kElements}, DType::f32), to = filled({kElements}, DType::f32);
    const double seconds =
        bench_.time([&] { request_.kernels.elementwise().scale(from, 1, to.view(), {}); });
    file_["bandwidth"] = 8.0 * kElements / seconds;  // reads and writes four bytes each
  }

  // y = x·W, the gradient of x, and that of W, whose sums are f32.
  void products(DType dtype) {
    ordered_json table = {
        {"rows", request_.rows}, {"in", request_.widths}, {"out", request_.widths}};
    double best = 0;
    const std::int64_t cold = std::max(kCold, request_.widths.back() * request_.widths.back());
    ColdWeights weights(filled({cold}, dtype)), sums(filled({cold}, DType::f32));
    for (const std::int64_t rows : request_.rows) {
      say(fmt::format("products of {} rows in {}", rows, to_string(dtype)));
      for (const std::int64_t in : request_.widths)
        for (const std::int64_t out : request_.widths) {
          const Tensor x = filled({rows, in}, dtype), y = filled({rows, out}, dtype);
          const auto time = [&](const char* name, kernels::MatmulArgs& args) {
            const double seconds = bench_.time([&] {
              if (args.transpose_a)
                args.c = sums.next({out, in});
              else
                args.b = weights.next({out, in});
              request_.kernels.matmul().matmul(args, {});
            });
            table[name].push_back(seconds);
            best = std::max(best, 2.0 * static_cast<double>(rows * in * out) / seconds);
          };
          kernels::MatmulArgs forward;
          forward.a = x, forward.c = y.view();
          forward.transpose_b = true;
          time("forward", forward);
          kernels::MatmulArgs input_gradient;
          input_gradient.a = y, input_gradient.c = x.view();
          time("input_gradient", input_gradient);
          kernels::MatmulArgs weight_gradient;
          weight_gradient.a = y, weight_gradient.b = x;
          weight_gradient.transpose_a = weight_gradient.accumulate = true;
          time("weight_gradient", weight_gradient);
        }
    }
    const std::string name(to_string(dtype));
    file_["products"]["flops"][name] = best;
    file_["products"]["measured"][name] = std::move(table);
  }

  // Groups of 2, 4, ... ranks and of all; every rank is in one of them or waits.
  void links() {
    const int ranks = request_.ranks.size();
    if (ranks == 1) return;
    ordered_json tables = ordered_json::object();
    for (int group = std::min(2, ranks); group <= ranks;
         group = group == ranks ? ranks + 1 : std::min(2 * group, ranks)) {
      say(fmt::format("all_reduce of {} ranks", group));
      const int whole = ranks / group * group, rank = request_.ranks.rank();
      const auto part = request_.ranks.split(rank < whole ? rank / group : ranks, rank);
      tables[std::to_string(group)] = all_reduces(*part, rank < whole);
    }
    file_["node"]["all_reduce"] = std::move(tables);
    say("messages");
    const double small = message(1), large = message(1 << 22);
    file_["node"]["latency"] = small;
    file_["node"]["bandwidth"] = 4.0 * (1 << 22) / std::max(large - small, 1e-9);
    file_["network"] = file_["node"];  // further hosts would need a network of their own
    file_["network"].erase("all_reduce");
  }

  ordered_json all_reduces(collectives::Communicator& group, bool takes_part) {
    ordered_json points = ordered_json::array();
    constexpr std::int64_t kMost = std::int64_t{1} << 24;
    // As gradients: in memory that all ranks map.
    const Tensor data =
        Tensor::empty({kMost}, DType::f32, group.memory_resource(), MemoryTag::communication);
    request_.kernels.elementwise().fill(data.view(), 0.01F, {});
    double before = 0;
    for (std::int64_t count = 1; count <= kMost; count *= 8) {
      double seconds = bench_.time([&] {
        if (takes_part)
          group
              .all_reduce(data.view().data, data.view().data, count, DType::f32,
                          collectives::ReduceOp::sum)
              ->wait();
      });
      seconds = before = std::max(seconds, before);
      points.push_back({4 * count, seconds});
    }
    return points;
  }

  // Neighbours exchange, as the stages of a pipeline do.
  double message(std::int64_t count) {
    const int rank = request_.ranks.rank(), peer = rank ^ 1;
    const bool takes_part = peer < request_.ranks.size();
    const Tensor out = filled({count}, DType::f32), in = filled({count}, DType::f32);
    return bench_.time([&] {
      if (!takes_part) return;
      request_.ranks.begin_group();
      request_.ranks.send(out.view().data, count, DType::f32, peer);
      request_.ranks.recv(in.view().data, count, DType::f32, peer);
      request_.ranks.end_group()->wait();
    });
  }

  void software() {
    say("a training step");
    const DType dtype = request_.dtypes.front();
    file_ = fit_to_step(std::move(file_),
                        trace_step(bench_, request_.kernels, request_.memory, dtype), dtype);
  }

  static constexpr std::int64_t kCold = std::int64_t{1} << 26;  // elements
  const CalibrateRequest& request_;
  RankBench bench_;
  ordered_json file_;
};

}  // namespace

ordered_json calibrate(const CalibrateRequest& request) { return Calibration(request).run(); }

}  // namespace shoal::parallel
