// BERT and its relatives compared with transformers (tools/golden/make_encoders.py),
// and saved as directories.
#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "fixture.h"
#include "parameter_values.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/nn/autograd/tape.h"
#include "shoal/nn/models/encoder/family.h"
#include "shoal/nn/models/encoder/huggingface.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal::nn {
namespace {

using testing::close_relative;

struct Case {
  const char* family;
  EncoderTask task;
  friend void PrintTo(const Case& test, std::ostream* out) {
    *out << test.family << ", " << to_string(test.task);
  }
};
constexpr std::pair<EncoderTask, const char*> kTasks[] = {
    {EncoderTask::masked_lm, "masked_lm"},
    {EncoderTask::sequence_classification, "sequence_classification"},
    {EncoderTask::question_answering, "question_answering"},
    {EncoderTask::token_classification, "token_classification"}};
std::string name_of(EncoderTask task) {
  return std::find_if(std::begin(kTasks), std::end(kTasks),
                      [task](const auto& one) { return one.first == task; })
      ->second;
}
std::string directory_of(const std::string& family) {
  return testing::golden_path("encoders/" + family);
}

// A model with the golden weights and the golden batch.
struct Golden {
  Golden(const std::string& family, EncoderTask task, DType dtype = DType::f32,
         FixtureMemory where = FixtureMemory::shared)
      : room(false, 2, where),
        directory(directory_of(family)),
        model(EncoderConfig::from_file(directory + "/config.json"), task),
        file(SafetensorsFile::open(directory + "/" + name_of(task) + ".safetensors")) {
    model.materialize(room.context, dtype);
    report = load_encoder_weights(directory, model, assign_values(room.context));
    allocate_gradients(room.context, model.parameters());
    input.ids = get("input_ids", DType::i32);
    input.key_mask = get("attention_mask", DType::u8);
    if (file->contains("token_type_ids")) input.token_types = get("token_type_ids", DType::i32);
    if (task != EncoderTask::question_answering) {
      input.targets = get("labels", model.config().regression() ? DType::f32 : DType::i32);
      return;
    }
    const Tensor starts = testing::on_host(get("start_positions", DType::i32)),
                 ends = testing::on_host(get("end_positions", DType::i32));
    std::vector<std::int32_t> both;
    for (std::int64_t b = 0; b < starts.count(); ++b) {
      both.push_back(starts.const_data<std::int32_t>()[b]);
      both.push_back(ends.const_data<std::int32_t>()[b]);
    }
    input.targets = room.ids({starts.count(), 2}, both);
  }
  Tensor get(const std::string& name, DType dtype) { return room.cast(file->tensor(name), dtype); }
  // For an untied decoder, transformers computes with the other name of the bias.
  Tensor expected_gradient(const Parameter& parameter) const {
    const std::string name = "grad." + parameter.name();
    return file->tensor(file->contains(name) ? name : "grad.cls.predictions.decoder.bias");
  }
  std::int64_t valid() const {
    std::int64_t count = 0;
    const Tensor targets = testing::on_host(input.targets);
    for (std::int64_t i = 0; i < targets.count(); ++i)
      count += targets.dtype() == DType::f32 || targets.const_data<std::int32_t>()[i] >= 0;
    return count;
  }
  void give_target_rows() {
    input.target_rows =
        room.cast(rows_with_targets(testing::on_host(input.targets), 8, *host), DType::i32);
    EXPECT_LT(input.target_rows.count(), input.targets.count());
    EXPECT_GT(input.target_rows.count(), valid()) << "some rows are without a target";
  }
  // Leaves the golden batch's padding out.
  void give_visible_rows() {
    const Tensor mask = testing::on_host(get("attention_mask", DType::u8));
    const std::int64_t samples = mask.shape()[0], length = mask.shape()[1];
    const Tensor lengths = Tensor::zeros({samples}, DType::i32, *host, MemoryTag::data);
    for (std::int64_t i = 0; i < mask.count(); ++i)
      lengths.data<std::int32_t>()[i / length] += mask.const_data<std::uint8_t>()[i];
    input.key_mask = room.cast(lengths, DType::i32);
    const VisibleRows rows = visible_rows(lengths, length, 2, *host);
    ASSERT_TRUE(rows.defined());
    input.visible = {room.cast(rows.rows, DType::i32), room.cast(rows.places, DType::i32)};
  }
  // Computes the mean loss and its gradients.
  double step() {
    for (Parameter* parameter : model.parameters()) parameter->clear_gradient();
    input.loss.loss_scale = 1.0f / static_cast<float>(valid());
    Tape tape;
    room.context.tape = &tape;
    const LossOutput out = model.forward(room.context, input);
    room.context.tape = nullptr;
    if (!input.target_rows.defined()) {
      EXPECT_EQ(out.targets, input.targets.device().is_cpu() ? valid() : -1);
    }
    tape.backward(room.context, out.loss);
    for (const Parameter* parameter : model.parameters()) EXPECT_EQ(parameter->uses(), 0);
    return room.context.read(out.loss_sum) / static_cast<double>(valid());
  }

  std::unique_ptr<MemoryResource> host = make_host_memory();
  Fixture room;
  std::string directory;
  Encoder model;
  std::shared_ptr<SafetensorsFile> file;
  LoadReport report;
  ChainInput input;
};

class EncoderGolden : public ::testing::TestWithParam<Case> {};

// |actual - expected| / |expected| over all gradients together.
double apart(const std::vector<Parameter*>& parameters, const std::vector<Tensor>& expected) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const Tensor have = testing::on_host(parameters[i]->gradient);
    for (std::int64_t k = 0; k < expected[i].count(); ++k) {
      const double want = expected[i].const_data<float>()[k];
      const double off = have.const_data<float>()[k] - want;
      difference += off * off;
      whole += want * want;
    }
  }
  return std::sqrt(difference / whole);
}

// Compares f32 with float64.
TEST_P(EncoderGolden, LossLogitsAndGradients) {
  Golden golden(GetParam().family, GetParam().task, DType::f32, FixtureMemory::device);
  EXPECT_THAT(golden.report.missing, ::testing::IsEmpty());
  EXPECT_TRUE(close_in_norm("logits", golden.model.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 2e-6));
  const std::vector<Parameter*> parameters = golden.model.parameters();
  std::vector<Tensor> expected;
  std::vector<ConstView> views;
  for (const Parameter* parameter : parameters) {
    expected.push_back(golden.expected_gradient(*parameter));
    views.push_back(expected.back().const_view());
  }
  for (int time = 0; time < 3; ++time) {
    golden.model.set_gradient_checkpointing(time > 0);
    // The second time, the head of a masked language model is given the rows that have targets. The
    // third time, the layers are given the rows that are visible.
    if (time == 1 && golden.model.reads_target_rows()) golden.give_target_rows();
    if (time == 2 && golden.model.computes_visible_rows()) golden.give_visible_rows();
    EXPECT_TRUE(close_relative("loss", golden.step(),
                               *golden.file->tensor("loss").const_data<float>(), 2e-6));
    // Some gradients are small differences of large terms (a key's bias has exactly zero), so each
    // has a floor. All gradients together must be close.
    const double floor = 1e-3 * testing::global_norm_of(views);
    for (std::size_t i = 0; i < views.size(); ++i)
      EXPECT_TRUE(
          close_in_norm(parameters[i]->name(), parameters[i]->gradient, expected[i], 1e-4, floor));
    EXPECT_LT(apart(parameters, expected), 2e-6);
    RecordProperty("apart", fmt::format("{:.1e}", apart(parameters, expected)));
  }
}

TEST_P(EncoderGolden, InBf16) {
  Golden golden(GetParam().family, GetParam().task, DType::bf16, FixtureMemory::device);
  // Inputs are in host memory; each operation copies its own to the device.
  for (Tensor* tensor : golden.input.tensors()) *tensor = testing::on_host(*tensor);
  EXPECT_TRUE(close_relative("loss", golden.step(),
                             *golden.file->tensor("loss").const_data<float>(), 2e-2));
  std::vector<Tensor> expected;
  for (const Parameter* parameter : golden.model.parameters())
    expected.push_back(golden.expected_gradient(*parameter));
  EXPECT_LT(apart(golden.model.parameters(), expected), 5e-2);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases{{"bert_regression", EncoderTask::sequence_classification},
                          {"bert_untied", EncoderTask::masked_lm},
                          {"electra_wide", EncoderTask::masked_lm},
                          {"modernbert_biases", EncoderTask::masked_lm},
                          {"modernbert_biases", EncoderTask::sequence_classification}};
  for (const char* family :
       {"bert", "roberta", "distilbert", "albert", "xlm-roberta", "electra", "modernbert"})
    for (const auto& [task, name] : kTasks) cases.push_back({family, task});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(Cases, EncoderGolden, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) {
                           std::string family = test.param.family;
                           std::ranges::replace(family, '-', '_');
                           return family + "_" + name_of(test.param.task);
                         });

class EncoderDirectories : public ::testing::TestWithParam<const char*> {};

// A saved masked-LM directory has transformers' names. If it is opened for another head, the
// reported missing and unexpected weights are those that transformers reports.
TEST_P(EncoderDirectories, IsWrittenAndReportedAsTransformersDoes) {
  Golden golden(GetParam(), EncoderTask::masked_lm);
  const testing::TemporaryDirectory made;
  EXPECT_THAT(save_encoder(made.path(), golden.model, parameter_values()),
              ::testing::ElementsAre("config.json", "model.safetensors"));
  const nlohmann::json reports = read_json_file(golden.directory + "/reports.json");
  EXPECT_EQ(ShardedSafetensors::open(made.path()).names(),
            reports["names"].get<std::vector<std::string>>());
  for (const auto& [task, name] : kTasks) {
    Encoder model(EncoderConfig::from_file(made.path() + "/config.json"), task);
    model.materialize(golden.room.context, DType::f32);
    LoadReport report =
        load_encoder_weights(made.path(), model, assign_values(golden.room.context));
    std::ranges::sort(report.missing);
    EXPECT_EQ(report.missing, reports[name]["missing"].get<std::vector<std::string>>()) << name;
    EXPECT_EQ(report.unexpected, reports[name]["unexpected"].get<std::vector<std::string>>())
        << name;
    if (task == EncoderTask::masked_lm) {
      EXPECT_TRUE(close_in_norm("logits", model.logits(golden.room.context, golden.input),
                                golden.file->tensor("logits"), 2e-6));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Families, EncoderDirectories,
                         ::testing::Values("bert", "roberta", "distilbert", "albert", "xlm-roberta",
                                           "electra", "modernbert"));

// Without any head, transformers reports the bias as new under both of its names.
TEST_P(EncoderDirectories, ANewHeadIsReportedAsTransformersDoes) {
  Golden golden(GetParam(), EncoderTask::masked_lm);
  const std::string base = encoder_family(golden.model.config().model_type).base + ".";
  std::vector<NamedView> kept;
  for (const Parameter* parameter : golden.model.parameters())
    if (parameter->name().starts_with(base))
      kept.push_back({parameter->name().substr(base.size()), parameter->value.const_view()});
  const testing::TemporaryDirectory made;
  write_sharded_safetensors(made.path(), kept);
  Encoder model(golden.model.config(), EncoderTask::masked_lm);
  model.materialize(golden.room.context, DType::f32);
  LoadReport report = load_encoder_weights(made.path(), model, assign_values(golden.room.context));
  std::ranges::sort(report.missing);
  const nlohmann::json reports = read_json_file(golden.directory + "/reports.json");
  EXPECT_EQ(report.missing, reports["from_base"]["missing"].get<std::vector<std::string>>());
}

// Both biases exist, and the one that is used is read.
TEST(EncoderDirectory, AnUntiedDecoderHasItsOwnBias) {
  Golden golden("bert_untied", EncoderTask::masked_lm);
  EXPECT_EQ(describe(golden.report), "");
  const testing::TemporaryDirectory made;
  save_encoder(made.path(), golden.model, parameter_values());
  const ShardedSafetensors files = ShardedSafetensors::open(made.path()),
                           theirs = ShardedSafetensors::open(golden.directory);
  EXPECT_EQ(files.names(), theirs.names());
  for (const char* name : {"cls.predictions.bias", "cls.predictions.decoder.bias"})
    EXPECT_TRUE(
        close_in_norm(name, files.tensor(name), theirs.tensor("cls.predictions.decoder.bias"), 0));
}

// The names of a BertModel without a head, and those of BERT's first release.
TEST(EncoderDirectory, OlderNamesAreKnown) {
  Golden golden("bert", EncoderTask::sequence_classification);
  const ShardedSafetensors files = ShardedSafetensors::open(golden.directory);
  std::vector<Tensor> kept;
  std::vector<NamedView> renamed;
  for (std::string name : files.names()) {
    kept.push_back(files.tensor(name));
    if (name.starts_with("bert.")) name = name.substr(5);
    for (const auto& [now, then] :
         {std::pair<std::string, std::string>{"LayerNorm.weight", "gamma"},
          {"LayerNorm.bias", "beta"}})
      if (name.ends_with(now)) name.replace(name.rfind('.') + 1, std::string::npos, then);
    renamed.push_back({name, kept.back().const_view()});
  }
  const testing::TemporaryDirectory made;
  write_sharded_safetensors(made.path(), renamed);
  Encoder model(golden.model.config(), EncoderTask::sequence_classification);
  model.materialize(golden.room.context, DType::f32);
  EXPECT_THAT(load_encoder_weights(made.path(), model, assign_values(golden.room.context)).missing,
              ::testing::IsEmpty());
  EXPECT_TRUE(close_in_norm("logits", model.logits(golden.room.context, golden.input),
                            golden.file->tensor("logits"), 2e-6));
}

std::string refusal(const std::string& family, EncoderTask task,
                    const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json json = read_json_file(directory_of(family) + "/config.json");
  change(json);
  try {
    Fixture room;
    Encoder model(EncoderConfig::from_json(json, "config.json"), task);
    model.materialize(room.context, DType::f32);
    load_encoder_weights(directory_of(family), model, assign_values(room.context));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(EncoderConfig, ErrorsAreOneClearLine) {
  const auto sets = [](const char* key, const nlohmann::json& value) {
    return [=](nlohmann::json& json) { json[key] = value; };
  };
  using ::testing::HasSubstr;
  constexpr auto kLm = EncoderTask::masked_lm;
  EXPECT_THAT(refusal("bert", kLm, sets("model_type", "gpt2")),
              HasSubstr("model_type 'gpt2' is no encoder that Shoal knows; bert, roberta, "
                        "distilbert, albert, xlm-roberta, electra, modernbert are"));
  EXPECT_THAT(refusal("bert", kLm, sets("hidden_act", "silu")), HasSubstr("'silu'"));
  EXPECT_THAT(refusal("bert", kLm, sets("hidden_size", 13)), HasSubstr("not a multiple"));
  EXPECT_THAT(refusal("bert", kLm, sets("position_embedding_type", "relative_key")),
              HasSubstr("relative_key"));
  EXPECT_THAT(refusal("modernbert", kLm, sets("classifier_pooling", "max")), HasSubstr("'max'"));
  EXPECT_THAT(refusal("modernbert", kLm, sets("num_attention_heads", 4)), HasSubstr("turn pairs"));
  EXPECT_THAT(refusal("modernbert", kLm, sets("local_attention", 0)),
              HasSubstr("local_attention 0"));
  EXPECT_THAT(
      refusal("modernbert", kLm, sets("layer_types", nlohmann::json::array({"full_attention"}))),
      HasSubstr("layer_types has 1 entries for 3 layers"));
  EXPECT_THAT(refusal("modernbert", kLm,
                      [](nlohmann::json& json) {
                        json["rope_parameters"]["full_attention"] = {{"rope_type", "linear"},
                                                                     {"factor", 2.0}};
                      }),
              HasSubstr("scales the positions of full_attention"));
  // A BERT's weights with a RoBERTa's configuration, and with another depth.
  EXPECT_THAT(refusal("bert", kLm, sets("model_type", "roberta")),
              HasSubstr("embeddings.position_embeddings"));
  EXPECT_THAT(refusal("bert", kLm, sets("num_hidden_layers", 3)),
              HasSubstr("lacks bert.encoder.layer.2.attention.self.query.weight"));
}

// Golden files have no dropout. This test checks which field each head uses, as
// transformers reads them.
TEST(EncoderConfig, HeadsDropOutAsTheirFieldsSay) {
  const auto read = [](const nlohmann::json& json) {
    return EncoderConfig::from_json(json, "config.json");
  };
  const EncoderConfig bert = read({{"model_type", "bert"}, {"hidden_dropout_prob", 0.3}});
  EXPECT_EQ(bert.sequence_dropout, 0.3);
  EXPECT_EQ(bert.token_dropout, 0.3);
  const auto task = EncoderTask::token_classification;
  EXPECT_TRUE(bert.to_json(task, "float32")["classifier_dropout"].is_null());
  const EncoderConfig own = read({{"model_type", "roberta"}, {"classifier_dropout", 0.2}});
  EXPECT_EQ(own.sequence_dropout, 0.2);
  EXPECT_EQ(own.token_dropout, 0.2);
  EXPECT_EQ(own.to_json(task, "float32")["classifier_dropout"], 0.2);
  const EncoderConfig distilbert = read({{"model_type", "distilbert"},
                                         {"dropout", 0.3},
                                         {"seq_classif_dropout", 0.4},
                                         {"qa_dropout", 0.05}});
  EXPECT_EQ(distilbert.token_dropout, 0.3);
  EXPECT_EQ(distilbert.sequence_dropout, 0.4);
  EXPECT_EQ(distilbert.question_dropout, 0.05);
  const EncoderConfig albert = read({{"model_type", "albert"}, {"classifier_dropout_prob", 0.4}});
  EXPECT_EQ(albert.sequence_dropout, 0.4);
  EXPECT_EQ(albert.token_dropout, 0.4);
  EXPECT_EQ(read({{"model_type", "albert"}, {"hidden_dropout_prob", 0.3}}).sequence_dropout, 0.1);
}

// The Hub's files name every third layer, those of transformers 5 each of them. The bases may stand
// in an object.
TEST(EncoderConfig, ModernBertsWindowsAndBasesAreReadInBothForms) {
  const auto read = [](nlohmann::json json) {
    json["model_type"] = "modernbert";
    return EncoderConfig::from_json(json, "config.json");
  };
  const EncoderConfig plain = read({});
  EXPECT_EQ(plain.window(0), 0);
  EXPECT_EQ(plain.window(1), 65);
  EXPECT_EQ(plain.window(3), 0);
  EXPECT_EQ(read({{"max_position_embeddings", 65}}).window(1), 0) << "no key is further away";
  const EncoderConfig older = read({{"global_attn_every_n_layers", 2},
                                    {"local_attention", 9},
                                    {"global_rope_theta", 7.0},
                                    {"local_rope_theta", 5.0}});
  EXPECT_EQ(older.window(1), 5);
  EXPECT_EQ(older.window(2), 0);
  EXPECT_EQ(older.rope_theta, 7);
  EXPECT_EQ(older.rope_local_theta, 5);
  const nlohmann::json newer = {
      {"num_hidden_layers", 2},
      {"layer_types", {"sliding_attention", "full_attention"}},
      {"rope_parameters",
       {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 7.0}}},
        {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5.0}}}}}};
  EncoderConfig named = read(newer);
  EXPECT_EQ(named.window(0), 65);
  EXPECT_EQ(named.window(1), 0);
  EXPECT_EQ(named.rope_theta, 7);
  EXPECT_EQ(named.rope_local_theta, 5);
  EXPECT_TRUE(named.to_json(EncoderTask::masked_lm, "float32").contains("rope_parameters"));
  named.rope_theta = 9;
  const auto changed = nlohmann::json(named.to_json(EncoderTask::masked_lm, "float32"));
  EXPECT_EQ(EncoderConfig::from_json(changed, "config.json").rope_theta, 9);
  EXPECT_EQ(EncoderConfig::from_json(changed, "config.json").rope_local_theta, 5);
}

TEST(EncoderConfig, SaysWhetherItLearnsNumbers) {
  EncoderConfig config = EncoderConfig::of("bert");
  config.num_labels = 3;
  config.problem_type = "regression";
  const auto json = nlohmann::json(config.to_json(EncoderTask::sequence_classification, "float32"));
  const EncoderConfig again = EncoderConfig::from_json(json, "config.json");
  EXPECT_TRUE(again.regression());
  EXPECT_EQ(again.num_labels, 3);
}

// The fields that checkpoints on Hugging Face's Hub have, and their published sizes.
TEST(EncoderConfig, PublishedCheckpointsHaveTheirNumberOfParameters) {
  const nlohmann::json all = read_json_file(testing::golden_path("checkpoint_configs.json"));
  int encoders = 0;
  for (const auto& [name, one] : all.items()) {
    const std::string type = one["config"]["model_type"];
    if (std::ranges::none_of(encoder_families(),
                             [&](const auto* family) { return family->model_type == type; }))
      continue;
    ++encoders;
    const Encoder model(EncoderConfig::from_json(one["config"], name), EncoderTask::masked_lm);
    std::int64_t count = 0;
    for (const Parameter* parameter : model.parameters()) count += parameter->shape().count();
    EXPECT_EQ(count, one["parameters"].get<std::int64_t>()) << name;
    nlohmann::json expected = one["config"];
    expected["architectures"] = {encoder_family(type).class_prefix + "ForMaskedLM"};
    expected["torch_dtype"] = "float32";
    EXPECT_EQ(nlohmann::json(model.config().to_json(EncoderTask::masked_lm, "float32")), expected)
        << name;
  }
  EXPECT_EQ(encoders, 9);
}

TEST(EncoderModel, RefusesInputsThatItCannotUse) {
  Golden golden("distilbert", EncoderTask::masked_lm);
  golden.input.token_types = golden.input.ids;
  EXPECT_THAT([&] { golden.model.logits(golden.room.context, golden.input); },
              ::testing::ThrowsMessage<Error>(
                  ::testing::HasSubstr("distilbert has no token types, and some are given")));
  Golden counted("roberta", EncoderTask::masked_lm);
  counted.input.key_mask = {};
  counted.input.ids = counted.room.ids({1, 21}, std::vector<std::int32_t>(21, 5));
  EXPECT_THAT(
      [&] { counted.model.logits(counted.room.context, counted.input); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("position 20 of a model of 20")));
  Golden longer("modernbert", EncoderTask::masked_lm);
  longer.input.key_mask = {};
  longer.input.ids = longer.room.ids({1, 21}, std::vector<std::int32_t>(21, 5));
  EXPECT_THAT(
      [&] { longer.model.logits(longer.room.context, longer.input); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("21 positions, of a model of 20")));
  Golden part("bert", EncoderTask::sequence_classification);
  const Value hidden{part.room.random({3, 4, 12}, 1)};
  EXPECT_THAT([&] { part.model.head->forward(part.room.context, hidden, part.input); },
              ::testing::ThrowsMessage<Error>(::testing::HasSubstr("must see all 7 positions")));
}

}  // namespace
}  // namespace shoal::nn
