// Saving a config.json: fields that were read stay, and changed ones are written. Compared with
// transformers (tools/golden/make_saved_configs.py).
#include <algorithm>

#include "fixture.h"
#include "parameter_values.h"
#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder/huggingface.h"
#include "shoal/nn/models/encoder_decoder/family.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json cases() { return read_json_file(testing::golden_path("saved_configs.json")).at("cases"); }

json written(const json& config, DecoderHead head = DecoderHead::causal_lm) {
  const std::string type = config.at("model_type");
  if (std::ranges::count(causal_lm_types(), type) > 0)
    return DecoderConfig::from_json(config, "config.json").to_json("float32", head);
  if (is_encoder_decoder_type(type))
    return EncoderDecoderConfig::from_json(config, "config.json").to_json("float32");
  return EncoderConfig::from_json(config, "config.json").to_json(EncoderTask::masked_lm, "float32");
}

class SavedConfig : public ::testing::TestWithParam<const char*> {};

TEST_P(SavedConfig, KeepsWhatItRead) {
  const json one = cases().at(GetParam());
  json expected = one.at("read");
  const json saved = written(expected);
  EXPECT_TRUE(saved.contains("architectures"));
  EXPECT_EQ(saved.contains("dtype"), expected.contains("dtype"));
  for (const char* name : {"architectures", "dtype", "torch_dtype"})
    if (saved.contains(name)) expected[name] = saved[name];
  EXPECT_EQ(saved, expected);
  EXPECT_EQ(saved.value(expected.contains("dtype") ? "dtype" : "torch_dtype", ""), "float32");
  // transformers keeps every field that it reads, with the same value; but of T5 1.1, whose head
  // has its own weight, it writes tie_word_embeddings: true and scale_decoder_outputs: false.
  for (const auto& [name, value] : one.at("saved").items())
    if (expected.contains(name) && name != "transformers_version" && name != "dtype" &&
        !(name == "tie_word_embeddings" &&
          one["saved"].value("scale_decoder_outputs", true) == false)) {
      EXPECT_EQ(saved[name], value) << name;
    }
  EXPECT_EQ(written(saved), saved) << "saved twice";
}

INSTANTIATE_TEST_SUITE_P(Families, SavedConfig,
                         ::testing::Values("gpt2", "llama_4", "llama_5", "mistral", "qwen2",
                                           "qwen3", "gpt_neox_4", "gpt_neox_5", "gemma", "gemma2",
                                           "gemma3_text", "bert", "roberta", "distilbert", "albert",
                                           "xlm_roberta", "electra", "modernbert_4", "modernbert_5",
                                           "t5", "t5_v1_1", "bart", "mbart"),
                         [](const auto& test) { return std::string(test.param); });

TEST(WrittenConfig, HasTheFieldsThatChanged) {
  DecoderConfig gpt2 = DecoderConfig::from_json(cases()["gpt2"]["read"], "config.json");
  gpt2.num_hidden_layers = 5;
  gpt2.eos_token_id = 9;
  gpt2.labels.num_labels = 3;
  json saved = gpt2.to_json("bfloat16", DecoderHead::sequence_classification);
  EXPECT_EQ(saved["n_layer"], 5);
  EXPECT_EQ(saved["eos_token_id"], 9);
  EXPECT_EQ(saved["id2label"].size(), 3U);
  EXPECT_EQ(saved["torch_dtype"], "bfloat16");
  EXPECT_EQ(saved["a_field_of_tomorrow"], cases()["gpt2"]["read"]["a_field_of_tomorrow"]);
  EXPECT_FALSE(saved.contains("layer_norm_epsilon")) << "a default that nothing changed";

  // transformers 5 has one object for rope. A part of it would hide the flat fields.
  DecoderConfig llama = DecoderConfig::from_json(cases()["llama_5"]["read"], "config.json");
  llama.rope_theta = 700;
  saved = llama.to_json("float32");
  EXPECT_FALSE(saved.contains("rope_parameters"));
  EXPECT_EQ(DecoderConfig::from_json(saved, "saved").rope_theta, 700);
  EXPECT_EQ(DecoderConfig::from_json(saved, "saved").rotary_angles().frequencies,
            llama.rotary_angles().frequencies);

  EncoderConfig bert = EncoderConfig::from_json(cases()["bert"]["read"], "config.json");
  bert.num_labels = 2;
  saved = bert.to_json(EncoderTask::sequence_classification, "float32");
  EXPECT_FALSE(saved.contains("id2label")) << "of the three labels that were";
  json without = cases()["bert"]["read"];
  without.erase("model_type");
  without["architectures"] = {"BertForMaskedLM"};
  EXPECT_EQ(written(json(EncoderConfig::from_json(without, "x")
                             .to_json(EncoderTask::masked_lm, "float32")))["model_type"],
            "bert");
}

TEST(WrittenConfig, HasTheFieldsOfAnEncoderDecoderThatChanged) {
  const json read = cases()["bart"]["read"];
  EncoderDecoderConfig bart = EncoderDecoderConfig::from_json(read, "config.json");
  bart.decoder_layers = 5;
  bart.eos_token_id = 9;
  json saved = bart.to_json("bfloat16");
  EXPECT_EQ(saved["architectures"], json({"BartForConditionalGeneration"}));
  EXPECT_EQ(saved["decoder_layers"], 5);
  EXPECT_EQ(saved["eos_token_id"], 9);
  EXPECT_EQ(saved["torch_dtype"], "bfloat16");
  EXPECT_EQ(saved["a_field_of_tomorrow"], read["a_field_of_tomorrow"]);
  EXPECT_FALSE(saved.contains("init_std")) << "a default that nothing changed";

  // The decoder's number of layers is the encoder's, unless there is one.
  EncoderDecoderConfig t5 = EncoderDecoderConfig::from_json(cases()["t5"]["read"], "config.json");
  EXPECT_FALSE(json(t5.to_json("float32")).contains("num_decoder_layers"));
  t5.encoder_layers = 4;
  saved = t5.to_json("float32");
  EXPECT_EQ(saved["num_layers"], 4);
  EXPECT_EQ(EncoderDecoderConfig::from_json(saved, "saved").layers(true), 4);
}

TEST(WrittenConfig, OverridesNameEveryKnownFieldAndReachTheModel) {
  const json read = cases()["llama_5"]["read"];
  json all = complete_causal_lm_config(read, "config.json");
  EXPECT_EQ(all["rms_norm_eps"], 1e-6);
  EXPECT_EQ(all["a_field_of_tomorrow"], read["a_field_of_tomorrow"]);
  all["rope_theta"] = 900.0;
  EXPECT_EQ(DecoderConfig::from_json(all, "all").rope_theta, 900);
  EXPECT_EQ(all["rope_scaling"]["a_factor_of_tomorrow"], 7);
}

TEST(WrittenConfig, AListOfIdsHoldsIds) {
  for (const char* type : {"gpt2", "llama", "qwen3"}) {
    const json good{{"model_type", type}, {"eos_token_id", {4, 5}}};
    EXPECT_EQ(known_decoder_fields(good, "c", DecoderHead::causal_lm)["eos_token_id"], 4);
    EXPECT_THAT(test::error_text(
                    [&] { (void)written({{"model_type", type}, {"eos_token_id", {4, "x"}}}); }),
                HasSubstr("eos_token_id: [4,\"x\"], where a token id or a list of them"));
  }
}

// Weights under names other than the model's, and buffers that are not weights.
template <class Model>
void expect_loads(Model& model, const std::string& from, const std::string& rename,
                  const std::string& to, const std::vector<std::string>& buffers, Context& context,
                  const std::function<LoadReport(const std::string&)>& load) {
  const ShardedSafetensors files = ShardedSafetensors::open(from);
  const testing::TemporaryDirectory made;
  std::vector<Tensor> kept;
  std::vector<NamedView> renamed;
  for (const std::string& name : files.names()) {
    kept.push_back(files.tensor(name));
    renamed.push_back({name == rename ? to : name, kept.back().const_view()});
  }
  for (const std::string& buffer : buffers) renamed.push_back({buffer, kept[0].const_view()});
  ASSERT_FALSE(files.contains(to)) << to;
  write_sharded_safetensors(made.path(), renamed);
  model.materialize(context, DType::f32);
  EXPECT_EQ(describe(load(made.path())), "");
  for (const Parameter* parameter : model.parameters())
    if (parameter->name() == rename) {
      EXPECT_TRUE(
          testing::close_in_norm(rename, Tensor(parameter->value), files.tensor(rename), 0));
    }
}

TEST(TiedModel, LoadsFromOnlyTheHeadsWeight) {
  Fixture room;
  const AssignParameter assign = assign_values(room.context);
  const std::string gpt2 = testing::golden_path("gpt2/tiny");
  CausalLm one(DecoderConfig::from_file(gpt2 + "/config.json"));
  expect_loads(one, gpt2, "transformer.wte.weight", "lm_head.weight",
               {"transformer.h.0.attn.bias", "h.1.attn.masked_bias"}, room.context,
               [&](const std::string& made) { return one.load(made, assign); });
  const std::string llama = testing::golden_path("llama/tied");
  CausalLm two(DecoderConfig::from_file(llama + "/config.json"));
  expect_loads(two, llama, "model.embed_tokens.weight", "lm_head.weight",
               {"model.layers.0.self_attn.rotary_emb.inv_freq"}, room.context,
               [&](const std::string& made) { return two.load(made, assign); });
  for (const auto& [family, base, head] : {std::tuple<std::string, std::string, std::string>{
                                               "bert", "bert", "cls.predictions.decoder.weight"},
                                           {"roberta", "roberta", "lm_head.decoder.weight"},
                                           {"distilbert", "distilbert", "vocab_projector.weight"},
                                           {"albert", "albert", "predictions.decoder.weight"}}) {
    const std::string directory = testing::golden_path("encoders/" + family);
    Encoder model(EncoderConfig::from_file(directory + "/config.json"), EncoderTask::masked_lm);
    const testing::TemporaryDirectory made;
    save_encoder(
        made.path(),
        [&]() -> Encoder& {
          model.materialize(room.context, DType::f32);
          load_encoder_weights(directory, model, assign);
          return model;
        }(),
        parameter_values());
    expect_loads(model, made.path(), base + ".embeddings.word_embeddings.weight", head,
                 {base + ".embeddings.position_ids"}, room.context, [&](const std::string& there) {
                   return load_encoder_weights(there, model, assign);
                 });
  }
}

TEST(GenerationConfig, DamagedFilesAreRefused) {
  const std::string golden = testing::golden_path("gpt2/tiny");
  CausalLm model(DecoderConfig::from_file(golden + "/config.json"));
  const testing::TemporaryDirectory read;
  const std::string path = read / "generation_config.json";
  for (const auto& [text, problem] : {std::pair<std::string, std::string>{"", "is empty"},
                                      {"[1]", "is not a JSON object"},
                                      {R"({"temperature": NaN})", "NaN at byte"},
                                      {R"({"eos_token_id": "x"})", "eos_token_id: \"x\", where"},
                                      {R"({"eos_token_id": [1, 18446744073709551615]})", "a list"},
                                      {R"({"pad_token_id": 0.5})", "pad_token_id: 0.5, where"}}) {
    write_file_atomically(path, text);
    EXPECT_THAT(test::error_text([&] { model.keep_generation_config(read.path()); }),
                ::testing::AllOf(::testing::StartsWith(path), HasSubstr(problem)));
  }
}

TEST(GenerationConfig, IsWrittenAsItWas) {
  const std::string golden = testing::golden_path("gpt2/tiny");
  const testing::TemporaryDirectory read, made;
  for (const char* name : {"config.json", "model.safetensors"})
    write_file_atomically(read / name, read_text_file(golden + "/" + name));
  const std::string text = "{\"eos_token_id\": [1,2],   \"temperature\": 0.6}\n";
  write_file_atomically(read / "generation_config.json", text);
  Fixture room;
  CausalLm model(DecoderConfig::from_file(read / "config.json"));
  model.materialize(room.context, DType::f32);
  model.load(read.path(), assign_values(room.context));
  model.save_config(made.path(), DType::f32);
  EXPECT_EQ(read_text_file(made / "generation_config.json"), text);
}

// Llama 3's is one. Other ids are one id each.
TEST(ConfigFields, OnlyEosTokenIdMayBeAList) {
  const auto config = [](const char* model_type, const char* field) -> json {
    return {{"model_type", model_type}, {field, {2, 3}}};
  };
  EXPECT_EQ(DecoderConfig::from_json(config("llama", "eos_token_id"), "c").eos_token_id, 2);
  EXPECT_EQ(EncoderDecoderConfig::from_json(config("bart", "eos_token_id"), "c").eos_token_id, 2);
  for (const char* field : {"bos_token_id", "pad_token_id"}) {
    EXPECT_THAT(test::error_text([&] { DecoderConfig::from_json(config("llama", field), "c"); }),
                HasSubstr(field));
    EXPECT_THAT(
        test::error_text([&] { EncoderDecoderConfig::from_json(config("bart", field), "c"); }),
        HasSubstr(field));
  }
  EXPECT_THAT(
      test::error_text([&] { EncoderConfig::from_json(config("bert", "pad_token_id"), "c"); }),
      HasSubstr("pad_token_id"));
}

}  // namespace
}  // namespace shoal::nn
