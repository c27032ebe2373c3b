// The variables that Amazon's training toolkit derives from the same files
// (tools/golden/make_sagemaker_environments.py).
#include "shoal/sagemaker/container/contract.h"

#include <map>

#include "sagemaker/container/opt_ml.h"
#define SHOAL_TEST_COUNTS_MEMORY
#include "support/budget.h"
#include "support/source_tree.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/container/environment.h"

namespace shoal::sagemaker {
namespace {

using ::testing::HasSubstr;

VariableReader only(const Json& variables) {
  return [variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->get<std::string>());
  };
}

Json golden() {
  return Json::parse(
      read_text_file(testing::source_path("tests/golden/sagemaker/environments.json")));
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  const Json all = golden();
  for (const Json& one : all.at("cases")) names.push_back(one.at("name"));
  return names;
}

class Environments : public ::testing::TestWithParam<std::string> {};

TEST_P(Environments, AreThoseOfTheToolkit) {
  const Json all = golden();
  const Json& one = *std::ranges::find(
      all.at("cases"), GetParam(), [](const Json& c) { return c.at("name").get<std::string>(); });
  OptMl ml;
  ml.hyperparameters(one.at("hyperparameters"));
  ml.resources(one.at("resourceconfig"));
  ml.inputs(one.at("inputdataconfig"));
  std::map<std::string, std::string> expected;
  for (const auto& [name, value] : one.at("environment").items()) {
    auto text = value.get<std::string>();
    for (auto at = text.find("ROOT"); at != std::string::npos; at = text.find("ROOT", at))
      text.replace(at, 4, ml.root());
    expected[name] = text;
  }
  const Hardware hardware{.gpus = std::stoi(expected.at("SM_NUM_GPUS")),
                          .cpus = std::stoi(expected.at("SM_NUM_CPUS"))};
  const VariableReader variables = only(one.at("variables"));
  std::map<std::string, std::string> made;
  for (const auto& [name, value] :
       sm_variables(read_contract(ml.root(), hardware, variables), variables))
    made[name] = value;
  for (const auto& [name, value] : expected) EXPECT_EQ(made[name], value) << name;
  EXPECT_EQ(made.size(), expected.size());
}

INSTANTIATE_TEST_SUITE_P(Toolkit, Environments, ::testing::ValuesIn(case_names()),
                         [](const auto& of) { return of.param; });

std::string refused(const OptMl& ml) {
  try {
    read_contract(ml.root(), {}, only(Json::object()));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Contract, NamesWhatIsWrongWithItsFiles) {
  OptMl ml;
  EXPECT_EQ(refused(ml), "accepted");
  ml.write("input/config/hyperparameters.json", "{\"a\": ");
  EXPECT_THAT(refused(ml), HasSubstr("hyperparameters.json"));
  ml.hyperparameters(Json::array());
  EXPECT_THAT(refused(ml), HasSubstr("hyperparameters.json holds no object"));
  ml.hyperparameters(Json::object());
  ml.resources({{"current_host", "algo-3"}, {"hosts", {"algo-1", "algo-2"}}});
  EXPECT_THAT(refused(ml), HasSubstr("current_host 'algo-3' is none of hosts"));
  ml.resources({{"current_host", "algo-1"}, {"hosts", Json::array()}});
  EXPECT_THAT(refused(ml), HasSubstr("hosts is no list of hosts"));
  std::filesystem::remove(ml.path("input/config/resourceconfig.json"));
  EXPECT_THAT(refused(ml), HasSubstr("resourceconfig.json"));
}

TEST(Contract, DecodesEachHyperparameterOnce) {
  OptMl ml;
  ml.hyperparameters({{"a", "\"\\\"1\\\"\""}, {"b", "1"}, {"c", "text"}, {"d", "{\"x\": [1]}"}});
  const Contract c = read_contract(ml.root(), {}, only(Json::object()));
  EXPECT_EQ(c.hyperparameters,
            Json::parse(R"({"a": "\"1\"", "b": 1, "c": "text", "d": {"x": [1]}})"));
}

TEST(Contract, TakesTheRegionOfS3IfTheContainerHasNone) {
  OptMl ml;
  ml.hyperparameters({{"sagemaker_region", "\"eu-west-1\""}});
  const auto region = [&ml](const Json& variables) {
    return region_for_s3(read_contract(ml.root(), {}, only(variables)), only(variables));
  };
  EXPECT_EQ(region(Json::object()), "eu-west-1");
  EXPECT_EQ(region({{"AWS_REGION", ""}}), "eu-west-1");
  EXPECT_EQ(region({{"AWS_REGION", "us-east-1"}}), "");
  EXPECT_EQ(region({{"AWS_DEFAULT_REGION", "us-east-1"}}), "");
  ml.hyperparameters(Json::object());
  EXPECT_EQ(region(Json::object()), "");
}

TEST(Contract, KeepsAHostsOwnVariablesFromOthers) {
  EXPECT_TRUE(is_of_one_host("SM_CURRENT_HOST"));
  EXPECT_FALSE(is_of_one_host("SM_HOSTS"));
}

// Does everything that a host does before training; returns the error, or "starts".
std::string host_starts(const OptMl& ml) {
  try {
    const Contract contract = read_contract(ml.root(), {}, only({}));
    (void)sm_variables(contract, only({}));
    (void)train_command(contract, {}, ml.path("code"));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "starts";
}

TEST(Contract, AFieldOfAnotherTypeIsNamedWithItsFile) {
  const auto says = [](const OptMl& ml, const std::string& text) {
    const std::string why = host_starts(ml);
    EXPECT_THAT(why, HasSubstr(text));
    EXPECT_THAT(why, ::testing::Not(HasSubstr("json.exception")));
    EXPECT_EQ(why.find('\n'), why.npos) << why;
    EXPECT_LT(why.size(), 1000U);
  };
  const Json wrong = {5, Json::array(), Json::object(), true, std::string(100'000, 'x')};
  for (const Json& value : wrong) {
    OptMl groups;
    groups.resources(
        {{"current_host", "algo-1"},
         {"hosts", {"algo-1"}},
         {"instance_groups", {{{"instance_group_name", value}, {"hosts", {"algo-1"}}}}}});
    if (!value.is_string())
      says(groups, "resourceconfig.json has instance_group_name: " + value.dump());
    for (const char* field : {"current_host", "current_group_name", "network_interface_name"}) {
      OptMl ml;
      Json resources = {{"hosts", {"algo-1"}}, {"current_host", "algo-1"}};
      resources[field] = value;
      ml.resources(resources);
      if (!value.is_string()) says(ml, std::string("resourceconfig.json has ") + field);
    }
    for (const char* field : {"S3DistributionType", "TrainingInputMode", "ContentType"}) {
      OptMl ml({"algo-1", "algo-2"});
      Json channel = {{"TrainingInputMode", "Pipe"}};
      channel[field] = value;
      ml.inputs({{"train", channel}});
      ml.hyperparameters({{"streaming", "true"}});
      if (!value.is_string())
        says(ml, std::string("inputdataconfig.json, channel train, has ") + field);
    }
  }
  OptMl long_type;
  long_type.inputs({{"test", {{"TrainingInputMode", "Pipe"}, {"ContentType", wrong.back()}}}});
  says(long_type, "comes as a pipe of xxx");
  for (const char* list : {"[5]", "[null]", "5"}) {
    OptMl ml;
    ml.hyperparameters({{"sagemaker_distribution_instance_groups", list}});
    says(ml, "hyperparameters.json has sagemaker_distribution_instance_groups: ");
  }
  OptMl program;
  program.hyperparameters({{"sagemaker_program", "5"}});
  says(program, "hyperparameters.json has sagemaker_program: 5, where a string is expected");
}

TEST(Contract, ManyHyperparametersTakeLinearTime) {
  OptMl ml;
  std::string text = "{";
  for (int i = 0; i < 50'000; ++i)
    text += fmt::format("\"k{}\": \"1\", \"sagemaker_{}\": \"x\",", i, i);
  text.back() = '}';
  ml.write("input/config/hyperparameters.json", text);
  EXPECT_EQ(testing::within_budget(4 * text.size(), "hyperparameters",
                                   [&] { EXPECT_EQ(host_starts(ml), "starts"); }),
            "");
}

}  // namespace
}  // namespace shoal::sagemaker
