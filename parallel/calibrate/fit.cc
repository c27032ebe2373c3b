#include "shoal/parallel/calibrate/fit.h"

#include <algorithm>
#include <initializer_list>

#include "shoal/parallel/predict/machine.h"
#include "shoal/parallel/predict/unit_times.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

double sum_of(const json& record, std::initializer_list<const char*> names) {
  double sum = 0;
  for (const char* name : names) sum += field_or(record, name, 0.0, "a record of a step");
  return sum;
}

// How many times as long as predicted the phases took; 1 if either took no time.
double times_as_long(const json& predicted, const json& measured,
                     std::initializer_list<const char*> names) {
  const double expected = sum_of(predicted, names), took = sum_of(measured, names);
  return expected > 0 && took > 0 ? took / expected : 1;
}

void scale(ordered_json& object, const char* name, double otherwise, double factor) {
  object[name] = field_or(object, name, otherwise, "the machine") * factor;
}

double ratio(double predicted, double measured) {
  return std::max(predicted, 1e-9) / std::max(measured, 1e-9);
}

// The traced step on a machine without overheads, in seconds.
struct PlainStep {
  PassTimes blocks;
  double head = 0, loss = 0, layers = 0;
};

PlainStep plain_step(const Machine& machine, const TracedModel& traced, DType dtype) {
  const RankBatch batch{.rows = traced.rows, .length = traced.length, .dtype = dtype};
  PlainStep step;
  for (const UnitShape& unit : traced.shape.units) {
    const UnitTimes times = unit_times(machine, unit, traced.shape.channels, batch);
    for (const PassTimes& pass : {times.forward, times.backward}) {
      if (unit.vocabulary > 0) {
        step.head += pass.products;
        step.loss += pass.loss;
      } else {
        step.blocks.products += pass.products;
        step.blocks.attention += pass.attention;
      }
      step.blocks.passes += pass.passes;
    }
    step.layers += unit.heads > 0 ? 1 : 0;
  }
  return step;
}

}  // namespace

ordered_json fit_to_step(ordered_json machine, const TracedModel& traced, DType dtype) {
  const Machine plain = read_machine(machine, "the machine without overheads");
  const auto [blocks, head, loss, layers] = plain_step(plain, traced, dtype);
  const StepTrace& trace = traced.trace;
  machine["traced"] = {{"config", traced.config},
                       {"rows", traced.rows},
                       {"length", traced.length},
                       {"seconds",
                        {{"products", trace.products},
                         {"attention", trace.attention},
                         {"passes", trace.passes},
                         {"head", trace.head},
                         {"optimizer", trace.optimizer},
                         {"between", trace.between}}}};
  machine["products"]["efficiency"] = ratio(blocks.products, trace.products);
  machine["products"]["attention_efficiency"] = ratio(blocks.attention, trace.attention);
  const double head_products = head * ratio(trace.products, blocks.products);
  const double bytes =
      update_bytes(elements_of(traced.shape.units), traced.shape.gradient_reads, dtype, 1);
  machine["software"] = {{"name", "Shoal"},
                         // Ranks that compute on all cores leave none to whatever moves their data.
                         {"overlaps_gradients", false},
                         {"overlaps_messages", false},
                         {"pass_factor", ratio(trace.passes, blocks.passes)},
                         {"head_factor", std::max(trace.head - head_products, 1e-6) / loss},
                         {"optimizer_efficiency", ratio(bytes / plain.bandwidth, trace.optimizer)},
                         {"block_launch", std::max(trace.between, 0.0) / (3 * layers)},
                         {"sharpness", 1}};  // the host adds its time to that of operations
  return machine;
}

ordered_json fit_machine(ordered_json machine, const json& predicted, const json& measured) {
  const double computing =
      times_as_long(predicted, measured, {"forward_seconds", "backward_seconds"});
  const double updating = times_as_long(predicted, measured, {"optimizer_seconds"});
  const double summing = times_as_long(predicted, measured, {"communication_seconds"});
  const Software defaults;
  ordered_json& products = machine["products"];
  scale(products, "efficiency", 1, 1 / computing);
  scale(products, "attention_efficiency", 1, 1 / computing);
  ordered_json& software = machine["software"];
  scale(software, "pass_factor", defaults.pass_factor, computing);
  scale(software, "head_factor", defaults.head_factor, computing);
  scale(software, "block_launch", defaults.block_launch, computing);
  scale(software, "optimizer_efficiency", defaults.optimizer_efficiency, 1 / updating);
  if (!machine.contains("node")) return machine;
  ordered_json& node = machine["node"];
  if (node.contains("bandwidth")) scale(node, "bandwidth", 1, 1 / summing);
  if (node.contains("all_reduce"))
    for (auto& [ranks, table] : node["all_reduce"].items())
      for (auto& point : table) point[1] = point[1].get<double>() * summing;
  return machine;
}

}  // namespace shoal::parallel
