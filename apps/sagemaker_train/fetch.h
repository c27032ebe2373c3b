// The job's code, from S3.
#pragma once

#include <functional>
#include <string>

namespace shoal::app {

// Fetches s3://bucket/key into a file, as the role that the job runs under; null in builds without
// S3, where code in S3 is refused.
std::function<void(const std::string& uri, const std::string& path)> code_fetcher();

}  // namespace shoal::app
