// What may be a secret in a job file, and must stand in nothing that is printed.
#pragma once

#include <string_view>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// "scheme://user:password@host/...".
bool has_password(std::string_view url);

// Whether names of variables, options and keys end as this one where they are of secrets: HF_TOKEN,
// DB_PWD, --api-key, x-amz-security-token.
bool is_name_of_secret(std::string_view name);

// Whether a value is one by its name, is a password's URL, or has a word HF_TOKEN=...
bool holds_secret(std::string_view name, std::string_view text);

// The keys with which AWS's programs sign, as variables.
bool is_aws_key(std::string_view variable);

// The request as it may be shown: "***" for the values of variables, hyperparameters and tags whose
// names are of secrets, and of those that hold a password's URL or a word HF_TOKEN=...
Json without_secrets(Json request);

}  // namespace shoal::sagemaker
