// Instead of jobs_command.cc and sources.cc, where libcurl or pugixml were missing.
#include "commands.h"
#include "sources.h"

#include "shoal/runtime/base/error.h"

namespace shoal::app {
namespace {

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::unavailable, what + ": this build has no client of SageMaker and S3",
              "install libcurl4-openssl-dev and libpugixml-dev, and build with SHOAL_SAGEMAKER=ON");
}

}  // namespace

void add_jobs(CLI::App& app, Action& action) {
  auto* group = app.add_subcommand("jobs", "SageMaker training jobs (not in this build)");
  group->allow_extras();
  group->callback([&action] { action = []() -> int { refuse("shoal jobs"); }; });
}

void add_sources(SourceRegistry& registry) {
  registry.add(
      "s3", [](const std::string& uri) -> std::shared_ptr<ByteSource> { refuse(uri); },
      [](const std::string& prefix) -> std::vector<std::string> { refuse(prefix); });
}

}  // namespace shoal::app
