// GPT-2: configuration, initialisation, checkpointing, random coordinates, files, generation.
#include <cmath>
#include <filesystem>
#include <limits>

#include "fixture.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/generate.h"
#include "shoal/nn/models/generation/scores.h"
#include "shoal/nn/models/gpt2/presets.h"
#include "shoal/nn/models/huggingface.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

DecoderConfig small() {
  DecoderConfig config = DecoderConfig::of("gpt2");
  config.vocab_size = 61;
  config.max_position_embeddings = 24;
  config.hidden_size = 24;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 3;
  return config;
}

std::vector<std::int32_t> tokens(std::size_t count, std::int32_t vocabulary, std::uint32_t seed) {
  std::vector<std::int32_t> ids(count);
  std::uint32_t state = seed;
  for (auto& id : ids) {
    state = state * 1664525u + 1013904223u;
    id = static_cast<std::int32_t>(state >> 8) % vocabulary;
  }
  return ids;
}

template <typename Fn>
std::string message_of(Fn&& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

struct Outcome {
  float loss = 0;
  std::vector<std::vector<float>> gradients;
};

struct Model : Fixture {
  explicit Model(const DecoderConfig& config = small(), DType dtype = DType::f32) : gpt2(config) {
    context.random.state = &state;
    gpt2.materialize(context, dtype);
    allocate_gradients(context, gpt2.parameters());
  }
  void run(const Tensor& ids, const Tensor& targets, Tape::Options options = {}) {
    Tape tape;
    context.tape = &tape;
    const LossOutput out = gpt2.forward(context, ids, targets);
    context.tape = nullptr;
    loss += static_cast<float>(context.read(out.loss_sum));
    tape.backward(context, out.loss, {}, options);
    tape.run_deferred();
  }
  Outcome outcome() {
    Outcome out{loss, {}};
    for (Parameter* parameter : gpt2.parameters()) {
      EXPECT_EQ(parameter->uses(), 0) << parameter->name();
      const float* data = parameter->gradient.const_data<float>();
      out.gradients.emplace_back(data, data + parameter->gradient.count());
      parameter->clear_gradient();
    }
    loss = 0;
    return out;
  }
  CausalLm gpt2;
  const testing::Reachable<kernels::StepState> reachable_state{{.step = 5}};
  kernels::StepState& state = *reachable_state;
  float loss = 0;
};

TEST(Gpt2Config, RefusesWhatItDoesNotCompute) {
  const auto read = [](const char* text) {
    nlohmann::json config = nlohmann::json::parse(text);
    if (config.is_object() && !config.contains("model_type")) config["model_type"] = "gpt2";
    return message_of([&] { DecoderConfig::from_json(config, "config.json"); });
  };
  EXPECT_THAT(read(R"({"activation_function": "relu"})"), HasSubstr("activation_function 'relu'"));
  EXPECT_THAT(read(R"({"model_type": "bert"})"), HasSubstr("model_type \"bert\""));
  EXPECT_THAT(read(R"({"add_cross_attention": true})"), HasSubstr("add_cross_attention"));
  EXPECT_THAT(read(R"({"quantization_config": {"bits": 4}})"), HasSubstr("quantization_config"));
  EXPECT_THAT(read(R"({"n_layer": "12"})"), HasSubstr("n_layer: \"12\", where an integer"));
  EXPECT_THAT(read(R"({"n_embd": 30, "n_head": 4})"), HasSubstr("n_embd 30"));
  EXPECT_THAT(read(R"({"vocab_size": -1})"), HasSubstr("vocab_size -1"));
  EXPECT_THAT(read(R"([])"), HasSubstr("config.json is not a JSON object"));
  EXPECT_EQ(read(R"({"n_inner": null, "n_ctx": 9, "summary_type": "x", "eos_token_id": null})"),
            "no error");
  EXPECT_THAT(message_of([] { gpt2_preset("gpt3"); }), HasSubstr("gpt2-xl"));
}

TEST(Gpt2Config, CountsItsParameters) {
  const auto count = [](const DecoderConfig& config) {
    const CausalLm model(config);
    std::int64_t all = 0;
    for (const Parameter* parameter : model.parameters()) all += parameter->shape().count();
    return all;
  };
  EXPECT_EQ(count(gpt2_preset("gpt2")), 124'439'808);
  EXPECT_EQ(count(gpt2_preset("gpt2-medium")), 354'823'168);
  EXPECT_EQ(count(gpt2_preset("gpt2-large")), 774'030'080);
  EXPECT_EQ(count(gpt2_preset("gpt2-xl")), 1'557'611'200);
  DecoderConfig config = small();
  const std::int64_t tied = count(config);
  config.tie_word_embeddings = false;
  EXPECT_EQ(count(config) - tied, config.vocab_size * config.hidden_size);
}

TEST(Gpt2, StartsAsGpt2Does) {
  DecoderConfig config = small();
  config.hidden_size = 96;
  config.num_hidden_layers = 8;
  Model model(config);
  for (const Parameter* parameter : model.gpt2.parameters()) {
    const std::string& name = parameter->name();
    const double rms = testing::norm_of(parameter->value) /
                       std::sqrt(static_cast<double>(parameter->shape().count()));
    double want = 0.02;
    if (name.ends_with("c_proj.weight")) want = 0.02 / 4;
    if (name.ends_with("bias")) want = 0;
    if (name.find("ln_") != std::string::npos && name.ends_with("weight")) want = 1;
    EXPECT_NEAR(rms, want, 0.05 * want) << name;
    EXPECT_EQ(parameter->decays(), parameter->shape().rank() == 2) << name;
  }
  // In bf16 the bits are the same, rounded. Another seed gives other bits.
  Model half(config, DType::bf16);
  const auto* a = model.gpt2.parameters().front();
  const auto* b = half.gpt2.parameters().front();
  EXPECT_EQ(bfloat16(a->value.const_data<float>()[7]), b->value.const_data<bfloat16>()[7]);
  const float before = a->value.const_data<float>()[7];
  model.context.random.seed = 43;
  model.gpt2.materialize(model.context, DType::f32);
  EXPECT_NE(before, a->value.const_data<float>()[7]);
}

class Gpt2Paths : public ::testing::TestWithParam<DType> {};

TEST_P(Gpt2Paths, CheckpointingAndDeferralChangeNoBit) {
  Model model(small(), GetParam());
  const Tensor ids = model.ids({2, 17}, tokens(34, 61, 1));
  const Tensor targets = model.ids({2, 17}, tokens(34, 61, 2));
  model.run(ids, targets);
  const Outcome plain = model.outcome();
  for (const bool checkpointing : {false, true})
    for (const bool deferred : {false, true}) {
      model.gpt2.set_gradient_checkpointing(checkpointing);
      model.run(ids, targets, {deferred});
      const Outcome other = model.outcome();
      EXPECT_EQ(plain.loss, other.loss);
      for (std::size_t i = 0; i < plain.gradients.size(); ++i)
        EXPECT_EQ(plain.gradients[i], other.gradients[i])
            << model.gpt2.parameters()[i]->name() << " checkpointing " << checkpointing
            << " deferred " << deferred;
    }
}
INSTANTIATE_TEST_SUITE_P(DTypes, Gpt2Paths, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& test) { return std::string(to_string(test.param)); });

// A chain runs in pieces on separate tapes, as pipeline stages do it.
TEST(Gpt2, RunsUnitByUnitWithTheSameBits) {
  Model model;
  ASSERT_EQ(model.gpt2.units(), 5);
  EXPECT_EQ(model.gpt2.unit_name(0), "embeddings");
  EXPECT_EQ(model.gpt2.unit_name(2), "h.1");
  EXPECT_EQ(model.gpt2.unit_name(4), "head");
  std::size_t read = 0;
  for (int unit = 0; unit < 5; ++unit) read += model.gpt2.unit_parameters(unit).size();
  EXPECT_EQ(read, model.gpt2.parameters().size() + 1) << "the tied table is read by two units";
  const ChainInput input{
      model.ids({2, 17}, tokens(34, 61, 1)), model.ids({2, 17}, tokens(34, 61, 2)), {}, {}};
  model.run(input.ids, input.targets);
  const Outcome whole = model.outcome();
  for (const int group : {0, 1, 2, 3})
    for (const int cut : {1, 2, 3}) {
      Context& context = model.context;
      context.begin_forward();
      Tape first, second;
      context.tape = &first;
      const Value sent =
          forward_units(context, model.gpt2, 0, cut, {}, input, group).collapse(context);
      context.tape = &second;
      const Value received = second.leaf(sent.tensor);
      const LossOutput out = model.gpt2.forward_head(
          context, forward_units(context, model.gpt2, cut, 4, {received, {}, {}}, input, group),
          input);
      context.tape = nullptr;
      model.loss = static_cast<float>(model.context.read(out.loss_sum));
      second.backward(context, out.loss);
      first.backward(context, sent, second.gradient(received));
      const Outcome pieces = model.outcome();
      EXPECT_EQ(pieces.loss, whole.loss);
      for (std::size_t i = 0; i < whole.gradients.size(); ++i)
        EXPECT_EQ(pieces.gradients[i], whole.gradients[i])
            << model.gpt2.parameters()[i]->name() << " cut at " << cut << ", groups of " << group;
    }
  EXPECT_THAT(message_of([&] { forward_units(model.context, model.gpt2, 0, 5, {}, input); }),
              HasSubstr("units [0, 5) of a chain of 5"));
}

// Logs the units in the order in which the observer is called, and checks that the calls are
// nested.
class Log final : public UnitObserver {
 public:
  void before_forward(int unit, int next) override { enter("F", unit, next); }
  void after_forward(int unit) noexcept override { leave(unit); }
  void before_backward(int unit, int next) override { enter("B", unit, next); }
  void after_backward(int unit) noexcept override { leave(unit); }
  std::string text;
  int inside = -1;

 private:
  void enter(const char* what, int unit, int next) {
    EXPECT_EQ(inside, -1) << what << unit;
    inside = unit;
    text += fmt::format("{}{}>{} ", what, unit, next);
  }
  void leave(int unit) noexcept {
    EXPECT_EQ(inside, unit);
    inside = -1;
  }
};

TEST(Gpt2, CallsAnObserverForItsUnits) {
  Model model(small(), DType::f32);
  const ChainInput input{
      model.ids({2, 17}, tokens(34, 61, 1)), model.ids({2, 17}, tokens(34, 61, 2)), {}, {}};
  model.run(input.ids, input.targets);
  const Outcome plain = model.outcome();
  const std::string forward = "F0>1 F1>2 F2>3 F3>4 F4>-1 ";
  const std::string wanted[] = {forward + "B4>3 B3>2 B2>1 B1>0 B0>-1 ",
                                forward + "B4>3 F3>-1 B3>2 F2>-1 B2>1 F1>-1 B1>0 B0>-1 ",
                                forward + "B4>3 F3>-1 B3>1 F1>2 F2>-1 B2>1 B1>0 B0>-1 ",
                                forward + "B4>1 F1>2 F2>3 F3>-1 B3>2 B2>1 B1>0 B0>-1 "};
  for (const int group : {0, 1, 2, 3}) {
    Context& context = model.context;
    Log log;
    const auto forward_all = [&] {
      context.begin_forward();
      return forward_head(context, model.gpt2, 0,
                          forward_units(context, model.gpt2, 0, 4, {}, input, group, &log), input,
                          group, &log);
    };
    Tape tape;
    context.tape = &tape;
    const LossOutput out = forward_all();
    context.tape = nullptr;
    model.loss = static_cast<float>(model.context.read(out.loss_sum));
    tape.backward(context, out.loss);
    EXPECT_EQ(log.text, wanted[group]) << "groups of " << group;
    EXPECT_EQ(log.inside, -1);
    const Outcome observed = model.outcome();
    EXPECT_EQ(observed.loss, plain.loss);
    for (std::size_t i = 0; i < plain.gradients.size(); ++i)
      EXPECT_EQ(observed.gradients[i], plain.gradients[i]);
    log.text.clear();
    (void)forward_all();  // without a tape
    EXPECT_EQ(log.text, forward);
  }
}

TEST(Gpt2, CheckpointingNeedsLessMemory) {
  DecoderConfig config = small();
  config.num_hidden_layers = 8;
  config.hidden_size = 96;
  std::int64_t peaks[2];
  for (const bool checkpointing : {false, true}) {
    Model model(config);
    model.gpt2.set_gradient_checkpointing(checkpointing);
    model.memory.reset_peaks();
    model.run(model.ids({4, 24}, tokens(96, 61, 1)), model.ids({4, 24}, tokens(96, 61, 2)));
    peaks[checkpointing] = model.memory.usage(MemoryTag::activations).peak;
  }
  EXPECT_LT(peaks[1], peaks[0] / 2);
}

TEST(Gpt2, MicrobatchesDropTheSameElements) {
  Model model;
  const auto ids = tokens(4 * 11, 61, 1), targets = tokens(4 * 11, 61, 2);
  model.run(model.ids({4, 11}, ids), model.ids({4, 11}, targets));
  const Outcome whole = model.outcome();
  for (std::uint32_t b = 0; b < 4; ++b) {  // each sample at its position in the batch
    model.context.random.sample_first = b;
    const auto at = [&](const std::vector<std::int32_t>& all) {
      return model.ids({1, 11}, {all.begin() + 11 * b, all.begin() + 11 * (b + 1)});
    };
    model.run(at(ids), at(targets));
  }
  model.context.random.sample_first = 0;
  const Outcome parts = model.outcome();
  EXPECT_NEAR(whole.loss, parts.loss, 1e-5 * whole.loss);
  for (std::size_t i = 0; i < whole.gradients.size(); ++i) {
    double difference = 0, norm = 1e-6;
    for (std::size_t j = 0; j < whole.gradients[i].size(); ++j) {
      difference += std::pow(whole.gradients[i][j] - parts.gradients[i][j], 2);
      norm += std::pow(whole.gradients[i][j], 2);
    }
    EXPECT_LT(std::sqrt(difference / norm), 1e-4) << model.gpt2.parameters()[i]->name();
  }
  // Another step draws other random numbers.
  ++model.state.step;
  model.run(model.ids({4, 11}, ids), model.ids({4, 11}, targets));
  EXPECT_NE(model.outcome().loss, whole.loss);
}

TEST(Gpt2, TiedWeightIsReadyOnceAndLast) {
  Model model;
  std::vector<std::string> order;
  for (Parameter* parameter : model.gpt2.parameters()) {
    parameter->set_ready_hook([&](Parameter& ready) { order.push_back(ready.name()); });
    parameter->arm();
  }
  for (const bool checkpointing : {false, true}) {
    model.gpt2.set_gradient_checkpointing(checkpointing);
    for (Parameter* parameter : model.gpt2.parameters()) parameter->arm();
    order.clear();
    model.run(model.ids({1, 5}, tokens(5, 61, 1)), model.ids({1, 5}, tokens(5, 61, 2)));
    ASSERT_EQ(order.size(), model.gpt2.parameters().size());
    EXPECT_THAT(order.front(), HasSubstr("ln_f"));
    EXPECT_EQ(order.back(), "transformer.wte.weight");
    model.outcome();
  }
}

class Interop : public ::testing::TestWithParam<const char*> {};

TEST_P(Interop, OpensWhatTransformersWrote) {
  const std::string directory = testing::golden_path(std::string("interop/") + GetParam());
  const auto expected = SafetensorsFile::open(directory + "/expected.safetensors");
  Fixture room;
  CausalLm model(DecoderConfig::from_file(directory + "/config.json"));
  model.materialize(room.context, DType::f32);
  EXPECT_TRUE(model.load(directory, assign_values(room.context)).unexpected.empty());
  const Tensor ids = room.cast(expected->tensor("input_ids"), DType::i32);
  EXPECT_TRUE(testing::close_in_norm("logits", model.logits(room.context, ids),
                                     expected->tensor("logits"), 1e-5));
  // A saved copy has the same tensors, also in shards.
  for (const std::int64_t shard : {std::int64_t{1} << 40, std::int64_t{2000}}) {
    const fs::path copy = fs::path(::testing::TempDir()) /
                          (std::string("gpt2_") + GetParam() + std::to_string(shard));
    fs::remove_all(copy);
    fs::create_directories(copy);
    model.save_config(copy.string(), DType::f32);
    save_weights(copy.string(), model, parameter_values(), shard);
    EXPECT_EQ(fs::exists(copy / "model.safetensors.index.json"), shard == 2000);
    EXPECT_TRUE(fs::exists(copy / "generation_config.json"));
    CausalLm again(DecoderConfig::from_file((copy / "config.json").string()));
    again.materialize(room.context, DType::f32);
    again.load(copy.string(), assign_values(room.context));
    const Tensor a = model.logits(room.context, ids), b = again.logits(room.context, ids);
    EXPECT_TRUE(std::equal(a.const_data<float>(), a.const_data<float>() + a.count(),
                           b.const_data<float>()));
    fs::remove_all(copy);
  }
}
INSTANTIATE_TEST_SUITE_P(Forms, Interop,
                         ::testing::Values("plain", "sharded", "no_prefix", "tied_with_head",
                                           "untied", "bf16", "inverse_layer_scale"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Gpt2Files, NamesEveryTensorThatDoesNotFit) {
  Fixture room;
  const std::string directory = testing::golden_path("interop/plain");
  DecoderConfig config = DecoderConfig::from_file(directory + "/config.json");
  config.num_hidden_layers = 3;
  CausalLm deeper(config);
  deeper.materialize(room.context, DType::f32);
  const std::string missing =
      message_of([&] { deeper.load(directory, assign_values(room.context)); });
  EXPECT_THAT(missing, HasSubstr("lacks transformer.h.2.ln_1.weight"));
  EXPECT_THAT(missing, HasSubstr("and 4 more"));
  config.num_hidden_layers = 1;
  CausalLm shallower(config);
  shallower.materialize(room.context, DType::f32);
  EXPECT_EQ(shallower.load(directory, assign_values(room.context)).unexpected.size(), 12u);
  config.vocab_size = 30;
  CausalLm wider(config);
  wider.materialize(room.context, DType::f32);
  EXPECT_THAT(message_of([&] { wider.load(directory, assign_values(room.context)); }),
              HasSubstr("transformer.wte.weight is [29, 12], the model wants [30, 12]"));
  EXPECT_THAT(message_of([&] { wider.load("/nonexistent", {}); }), HasSubstr("/nonexistent"));
}

TEST(Gpt2Generate, DecodesAsTheWholeForwardDoes) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Model model(small(), dtype);
    const auto ids = tokens(2 * 12, 61, 3);
    const Tensor whole = model.gpt2.logits(model.context, model.ids({2, 12}, ids));  // [2, 12, 61]
    DecoderCache cache = model.gpt2.make_cache(12);
    std::int64_t done = 0;
    for (const std::int64_t piece : {5, 1, 1, 4, 1}) {
      std::vector<std::int32_t> part;
      for (std::int64_t b = 0; b < 2; ++b)
        for (std::int64_t t = done; t < done + piece; ++t)
          part.push_back(ids[static_cast<std::size_t>(b * 12 + t)]);
      done += piece;
      const Tensor last = model.gpt2.decode(model.context, model.ids({2, piece}, part), cache);
      for (std::int64_t b = 0; b < 2; ++b)
        EXPECT_TRUE(
            testing::close_in_norm("logits", last.narrowed(0, b, 1).reshaped({61}),
                                   whole.narrowed(0, b, 1).narrowed(1, done - 1, 1).reshaped({61}),
                                   dtype == DType::f32 ? 1e-5 : 2e-2));
    }
    EXPECT_THAT(
        message_of([&] { model.gpt2.decode(model.context, model.ids({2, 1}, {0, 0}), cache); }),
        HasSubstr("13 positions in a key-value cache of 12"));
  }
}

TEST(Gpt2Generate, IsDeterministicAndObeysItsOptions) {
  Model model;
  GenerationOptions options{.max_new_tokens = 12, .do_sample = true, .top_k = 0};
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  const auto first = generate(model.context, model.gpt2, prompt, options);
  EXPECT_EQ(first.size(), 12u);
  EXPECT_EQ(first, generate(model.context, model.gpt2, prompt, options));
  EXPECT_NE(first, generate(model.context, model.gpt2, prompt, options, 1));
  options.seed = 7;
  EXPECT_NE(first, generate(model.context, model.gpt2, prompt, options));
  // Greedy generation picks the most likely token of full forwards.
  options.do_sample = false;
  auto text = prompt;
  for (const std::int32_t token : generate(model.context, model.gpt2, prompt, options)) {
    const auto length = static_cast<std::int64_t>(text.size());
    const Tensor logits = model.gpt2.logits(model.context, model.ids({1, length}, text));
    const float* last = logits.const_data<float>() + (length - 1) * 61;
    EXPECT_EQ(token, std::max_element(last, last + 61) - last);
    text.push_back(token);
  }
  options.stop_tokens = {text[4]};
  EXPECT_LE(generate(model.context, model.gpt2, prompt, options).size(), 2u);
  int seen = 0;
  generate(model.context, model.gpt2, prompt, {}, 0, [&](std::int32_t) { return ++seen < 3; });
  EXPECT_EQ(seen, 3);
  options.max_new_tokens = 22;
  EXPECT_THAT(message_of([&] { generate(model.context, model.gpt2, prompt, options); }),
              HasSubstr("a prompt of 3 tokens and 22 new ones; the model has 24 positions"));
  EXPECT_THAT(message_of([&] { generate(model.context, model.gpt2, {}, options); }),
              HasSubstr("at least one token"));
  EXPECT_THAT(message_of([&] { generate(model.context, model.gpt2, {61}, {}); }), HasSubstr("61"));
}

TEST(Gpt2Generate, PicksFromTheHeadOfTheDistribution) {
  const float logits[] = {0.0f, 3.0f, 2.0f, 3.0f, -1.0f};
  GenerationOptions options;
  EXPECT_EQ(pick_token(options, logits, 0.99), 1);  // the lower of two equal ones
  options.do_sample = true;
  options.top_k = 2;
  EXPECT_EQ(pick_token(options, logits, 0.49), 1);
  EXPECT_EQ(pick_token(options, logits, 0.51), 3);
  options.top_k = 0;
  EXPECT_EQ(pick_token(options, logits, 0.9999), 4);
  options.top_p = 0.5;  // the two largest hold 0.82 of the mass, the first alone 0.41
  EXPECT_EQ(pick_token(options, logits, 0.9999), 3);
  options.top_p = 0.1;
  EXPECT_EQ(pick_token(options, logits, 0.9999), 1);
  options.temperature = 0;
  EXPECT_THAT(message_of([&] { options.check(5); }), HasSubstr("temperature 0"));
  options = {.do_sample = true};
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float broken : {infinity, -infinity}) {
    const float overflowed[] = {broken, -infinity, -infinity};
    EXPECT_THAT(message_of([&] { pick_token(options, overflowed, 0.5); }),
                HasSubstr("the largest logit is"));
  }
  const float masked[] = {-infinity, 1.0f, -infinity};
  EXPECT_EQ(pick_token(options, masked, 0.9999), 1);
}

// A configuration of 100 bytes that states more than the weights contain must not be built.
TEST(Gpt2Config, ALargerModelThanItsWeightsIsRefused) {
  const testing::TemporaryDirectory directory;
  nlohmann::json layers = {{"n_layer", 9'999}, {"n_embd", 1}, {"n_head", 1}},
                 words = {{"vocab_size", 1 << 24}, {"n_embd", 1024}, {"n_head", 1}},
                 inner = {{"n_layer", 1}, {"n_embd", 1024}, {"n_head", 1}, {"n_inner", 1 << 24}},
                 positions = {{"n_positions", 1 << 24}, {"n_embd", 8}, {"n_head", 1}},
                 right = {{"n_layer", 0},
                          {"n_embd", 2},
                          {"n_head", 1},
                          {"n_positions", 1},
                          {"vocab_size", 3}};
  for (nlohmann::json* config : {&layers, &words, &inner, &positions, &right}) {
    (*config)["model_type"] = "gpt2";
    check_sizes(*config, "config.json", directory.path());  // without weights any size is allowed
  }
  const std::vector<float> values(4, 0.0F);
  write_safetensors(directory.path() + "/model.safetensors",
                    {{"w", ConstView(values.data(), {4}, DType::f32)}});
  for (const auto& config : {layers, words, inner, positions})
    EXPECT_THAT(message_of([&] { check_sizes(config, "config.json", directory.path()); }),
                HasSubstr("but the weights beside it have 16 bytes"));
  check_sizes(right, "config.json", directory.path());
  for (const char* field : {"n_layer", "vocab_size", "n_embd", "n_inner", "n_positions"})
    for (const std::int64_t value : {std::int64_t{99'999}, std::int64_t{1} << 40, INT64_MAX}) {
      if (value == 99'999 && std::string_view(field) != "n_layer") continue;
      const nlohmann::json config{{"model_type", "gpt2"}, {field, value}};
      EXPECT_THAT(message_of([&] { DecoderConfig::from_json(config, "config.json"); }),
                  HasSubstr("beyond reason"))
          << field;
    }
}

}  // namespace
}  // namespace shoal::nn
