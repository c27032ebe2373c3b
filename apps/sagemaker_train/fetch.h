// Fetches the job's code from S3.
#pragma once

#include "shoal/sagemaker/container/run.h"

namespace shoal::app {

// Uses the job's role. Null in builds without S3, which refuse code in S3.
sagemaker::Fetch code_fetcher();

}  // namespace shoal::app
