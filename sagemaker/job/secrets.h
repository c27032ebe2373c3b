// Recognises possible secrets in a job file, which must never be printed.
#pragma once

#include <string_view>

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// "scheme://user:password@host/...".
bool has_password(std::string_view url);

// True if the name ends like a secret's name: HF_TOKEN, DB_PWD, --api-key, x-amz-security-token.
bool is_name_of_secret(std::string_view name);

// True if the name is a secret's, or the text has a password in a URL or a word HF_TOKEN=...
bool holds_secret(std::string_view name, std::string_view text);

// True for the variables that hold AWS signing keys.
bool is_aws_key(std::string_view variable);

// The request for display. "***" replaces values of variables and hyperparameters that
// holds_secret() recognises, and of tags with a secret's name.
Json without_secrets(Json request);

}  // namespace shoal::sagemaker
