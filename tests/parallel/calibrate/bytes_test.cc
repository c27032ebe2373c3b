// The predicted bytes that a block keeps and needs at its peak, compared with those of a running
// block.
#include "nn/fixture.h"
#include "support/ranks.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/communicator_options.h"
#include "shoal/nn/layers/lora.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/parallel/pipeline/measure_units.h"
#include "shoal/parallel/predict/unit_times.h"

namespace shoal::parallel {
namespace {

// The layers that have adapters. Where some have, everything else is frozen.
enum class Adapters : std::uint8_t { none, of_queries, everywhere };

TEST(PredictedBytes, AreThoseOfABlockThatRuns) {
  const nlohmann::json gpt2 = {{"model_type", "gpt2"}, {"vocab_size", 61}, {"n_embd", 96},
                               {"n_head", 4},          {"n_layer", 2},     {"n_positions", 64}};
  const nlohmann::json llama = {{"model_type", "llama"},    {"vocab_size", 61},
                                {"hidden_size", 96},        {"num_attention_heads", 4},
                                {"num_key_value_heads", 2}, {"num_hidden_layers", 2},
                                {"intermediate_size", 256}, {"max_position_embeddings", 64}};
  for (const auto& [config, adapters] :
       {std::pair{gpt2, Adapters::none}, std::pair{llama, Adapters::none},
        std::pair{gpt2, Adapters::of_queries}, std::pair{llama, Adapters::of_queries},
        std::pair{gpt2, Adapters::everywhere}, std::pair{llama, Adapters::everywhere}})
    test::run_thread_ranks(1, [&](const World& world, Store& store) {
      const auto group = collectives::make_communicator(world, store, {});
      nn::Fixture room;
      const auto model = nn::make_causal_lm(config, "test");
      if (adapters == Adapters::of_queries) nn::add_lora(*model, {.r = 4});
      if (adapters == Adapters::everywhere)
        nn::add_lora(*model, {.r = 4, .target_modules = {"all-linear"}});
      const Tensor ids = Tensor::zeros({4, 64}, DType::i32, room.memory, MemoryTag::data);
      const Microbatch batch{.input = {ids, ids, {}, {}}};
      const UnitCost measured = measure_units(room.context, *model, batch, *group, {})[1];
      const ModelShape shape = model_shape(*model);
      const RankBatch rows{.rows = 4, .length = 64};
      const double kept = kept_bytes(shape.units[1], shape.channels, rows);
      const double peak = kept + working_bytes(shape.units[1], shape.channels, rows);
      const std::string name =
          fmt::format("{}, adapters {}", config["model_type"].dump(), static_cast<int>(adapters));
      EXPECT_NEAR(kept / static_cast<double>(measured.activation_bytes), 1, 0.02) << name;
      EXPECT_NEAR(peak / static_cast<double>(measured.peak_bytes), 1, 0.02) << name;
    });
}

}  // namespace
}  // namespace shoal::parallel
