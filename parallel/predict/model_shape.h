// The sizes of a model that its costs depend on. Pure.
//
//   const auto model = nn::make_causal_lm(config, "config.json");   // no values, no memory
//   const ModelShape shape = model_shape(*model);
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shoal/nn/layers/chain.h"
#include "shoal/nn/optim/update_rule.h"

namespace shoal::parallel {

// x [M, in] · W [in, out]
struct ProductShape {
  std::int64_t in = 0, out = 0;
  bool frozen = false;   // W gets no gradient
  bool keeps = !frozen;  // x is kept for a gradient: W's, or that of the layer's adapter
};

// f32 numbers that an update rule keeps: those that ranks divide as the elements, and those of rows
// and columns that every rank has whole (nn::RuleState).
struct StateNumbers {
  std::int64_t states = 0, means = 0;
};

struct UnitShape {
  std::string name;
  std::vector<ProductShape> products;  // of every position
  // Attention: heads of `head_width` elements; `key_heads` of them have keys and values. 0: none.
  std::int64_t heads = 0, key_heads = 0, head_width = 0;
  bool causal = true;  // attention hides later positions
  double share = 1;    // of the positions that the unit computes
  std::int64_t norms = 0;
  std::int64_t inner = 0;       // width at which activations are computed; 0: none
  std::int64_t branches = 1;    // tensors of that width: 2 in a gated MLP
  std::int64_t vocabulary = 0;  // classes of the loss; 0: the unit computes none
  // Elements of each parameter, as in UnitCost: the key identifies a parameter that units share.
  std::map<int, std::int64_t> parameters;
  std::set<int> frozen = {};                // those that are not trained
  std::map<int, StateNumbers> states = {};  // of those that are
};

struct ModelShape {
  std::int64_t channels = 0;
  std::vector<UnitShape> units;
  int gradient_reads = 1;         // UpdateRule::gradient_reads()
  std::int64_t elements() const;  // of all parameters, shared ones once
};

// Elements and state of the parameters of some units, shared ones once.
struct Elements {
  std::int64_t trained = 0, frozen = 0;
  StateNumbers rule = {};
};
Elements elements_of(std::span<const UnitShape> units);

// Reads them from a model whose parameters need no values yet. `rule` updates it; null: AdamW.
ModelShape model_shape(const nn::Chain& chain, const nn::UpdateRule* rule = nullptr);

// Multiplications and additions of one forward pass over `rows` samples of `length` positions, in
// FLOP. Scores of hidden positions count, as in the published formulas.
double unit_flops(const UnitShape& unit, std::int64_t rows, std::int64_t length);
double forward_flops(const ModelShape& model, std::int64_t rows, std::int64_t length);
// The same of forward and backward, which computes no gradients of frozen weights.
double training_flops(const ModelShape& model, std::int64_t rows, std::int64_t length);

}  // namespace shoal::parallel
