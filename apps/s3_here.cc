#include "s3_here.h"

#include "core_files.h"

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {

sagemaker::S3 s3_here(const std::string& region) {
  forbid_core_files();
  const sagemaker::Environment environment = sagemaker::process_environment();
  sagemaker::SessionOptions options;
  options.region = region.empty() ? sagemaker::configured_region(environment, {}) : region;
  if (!options.region || options.region->empty())
    throw Error(ErrorCode::invalid_argument, "no AWS region is given, which S3 needs",
                "set the variable AWS_REGION, or a region in the profile of ~/.aws/config");
  return sagemaker::Session(environment, options).s3();
}

}  // namespace shoal::app
