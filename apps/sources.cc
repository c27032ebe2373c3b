#include "sources.h"

#include "core_files.h"

#include "shoal/sagemaker/rest/s3_source.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {

void add_sources(SourceRegistry& registry) {
  sagemaker::register_s3(registry, [] {
    forbid_core_files();
    return std::make_shared<const sagemaker::S3Reader>(
        sagemaker::Session(sagemaker::process_environment()).s3());
  });
}

}  // namespace shoal::app
