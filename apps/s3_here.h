// S3 for programs that take no options of AWS's.
#pragma once

#include <string>

#include "shoal/sagemaker/rest/s3.h"

namespace shoal::app {

// With the credentials, region and endpoints of the environment and the profile, as every AWS tool
// finds them; a `region` that is not empty goes before theirs. No core file is made from now on.
// invalid_argument where nothing names a region.
sagemaker::S3 s3_here(const std::string& region = "");

}  // namespace shoal::app
