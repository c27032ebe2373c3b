// A kind of machine as data: what its devices compute, move and cost. Read from JSON.
//
//   const Machine machine = find_machine("a100-megatron-deepspeed");   // or "my-machine.json"
//
// Sizes are bytes, times seconds, rates per second. `machines/` has the files that are built in,
// and says where each number comes from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::parallel {

// Measured seconds of products of x [rows, in] and W [in, out]: rates are interpolated over the
// logarithms of the sizes, and kept beyond them.
struct ProductTable {
  std::vector<double> rows, in, out;  // ascending
  std::vector<double> seconds;        // by rows, then in, then out
  double at(double rows_wanted, double in_wanted, double out_wanted) const;
};
struct MeasuredProducts {
  ProductTable forward, input_gradient, weight_gradient;
};

// Matrix products. One of m x n x k takes 2·m·n·k / (rate · efficiency · k / (k + half_depth)).
// With a tile, the mean of that and of the time for whole waves of tiles over all processors. With
// measured products of the dtype, their time / efficiency instead.
struct ProductRates {
  std::map<DType, double> flops = {};  // FLOP/s of a device by dtype, as its maker states
  double efficiency = 1;               // the share of it that large products reach
  double half_depth = 0;               // k at which half of that is reached
  double attention_efficiency = 1;     // the same for attention's products
  std::int64_t tile = 0;               // edge of an output tile; 0: no waves
  std::int64_t processors = 1;         // tiles that are computed at once
  std::map<DType, MeasuredProducts> measured = {};
};

// Seconds by bytes: points in ascending order. Linear between them, and along the last two beyond.
struct TimeTable {
  std::vector<std::pair<double, double>> points = {};
  double at(double bytes) const;
};

struct Links {
  double bandwidth = 1;  // bytes/s: inside a node of a rank, between nodes of a node
  double latency = 0;
  // Measured all_reduces inside a node, by ranks. Without one, a ring over `bandwidth`.
  std::map<int, TimeTable> all_reduce = {};
};

// The properties of the training software on the machine.
struct Software {
  std::string name = "Shoal";
  bool fused_attention = true;      // the scores are never written to memory
  bool overlaps_gradients = true;   // gradients are summed while backward runs
  bool overlaps_messages = true;    // a pipeline's messages travel while stages compute
  bool splits_messages = false;     // each tensor-parallel rank sends its share, and gathers
  bool skips_masked_scores = true;  // causal attention computes half of the scores
  double gradient_bytes = 4;        // of an element while gradients are summed
  double pass_factor = 1;           // bytes of element-wise passes beside those of unit_times.cc
  double head_factor = 1;           // passes over the logits
  // Times on the host, which the device does not hide: it takes the larger of both.
  double block_launch = 0;            // of forward of one block; backward takes twice that
  double launch_per_rank = 0;         // share by which each further tensor-parallel rank raises it
  double sharpness = 8;               // p of (device^p + host^p)^(1/p); large: the larger one alone
  double microbatch_fixed = 0;        // of each microbatch on each stage
  double step_fixed = 0;              // of each step
  double optimizer_efficiency = 0.7;  // share of the memory's bandwidth that the update reaches
};

// Measured time of one block, forward and backward, as a factor on what is computed otherwise. It
// holds for blocks of this width, split over this many ranks. Between two token counts the factor
// is interpolated over their logarithm.
struct BlockFactor {
  std::int64_t channels = 0;
  int tensor = 1;
  std::int64_t tokens = 0;  // of a microbatch
  double factor = 1;
};

// The rental price, as an example with its date. Users give their own.
struct Price {
  double dollars_per_hour = 0;  // of a node; 0: unknown
  std::string date = {}, region = {};
};

struct Machine {
  std::string name, description;
  int devices = 1;             // of a node; a rank each
  double memory = 0;           // of a device
  double bandwidth = 1;        // of its memory
  double copy_efficiency = 1;  // the share of it that element-wise passes reach
  ProductRates products = {};
  Links node = {}, network = {};
  double network_tensor_efficiency = 1;  // share of the network that a group over nodes reaches
  double network_efficiency = 1;         // the same for gradients
  double network_rail_efficiency = 1;    // the same where a group has one rank on each node
  Software software = {};
  std::vector<BlockFactor> blocks = {};
  Price price = {};

  double block_factor(std::int64_t channels, int tensor, std::int64_t tokens) const;
};

// Throws invalid_argument or corrupt_data that names `source` and the field at fault.
Machine read_machine(const nlohmann::json& json, std::string_view source);
// A machine that is built in, by its name, or a file that ends in .json. Throws not_found with the
// nearest name.
Machine find_machine(const std::string& name_or_file);
std::vector<std::string> machine_names();

}  // namespace shoal::parallel
