// Rotary positions in config.json: rope_theta beside rope_scaling or, since transformers 5, both in
// rope_parameters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/nn/layers/decoder_layers.h"

namespace shoal::nn {

// Stretches rotary positions beyond those of pretraining. Absent numbers have transformers'
// defaults.
struct RopeScaling {
  // default, linear, dynamic, yarn (Peng et al., 2023), longrope (Ding et al., 2024), llama3 or
  // proportional
  std::string rope_type = "default";
  std::optional<double> factor{}, attention_factor{}, beta_fast{}, beta_slow{}, mscale{},
      mscale_all_dim{}, low_freq_factor{}, high_freq_factor{}, partial_rotary_factor{};
  std::optional<std::int64_t> original_max_position_embeddings{};
  std::vector<double> short_factor{}, long_factor{};  // of longrope: a divisor for each frequency
  bool truncate = true;                               // of yarn: borders between whole frequencies

  // Reads rope_scaling or rope_parameters; the latter may contain rope_theta, too.
  void read(const nlohmann::json& object, std::string_view name, double& rope_theta);
  nlohmann::json to_json() const;  // rope_scaling as in transformers 4; null for "default"
  // Throws invalid_argument on an unknown type, and on numbers that it needs or cannot have.
  void check(std::int64_t head_dim) const;

  // The model has `positions` positions. f32, as in transformers.
  RotaryAngles angles(double rope_theta, std::int64_t head_dim, std::int64_t positions) const;
};

}  // namespace shoal::nn
