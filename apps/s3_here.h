// Creates an S3 client for programs without AWS options.
#pragma once

#include <string>

#include "shoal/sagemaker/rest/s3.h"

namespace shoal::app {

// Uses credentials, region and endpoints of the environment and profile, like other AWS tools; a
// non-empty `region` has priority. Disables core files. Throws invalid_argument without a region.
sagemaker::S3 s3_here(const std::string& region = "");

}  // namespace shoal::app
