// The job's code, from S3.
#pragma once

#include "shoal/sagemaker/container/run.h"

namespace shoal::app {

// As the role that the job runs under; null in builds without S3, where code in S3 is refused.
sagemaker::Fetch code_fetcher();

}  // namespace shoal::app
