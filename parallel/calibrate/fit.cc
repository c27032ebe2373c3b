#include "shoal/parallel/calibrate/fit.h"

#include <initializer_list>

#include "shoal/parallel/predict/machine.h"
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

}  // namespace

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
