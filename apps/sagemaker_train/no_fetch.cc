// Replaces fetch.cc in builds without libcurl and pugixml (SHOAL_SAGEMAKER).
#include "fetch.h"

namespace shoal::app {

sagemaker::Fetch code_fetcher() { return {}; }

}  // namespace shoal::app
