#include "fetch.h"

#include <cstddef>
#include <vector>

#include "core_files.h"

#include "shoal/runtime/io/files.h"
#include "shoal/sagemaker/rest/session.h"

namespace shoal::app {
namespace {

// Archives of code are small: one request, held in memory.
void fetch(const std::string& uri, const std::string& path) {
  forbid_core_files();
  const sagemaker::Session session(sagemaker::process_environment());
  const sagemaker::S3 s3 = session.s3();
  const sagemaker::S3Name name = sagemaker::parse_s3_name(uri);
  const sagemaker::ObjectHead head = s3.head(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(head.size));
  if (!bytes.empty()) s3.read(name, head.etag, 0, bytes);
  AtomicFile file(path, head.size);
  file.write(bytes);
  file.commit();
}

}  // namespace

std::function<void(const std::string& uri, const std::string& path)> code_fetcher() {
  return fetch;
}

}  // namespace shoal::app
