// What may be a secret in a job file, and must stand in nothing that is printed.
#pragma once

#include <string_view>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// "scheme://user:password@host/...".
bool has_password(std::string_view url);

// The keys with which AWS's programs sign, as variables.
bool is_aws_key(std::string_view variable);

// The request as it may be shown: "***" for the values of variables and hyperparameters whose names
// end as those of secrets do (HF_TOKEN, DB_PASSWORD, ...), and of those that hold a password's URL.
Json without_secrets(Json request);

}  // namespace shoal::sagemaker
