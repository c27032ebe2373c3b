// Instead of fetch.cc, in builds without libcurl and pugixml (SHOAL_SAGEMAKER).
#include "fetch.h"

namespace shoal::app {

std::function<void(const std::string& uri, const std::string& path)> code_fetcher() { return {}; }

}  // namespace shoal::app
