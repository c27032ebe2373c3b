#include "sources.h"

#include "s3_here.h"

#include "shoal/sagemaker/rest/s3_source.h"

namespace shoal::app {

command::Finding s3_finding() {
  return {"S3", "yes", true,
          "s3:// and SageMaker: data and code of jobs, shoal submit, shoal jobs"};
}

void add_sources(SourceRegistry& registry) {
  sagemaker::register_s3(registry,
                         [] { return std::make_shared<const sagemaker::S3Reader>(s3_here()); });
}

}  // namespace shoal::app
