// Security Token Service: temporary keys of roles.
#pragma once

#include <string>

#include "shoal/sagemaker/rest/client.h"

namespace shoal::sagemaker {

struct AssumeRole {
  std::string role_arn;
  std::string session_name;        // 2 to 64 of A-Za-z0-9_=,.@-
  std::string external_id = {};    // empty: none
  int duration_seconds = 3600;     // 900 to 43200
  Secret web_identity_token = {};  // for AssumeRoleWithWebIdentity, which is unsigned
};
// Calls AssumeRoleWithWebIdentity if web_identity_token is set, otherwise AssumeRole.
Credentials assume_role(const ServiceClient& sts, const AssumeRole& arguments);

}  // namespace shoal::sagemaker
