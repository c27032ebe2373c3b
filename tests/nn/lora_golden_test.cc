// Adapters of GPT-2, Llama, BERT and T5 compared with PEFT (tools/golden/make_lora.py): numbers,
// and directories both ways.
#include <functional>
#include <optional>

#include "fixture.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/adapter.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/huggingface.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/safetensors.h"

namespace shoal::nn {
namespace {

using ::testing::HasSubstr;

const std::string& base_of(const std::string& name) {
  static const std::map<std::string, std::string> bases = {
      {"gpt2", testing::golden_path("gpt2/tiny")},
      {"llama", testing::golden_path("llama/tied")},
      {"bert", testing::golden_path("encoders/bert")},
      {"t5", testing::golden_path("encoder_decoders/t5")}};
  return bases.at(name);
}

std::string adapter_of(const std::string& name) { return testing::golden_path("lora/" + name); }

LoraOptions options_of(const std::string& name) {
  LoraOptions options = read_adapter_config(adapter_of(name));
  options.base_directory = base_of(name);
  return options;
}

// A base model, and the functions that its family has by other names.
class Model {
 public:
  Model(const std::string& name, Context& context) : context_(context) {
    const std::string config = base_of(name) + "/config.json";
    if (name == "bert") {
      auto made = std::make_unique<Encoder>(EncoderConfig::from_file(config),
                                            EncoderTask::sequence_classification);
      set(*made, [raw = made.get()](const std::string& from, const AssignParameter& assign) {
        return load_encoder_weights(from, *raw, assign);
      });
      chain = std::move(made);
    } else if (name == "t5") {
      auto made = std::make_unique<EncoderDecoder>(EncoderDecoderConfig::from_file(config));
      set(*made, [raw = made.get()](const std::string& from, const AssignParameter& assign) {
        return raw->load(from, assign);
      });
      chain = std::move(made);
    } else {
      auto made = make_causal_lm(read_json_file(config), config);
      forward = [raw = made.get(), &context](const ChainInput& input) {
        return raw->forward(context, input);
      };
      logits = [raw = made.get(), &context](const ChainInput& input) {
        return raw->logits(context, input.ids, input.key_mask);
      };
      load_ = [raw = made.get()](const std::string& from, const AssignParameter& assign) {
        return raw->load(from, assign);
      };
      chain = std::move(made);
    }
  }
  LoadReport load(const std::string& directory) {
    return load_(directory, assign_values(context_));
  }

  std::unique_ptr<Chain> chain;
  std::function<LossOutput(const ChainInput&)> forward;
  std::function<Tensor(const ChainInput&)> logits;

 private:
  using Load = std::function<LoadReport(const std::string&, const AssignParameter&)>;
  template <typename Made>
  void set(Made& made, Load load) {
    forward = [&made, this](const ChainInput& input) { return made.forward(context_, input); };
    logits = [&made, this](const ChainInput& input) { return made.logits(context_, input); };
    load_ = std::move(load);
  }
  Context& context_;
  Load load_;
};

// An adapted model with PEFT's adapter, or without adapters, and the golden batch.
struct Golden {
  explicit Golden(const std::string& name) : Golden(name, options_of(name)) {}
  Golden(const std::string& name, const std::optional<LoraOptions>& options)
      : room(false, 2),
        model(name, room.context),
        file(SafetensorsFile::open(adapter_of(name) + "/case.safetensors")) {
    if (options) add_lora(*model.chain, *options);
    model.chain->materialize(room.context, DType::f32);
    allocate_gradients(room.context, model.chain->parameters());
    input.ids = get("input_ids", DType::i32);
    if (file->contains("attention_mask")) input.key_mask = get("attention_mask", DType::u8);
    if (file->contains("token_type_ids")) input.token_types = get("token_type_ids", DType::i32);
    input.targets = get("labels", DType::i32);
    const Tensor labels = testing::on_host(input.targets);
    const auto* const ids = labels.const_data<std::int32_t>();
    std::vector<std::int32_t> targets(ids, ids + labels.count());
    if (name == "gpt2" || name == "llama") {  // labels of the next position
      const std::int64_t length = labels.shape()[1];
      for (std::int64_t i = 0; i < labels.count(); ++i)
        targets[static_cast<std::size_t>(i)] = i % length + 1 < length ? ids[i + 1] : -100;
      input.targets = room.ids(labels.shape(), targets);
    }
    for (const std::int32_t target : targets) valid += target >= 0;
    if (const auto* const t5 = dynamic_cast<const EncoderDecoder*>(model.chain.get()))
      input.decoder_ids = shifted_right(labels, t5->config(), *host);
    input.loss.loss_scale = 1.0f / static_cast<float>(valid);
  }
  Tensor get(const std::string& name, DType dtype) { return room.cast(file->tensor(name), dtype); }

  std::unique_ptr<MemoryResource> host = make_host_memory();
  Fixture room;
  Model model;
  std::shared_ptr<SafetensorsFile> file;
  ChainInput input;
  std::int64_t valid = 0;
};

class LoraGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(LoraGolden, LossLogitsAndGradients) {
  Golden golden(GetParam());
  EXPECT_THAT(golden.model.load(adapter_of(GetParam())).missing, ::testing::IsEmpty());
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.input),
                            golden.file->tensor("logits"), 5e-6));
  Context& context = golden.room.context;
  Tape tape;
  context.tape = &tape;
  const LossOutput out = golden.model.forward(golden.input);
  context.tape = nullptr;
  tape.backward(context, out.loss);
  EXPECT_TRUE(testing::close_relative(
      "loss", context.read(out.loss_sum) / static_cast<double>(golden.valid),
      *golden.file->tensor("loss").const_data<float>(), 5e-6));
  std::size_t trained = 0, expected = 0;
  for (const SafetensorsEntry& entry : golden.file->entries())
    expected += entry.name.starts_with("grad.");
  for (const Parameter* parameter : golden.model.chain->parameters()) {
    if (!parameter->trainable()) continue;
    EXPECT_TRUE(close_in_norm(parameter->name(), parameter->gradient,
                              golden.file->tensor("grad." + parameter->name()), 1e-4));
    ++trained;
  }
  EXPECT_EQ(trained, expected);
}

// Copies PEFT's directory and lets it name its base model.
void with_base(const std::string& name, const std::string& to,
               const std::function<void(nlohmann::json&)>& change = {}) {
  nlohmann::json config = read_json_file(adapter_of(name) + "/adapter_config.json");
  config["base_model_name_or_path"] = base_of(name);
  if (change) change(config);
  write_file_atomically(to + "/adapter_config.json", config.dump());
  copy_file(adapter_of(name) + "/adapter_model.safetensors", to + "/adapter_model.safetensors");
}

TEST_P(LoraGolden, AModelWithoutAdaptersGetsTheMergedWeights) {
  Golden golden(GetParam(), std::nullopt);
  const testing::TemporaryDirectory made;
  with_base(GetParam(), made.path());
  EXPECT_THAT(golden.model.load(made.path()).missing, ::testing::IsEmpty());
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.input),
                            golden.file->tensor("logits"), 5e-6));
}

TEST_P(LoraGolden, SavedAdaptersAreThoseOfPeft) {
  const std::string name = GetParam();
  Golden golden(name);
  golden.model.load(adapter_of(name));
  const testing::TemporaryDirectory made;
  EXPECT_THAT(save_weights(made.path(), *golden.model.chain, parameter_values()),
              ::testing::ElementsAre("adapter_model.safetensors", "adapter_config.json"));
  const auto theirs = SafetensorsFile::open(adapter_of(name) + "/adapter_model.safetensors"),
             ours = SafetensorsFile::open(made.path() + "/adapter_model.safetensors");
  EXPECT_EQ(ours->entries().size(), theirs->entries().size());
  for (const SafetensorsEntry& entry : theirs->entries())
    EXPECT_TRUE(std::ranges::equal(ours->bytes(entry.name), theirs->bytes(entry.name)))
        << entry.name;
  nlohmann::json config = read_json_file(made.path() + "/adapter_config.json"),
                 wanted = read_json_file(adapter_of(name) + "/adapter_config.json");
  for (const auto& [field, value] : config.items())
    if (field != "target_modules") {
      EXPECT_EQ(value, wanted[field]) << field;
    }
  // Whole paths instead of their ends.
  std::vector<std::string> paths;
  for (const LinearLike* layer : adapted_layers(*golden.model.chain))
    paths.push_back(layer->path());
  EXPECT_EQ(read_adapter_config(made.path()).target_modules, paths);
}

INSTANTIATE_TEST_SUITE_P(Peft, LoraGolden, ::testing::Values("gpt2", "llama", "bert", "t5"),
                         [](const auto& test) { return std::string(test.param); });

std::string refusal(const std::function<void(nlohmann::json&)>& change) {
  const testing::TemporaryDirectory made;
  with_base("llama", made.path(), change);
  Golden golden("llama", std::nullopt);
  try {
    golden.model.load(made.path());
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(AdapterDirectory, RefusesWhatWouldChangeTheNumbers) {
  EXPECT_EQ(refusal({}), "no error");
  for (const auto& [field, value] :
       std::map<std::string, nlohmann::json>{{"use_dora", true},
                                             {"lora_bias", true},
                                             {"bias", "all"},
                                             {"peft_type", "IA3"},
                                             {"rank_pattern", {{"q_proj", 4}}},
                                             {"init_lora_weights", "pissa"},
                                             {"trainable_token_indices", {1, 2}},
                                             {"target_modules", ".*q_proj"},
                                             {"a_field_of_later", 3}})
    EXPECT_THAT(refusal([&](nlohmann::json& config) { config[field] = value; }),
                HasSubstr(fmt::format("adapter_config.json has {}: {}, which is not supported",
                                      field, value.dump())));
}

TEST(AdapterDirectory, RefusesAnAdapterOfAnotherModel) {
  EXPECT_THAT(
      refusal([](nlohmann::json& config) { config["base_model_name_or_path"] = "nowhere"; }),
      HasSubstr("adapts nowhere, which is no directory"));
  // The golden adapter has queries and values.
  const testing::TemporaryDirectory made;
  with_base("llama", made.path());
  LoraOptions options = options_of("llama");
  options.target_modules = {"q_proj", "v_proj", "o_proj"};
  Golden golden("llama", options);
  EXPECT_THAT([&] { golden.model.load(made.path()); },
              ::testing::ThrowsMessage<Error>(HasSubstr("o_proj.lora_A.weight")));
  Golden other("gpt2", std::nullopt);
  EXPECT_THAT([&] { other.model.load(made.path()); },
              ::testing::ThrowsMessage<Error>(HasSubstr("for which the model has no place")));
}

// The base model's weights are loaded too; adapters of a new run keep their first values.
TEST(AdapterDirectory, AnAdaptedModelOpensItsBase) {
  Golden golden("llama");
  EXPECT_EQ(describe(golden.model.load(base_of("llama"))), "");
  Golden plain("llama", std::nullopt);
  plain.model.load(base_of("llama"));
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.input),
                            plain.model.logits(plain.input), 1e-7));
}

}  // namespace
}  // namespace shoal::nn
