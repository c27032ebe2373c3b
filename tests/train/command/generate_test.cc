// shoal generate as a call: the model's generation_config.json, the user's options, files of
// prompts.
#include "shoal/train/command/generate.h"

#include <fstream>

#include "nn/parameter_values.h"
#include "support/error_text.h"
#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>

#include "shoal/kernels/kernels.h"
#include "shoal/nn/autograd/dispatcher.h"
#include "shoal/nn/models/causal_lm.h"
#include "shoal/nn/models/encoder_decoder/model.h"
#include "shoal/runtime/io/files.h"

namespace shoal::command {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::int64_t kVocabulary = 520;  // the tokenizer's ids and some more

nn::EncoderDecoderConfig t5() {
  nn::EncoderDecoderConfig config = nn::EncoderDecoderConfig::of("t5");
  config.vocab_size = kVocabulary;
  config.d_model = 16;
  config.head_dim = 8;
  config.encoder_layers = 1;
  config.encoder_heads = 2;
  config.encoder_inner = 24;
  config.initializer = 3;
  config.tie_word_embeddings = false;
  return config;
}

nn::DecoderConfig llama() {
  nn::DecoderConfig config = nn::DecoderConfig::of("llama");
  config.vocab_size = kVocabulary;
  config.max_position_embeddings = 40;
  config.hidden_size = 16;
  config.intermediate_size = 24;
  config.num_hidden_layers = 1;
  config.num_attention_heads = 2;
  config.initializer_range = 0.4;
  return config;
}

// A directory with random weights and T5's tokenizer.
struct Directory {
  explicit Directory(const nn::EncoderDecoderConfig& config) { save<nn::EncoderDecoder>(config); }
  explicit Directory(const nn::DecoderConfig& config) { save<nn::CausalLm>(config); }
  template <typename Model, typename Config>
  void save(const Config& config) {
    const auto memory = make_host_memory();
    const auto kernels = kernels::make_reference_kernels();
    nn::DirectDispatcher dispatcher;
    nn::Context context(*kernels, *memory, dispatcher);
    Model model(config);
    model.materialize(context, DType::f32);
    model.save_config(made.path(), DType::f32);
    nn::save_weights(made.path(), model, nn::parameter_values());
    std::filesystem::copy_file(testing::golden_path("tokenizer/sentence_piece/t5.json"),
                               made / "tokenizer.json");
    write("tokenizer_config.json", {{"tokenizer_class", "T5Tokenizer"}, {"eos_token", "</s>"}});
  }
  void write(const std::string& name, const nlohmann::json& json) const {
    write_file_atomically(made / name, json.dump());
  }
  std::string text(const nlohmann::json& fields, GenerateOptions options = {}) const {
    options.model = made.path();
    if (!options.prompt && options.prompts.empty()) options.prompt = "the earth and the heaven";
    if (!fields.is_null()) options.fields = fields;
    std::string all;
    generate(options, {.on_text =
                           [&](const std::string& piece) {
                             all += piece;
                             return true;
                           },
                       .on_message = [](const std::string&) {}});
    return all;
  }
  testing::TemporaryDirectory made;
};

template <typename Made>
void expect_options_to_matter(const Made& directory, const std::string& usual) {
  const auto differs = [&](const nlohmann::json& fields) {
    EXPECT_NE(directory.text(fields), usual) << fields;
  };
  differs({{"num_beams", 4}});
  differs({{"max_new_tokens", 3}});
  const std::string greedy = directory.text({}, {.greedy = true});
  EXPECT_NE(directory.text({{"repetition_penalty", 5.0}, {"do_sample", false}}), greedy);
  EXPECT_NE(directory.text({{"temperature", 3.0}}), greedy);
  EXPECT_EQ(directory.text({{"temperature", 0.0}}), greedy);
  EXPECT_EQ(directory.text({{"min_p", 1.0}}), greedy);
  // The file's fields count where the user names none.
  directory.write(
      "generation_config.json",
      {{"num_beams", 4}, {"eos_token_id", 1}, {"max_length", 60}, {"decoder_start_token_id", 0}});
  const std::string beams = directory.text({{"max_new_tokens", 12}});
  EXPECT_EQ(beams, directory.text({{"max_new_tokens", 12}, {"num_beams", 4}}));
  EXPECT_EQ(directory.text({{"max_new_tokens", 12}}, {.greedy = true}),
            directory.text({{"max_new_tokens", 12}, {"num_beams", 1}, {"do_sample", false}}));
  EXPECT_THAT(test::error_text([&] { directory.text({{"num_beams", 4}}, {.greedy = true}); }),
              HasSubstr("choose one"));
}

TEST(Generate, EncoderDecodersAnswerPromptsGreedily) {
  const Directory directory(t5());
  const std::string usual = directory.text({});
  EXPECT_EQ(usual, directory.text({}, {.greedy = true}));
  EXPECT_THAT(usual, Not(StartsWith("the earth and the heaven")));
  EXPECT_GT(usual.size(), 10U);
  expect_options_to_matter(directory, usual);
}

TEST(Generate, DecodersContinuePromptsBySampling) {
  const Directory directory(llama());
  const std::string usual = directory.text({});
  EXPECT_NE(usual, directory.text({}, {.greedy = true}));
  EXPECT_THAT(usual, StartsWith("the earth and the heaven"));
  expect_options_to_matter(directory, usual);
}

// The text ends with the token that completes the string.
TEST(Generate, StopStringsEndTheText) {
  const Directory directory(t5());
  const std::string whole = directory.text({{"max_new_tokens", 16}});
  ASSERT_GT(whole.size(), 8U);
  const std::string stop = whole.substr(3, 3);
  const std::string text =
      directory.text({{"max_new_tokens", 16}, {"stop_strings", {"not there", stop}}});
  EXPECT_LT(text.size(), whole.size());
  EXPECT_THAT(text, HasSubstr(stop));
  EXPECT_THAT(test::error_text([&] { directory.text({{"stop_strings", {"a", ""}}}); }),
              HasSubstr("an empty stop string"));
}

TEST(Generate, FilesOfPromptsGiveLinesOfJson) {
  const Directory directory(llama());
  std::ofstream(directory.made / "prompts.txt") << "the earth\n\nand the heaven was\nin\r\n";
  const std::vector<std::string> prompts = {"the earth", "and the heaven was", "in"};
  for (const std::int64_t batch : {1, 2, 8}) {
    std::istringstream lines(directory.text(
        {{"num_beams", 2}}, {.prompts = directory.made / "prompts.txt", .batch_size = batch}));
    std::size_t count = 0;
    for (std::string line; std::getline(lines, line); ++count) {
      const auto row = nlohmann::json::parse(line);
      ASSERT_LT(count, prompts.size());
      EXPECT_EQ(row.at("prompt"), prompts[count]);
      EXPECT_EQ(prompts[count] + row.at("text").get<std::string>(),
                directory.text({{"num_beams", 2}}, {.prompt = prompts[count]}));
    }
    EXPECT_EQ(count, prompts.size());
  }
  std::ofstream(directory.made / "empty.txt") << "\n";
  EXPECT_THAT(
      test::error_text([&] { directory.text({}, {.prompts = directory.made / "empty.txt"}); }),
      HasSubstr("has no prompt"));
  EXPECT_THAT(test::error_text([&] {
                directory.text({}, {.prompt = "x", .prompts = directory.made / "empty.txt"});
              }),
              HasSubstr("choose one"));
}

}  // namespace
}  // namespace shoal::command
