// A request is printed without its secrets, which are recognized by name and by value.
#include "shoal/sagemaker/job/secrets.h"

#include <gtest/gtest.h>

namespace shoal::sagemaker {
namespace {

TEST(JobFile, ItsRequestIsShownWithoutSecrets) {
  const Json shown = without_secrets(
      {{"Environment",
        {{"DB_PASSWORD", "a"},
         {"HF_TOKEN", "b"},
         {"MAX_TOKENS", "c"},
         {"P", "http://u:p@proxy:1"}}},
       {"HyperParameters", {{"hub_token", "\"d\""}, {"lr", "0.1"}, {"uri", "\"http://u:p@h\""}}},
       {"RoleArn", "arn"}});
  EXPECT_EQ(
      shown,
      Json({{"Environment",
             {{"DB_PASSWORD", "***"}, {"HF_TOKEN", "***"}, {"MAX_TOKENS", "c"}, {"P", "***"}}},
            {"HyperParameters", {{"hub_token", "***"}, {"lr", "0.1"}, {"uri", "***"}}},
            {"RoleArn", "arn"}}));
  for (const char* name :
       {"--api-key", "x-amz-security-token", "X-Api-Key", "DB_PWD", "ssh.passphrase", "SMTP_PASS",
        "SSL_KEY_PASSPHRASE", "hub-token", "accessKey", "GOOGLE_APPLICATION_CREDENTIAL"})
    EXPECT_TRUE(is_name_of_secret(name)) << name;
  for (const char* name : {"PWD", "OLDPWD", "max_tokens", "compass", "bypass", "api-key-file"})
    EXPECT_FALSE(is_name_of_secret(name)) << name;
  const Json more = without_secrets(
      {{"HyperParameters",
        {{"api-key", "\"a\""},
         {"sagemaker_mpi_custom_mpi_options", "\"-x NCCL_DEBUG=INFO -x HF_TOKEN=b\""},
         {"config_overrides", "\"n_layer=2,pad_token_id=0\""}}},
       {"Tags", {{{"Key", "db-pwd"}, {"Value", "c"}}, {{"Key", "team"}, {"Value", "d"}}}}});
  EXPECT_EQ(
      more,
      Json({{"HyperParameters",
             {{"api-key", "***"},
              {"sagemaker_mpi_custom_mpi_options", "***"},
              {"config_overrides", "\"n_layer=2,pad_token_id=0\""}}},
            {"Tags", {{{"Key", "db-pwd"}, {"Value", "***"}}, {{"Key", "team"}, {"Value", "d"}}}}}));
  EXPECT_FALSE(has_password("ssh://git@host:22/x"));
  EXPECT_FALSE(has_password("https://host:443/a@b"));
}

}  // namespace
}  // namespace shoal::sagemaker
