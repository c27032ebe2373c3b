#include "shoal/parallel/predict/machine.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <tuple>

#include "shoal/parallel/predict/built_in_machines.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::parallel {
namespace {

using nlohmann::json;

// A number above 0 (or 0, if `zero`).
void positive(const JsonFields& fields, std::string_view key, double& out, bool zero = false) {
  fields.number(key, out);
  if (std::isfinite(out) && (out > 0 || (out == 0 && zero))) return;
  if (!fields.has(key)) fields.fail(fmt::format("lacks {}", key));
  fields.wrong(key, *fields.find(key), zero ? "a number from 0" : "a number above 0");
}

TimeTable read_table(const json& value, std::string_view file) {
  TimeTable table;
  for (const auto& point : field_as<std::vector<std::vector<double>>>(value, "all_reduce", file)) {
    SHOAL_CHECK(point.size() == 2 && point[0] >= 0 && point[1] >= 0,
                "{}: a point of all_reduce is [bytes, seconds]", file);
    SHOAL_CHECK(table.points.empty() || table.points.back().first < point[0],
                "{}: the points of all_reduce ascend; {} does not", file, point[0]);
    table.points.emplace_back(point[0], point[1]);
  }
  SHOAL_CHECK(table.points.size() >= 2, "{}: all_reduce needs two points or more", file);
  return table;
}

Links read_links(const json& value, const std::string& file) {
  const JsonFields fields(value, file);
  Links links;
  positive(fields, "bandwidth", links.bandwidth);
  positive(fields, "latency", links.latency, true);
  if (const json* const tables = fields.find("all_reduce")) {
    if (!tables->is_object()) fields.wrong("all_reduce", *tables, "an object by ranks");
    for (const auto& [ranks, table] : tables->items()) {
      int number = 0;
      const auto [end, error] = std::from_chars(ranks.data(), ranks.data() + ranks.size(), number);
      if (error != std::errc() || end != ranks.data() + ranks.size() || number < 2)
        fields.fail(fmt::format("has all_reduce of \"{}\" ranks", shortened(ranks)));
      links.all_reduce[number] = read_table(table, file);
    }
  }
  return links;
}

ProductTable read_product_table(const json& value, const char* name, const std::string& file) {
  ProductTable table;
  for (const auto& [key, axis] :
       {std::pair{"rows", &table.rows}, {"in", &table.in}, {"out", &table.out}}) {
    *axis = need_field<std::vector<double>>(value, key, file);
    SHOAL_CHECK(!axis->empty() && axis->front() > 0 &&
                    std::ranges::adjacent_find(*axis, std::greater_equal<>()) == axis->end(),
                "{} has {} that do not ascend from above 0", file, key);
  }
  table.seconds = need_field<std::vector<double>>(value, name, file);
  const std::size_t all = table.rows.size() * table.in.size() * table.out.size();
  SHOAL_CHECK(table.seconds.size() == all &&
                  std::ranges::all_of(table.seconds, [](double s) { return s > 0; }),
              "{} has {} of other than {} times above 0", file, name, all);
  return table;
}

void read_products(const json& value, const std::string& file, ProductRates& rates) {
  const JsonFields fields(value, file);
  if (const json* const flops = fields.find("flops")) {
    if (!flops->is_object()) fields.wrong("flops", *flops, "an object by dtype");
    const JsonFields by_dtype(*flops, file);
    for (const auto& [dtype, rate] : flops->items())
      positive(by_dtype, dtype, rates.flops[parse_dtype(dtype)]);
  }
  if (const json* const measured = fields.find("measured")) {
    if (!measured->is_object()) fields.wrong("measured", *measured, "an object by dtype");
    const std::string source = file + ".measured";
    for (const auto& [dtype, tables] : measured->items())
      rates.measured[parse_dtype(dtype)] = {
          .forward = read_product_table(tables, "forward", source),
          .input_gradient = read_product_table(tables, "input_gradient", source),
          .weight_gradient = read_product_table(tables, "weight_gradient", source)};
  }
  positive(fields, "efficiency", rates.efficiency);
  positive(fields, "half_depth", rates.half_depth, true);
  positive(fields, "attention_efficiency", rates.attention_efficiency);
  fields.integer("tile", rates.tile);
  fields.integer("processors", rates.processors);
  if (rates.tile < 0 || rates.processors < 1) fields.fail("has a tile or processors below 0");
}

void read_software(const json& value, const std::string& file, Software& software) {
  const JsonFields fields(value, file);
  fields.text("name", software.name);
  fields.boolean("fused_attention", software.fused_attention);
  fields.boolean("overlaps_gradients", software.overlaps_gradients);
  fields.boolean("overlaps_messages", software.overlaps_messages);
  fields.boolean("splits_messages", software.splits_messages);
  fields.boolean("skips_masked_scores", software.skips_masked_scores);
  positive(fields, "gradient_bytes", software.gradient_bytes);
  positive(fields, "pass_factor", software.pass_factor);
  positive(fields, "head_factor", software.head_factor);
  positive(fields, "block_launch", software.block_launch, true);
  positive(fields, "launch_per_rank", software.launch_per_rank, true);
  positive(fields, "sharpness", software.sharpness);
  positive(fields, "microbatch_fixed", software.microbatch_fixed, true);
  positive(fields, "step_fixed", software.step_fixed, true);
  positive(fields, "optimizer_efficiency", software.optimizer_efficiency);
}

std::vector<BlockFactor> read_blocks(const json& value, const std::string& file) {
  if (!value.is_array()) wrong_field(value, "blocks", file, "a list");
  std::vector<BlockFactor> blocks;
  for (const json& one : value) {
    const JsonFields fields(one, file);
    BlockFactor block;
    fields.integer("channels", block.channels);
    fields.integer("tensor", block.tensor);
    fields.integer("tokens", block.tokens);
    positive(fields, "factor", block.factor);
    if (block.channels < 1 || block.tensor < 1 || block.tokens < 1)
      fields.fail("has a block without channels, tensor and tokens");
    blocks.push_back(block);
  }
  std::ranges::sort(
      blocks, {}, [](const BlockFactor& b) { return std::tuple(b.channels, b.tensor, b.tokens); });
  return blocks;
}

}  // namespace

double TimeTable::at(double bytes) const {
  auto next = std::ranges::upper_bound(points, bytes, {}, &std::pair<double, double>::first);
  next = std::clamp(next, points.begin() + 1, points.end() - 1);
  const auto& [x0, y0] = *(next - 1);
  const auto& [x1, y1] = *next;
  return std::max(y0 + (bytes - x0) * (y1 - y0) / (x1 - x0), 0.0);
}

double ProductTable::at(double rows_wanted, double in_wanted, double out_wanted) const {
  struct Place {
    std::size_t index;
    double next;  // share of index + 1
  };
  const auto place = [](const std::vector<double>& axis, double wanted) {
    const auto above = std::ranges::upper_bound(axis, wanted);
    if (above == axis.begin()) return Place{0, 0};
    if (above == axis.end()) return Place{axis.size() - 1, 0};
    return Place{static_cast<std::size_t>(above - axis.begin()) - 1,
                 std::log(wanted / above[-1]) / std::log(*above / above[-1])};
  };
  const Place r = place(rows, rows_wanted), i = place(in, in_wanted), o = place(out, out_wanted);
  double rate = 0;  // logarithm of rows x in x out in a second
  for (std::size_t corner = 0; corner < 8; ++corner) {
    double share = 1;
    const auto at = [&](const Place& of, std::size_t bit) {
      const bool next = (corner & bit) != 0;
      share *= next ? of.next : 1 - of.next;
      return of.index + (next && of.next > 0 ? 1 : 0);
    };
    const std::size_t a = at(r, 1), b = at(i, 2), c = at(o, 4);
    rate +=
        share * std::log(rows[a] * in[b] * out[c] / seconds[(a * in.size() + b) * out.size() + c]);
  }
  return rows_wanted * in_wanted * out_wanted / std::exp(rate);
}

double Machine::block_factor(std::int64_t channels, int tensor, std::int64_t tokens) const {
  const BlockFactor* below = nullptr;
  const BlockFactor* above = nullptr;
  for (const BlockFactor& block : blocks) {
    if (block.channels != channels || block.tensor != tensor) continue;
    if (block.tokens <= tokens) below = &block;
    if (block.tokens >= tokens && above == nullptr) above = &block;
  }
  if (below == nullptr && above == nullptr) return 1;
  if (below == nullptr || above == nullptr || below == above)
    return (below != nullptr ? below : above)->factor;
  const double share =
      std::log(static_cast<double>(tokens) / static_cast<double>(below->tokens)) /
      std::log(static_cast<double>(above->tokens) / static_cast<double>(below->tokens));
  return below->factor + share * (above->factor - below->factor);
}

Machine read_machine(const json& value, std::string_view source) {
  const std::string file(source);
  const JsonFields fields(value, source);
  Machine machine;
  fields.text("name", machine.name);
  fields.text("description", machine.description);
  fields.integer("devices", machine.devices);
  if (machine.devices < 1) fields.fail("has no devices");
  positive(fields, "memory", machine.memory);
  positive(fields, "bandwidth", machine.bandwidth);
  positive(fields, "copy_efficiency", machine.copy_efficiency);
  positive(fields, "network_efficiency", machine.network_efficiency);
  machine.network_rail_efficiency = machine.network_efficiency;
  positive(fields, "network_rail_efficiency", machine.network_rail_efficiency);
  positive(fields, "network_tensor_efficiency", machine.network_tensor_efficiency);
  read_products(need_field<json>(value, "products", source), file + ": products", machine.products);
  SHOAL_CHECK(!machine.products.flops.empty(), "{} lacks products.flops", source);
  if (const json* const links = fields.find("node"))
    machine.node = read_links(*links, file + ": node");
  if (const json* const links = fields.find("network"))
    machine.network = read_links(*links, file + ": network");
  if (const json* const software = fields.find("software"))
    read_software(*software, file + ": software", machine.software);
  if (const json* const blocks = fields.find("blocks"))
    machine.blocks = read_blocks(*blocks, file + ": blocks");
  if (const json* const price = fields.find("price")) {
    const JsonFields cost(*price, source);
    positive(cost, "dollars_per_hour", machine.price.dollars_per_hour, true);
    cost.text("date", machine.price.date);
    cost.text("region", machine.price.region);
  }
  return machine;
}

std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const BuiltInMachine& machine : built_in_machines()) names.emplace_back(machine.name);
  return names;
}

Machine find_machine(const std::string& name) {
  if (name.ends_with(".json")) return read_machine(read_json_file(name), name);
  for (const BuiltInMachine& machine : built_in_machines())
    if (machine.name == name) return read_machine(parse_json(machine.json, name), name);
  const std::vector<std::string> names = machine_names();
  const std::string nearest = nearest_name(name, names);
  throw Error(ErrorCode::not_found, fmt::format("there is no machine '{}'", name),
              nearest.empty() ? fmt::format("machines: {}; or a file that ends in .json",
                                            fmt::join(names, ", "))
                              : fmt::format("did you mean {}? Machines: {}; or a file that ends in "
                                            ".json",
                                            nearest, fmt::join(names, ", ")));
}

}  // namespace shoal::parallel
