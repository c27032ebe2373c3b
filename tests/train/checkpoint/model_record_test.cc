// Which model a checkpoint is of.
#include "shoal/train/checkpoint/model_record.h"

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const nlohmann::json kSaved = {{"model_type", "llama"},    {"architectures", {"LlamaForCausalLM"}},
                               {"num_attention_heads", 8}, {"num_key_value_heads", 4},
                               {"rms_norm_eps", 1e-5},     {"rope_scaling", nullptr},
                               {"hidden_act", "silu"},     {"attention_dropout", 0.1},
                               {"torch_dtype", "float32"}, {"transformers_version", "4.40.0"},
                               {"_name_or_path", "there"}};

class ModelRecord : public ::testing::Test {
 protected:
  void SetUp() override { write_file_atomically(directory / "config.json", kSaved.dump()); }
  std::vector<std::string> check(const nlohmann::json& change) const {
    nlohmann::json here = kSaved;
    here.update(change);
    return check_same_model(directory.path(), here);
  }
  const testing::TemporaryDirectory directory;
};

// Each alone, of equal tensors.
TEST_F(ModelRecord, RefusesWhatTensorsDoNotShow) {
  for (const auto& [change, text] :
       {std::pair<nlohmann::json, const char*>{{{"num_attention_heads", 4}},
                                               "num_attention_heads is 8 in "},
        {{{"num_key_value_heads", 2}}, "num_key_value_heads is 4 in "},
        {{{"rms_norm_eps", 1e-6}}, "rms_norm_eps is 1e-05 in "},
        {{{"rope_scaling", {{"rope_type", "linear"}}}}, "rope_scaling is null in "},
        {{{"hidden_act", "gelu"}}, "hidden_act is \"silu\" in "}}) {
    const std::string said = test::error_text([&, &change = change] { (void)check(change); });
    EXPECT_THAT(said, AllOf(HasSubstr(text), HasSubstr(directory / "config.json and "),
                            HasSubstr(change.begin()->dump() + " here"), Not(HasSubstr("\n"))));
  }
  EXPECT_THAT(
      test::error_text([&] { (void)check({{"num_attention_heads", 4}, {"hidden_act", "gelu"}}); }),
      AllOf(HasSubstr("num_attention_heads"), HasSubstr("hidden_act")));
}

TEST_F(ModelRecord, PassesOverWhatIsNotComputedWith) {
  EXPECT_THAT(check(nlohmann::json::object()), IsEmpty());
  EXPECT_THAT(check({{"torch_dtype", "bfloat16"},
                     {"transformers_version", "5"},
                     {"_name_or_path", "here"},
                     {"architectures", {"Other"}},
                     {"a_new_field", 3}}),
              IsEmpty());
  EXPECT_THAT(check_same_model(directory.path(), nlohmann::json()), IsEmpty());
  EXPECT_THAT(check_same_model(directory / "without", kSaved), IsEmpty());
}

TEST_F(ModelRecord, SaysWhereDropoutChanges) {
  const auto said = check({{"attention_dropout", 0.0}});
  ASSERT_EQ(said.size(), 1U);
  EXPECT_THAT(said[0], AllOf(HasSubstr("attention_dropout is 0.1 in "), HasSubstr("and 0.0 here")));
}

}  // namespace
}  // namespace shoal
