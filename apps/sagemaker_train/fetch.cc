#include "fetch.h"

#include <cstddef>
#include <vector>

#include "s3_here.h"

#include "shoal/runtime/io/files.h"

namespace shoal::app {
namespace {

// Code archives are small: fetched with one request into memory.
void fetch(const std::string& uri, const std::string& path, const std::string& region) {
  const sagemaker::S3 s3 = s3_here(region);
  const sagemaker::S3Name name = sagemaker::parse_s3_name(uri);
  const sagemaker::ObjectHead head = s3.head(name);
  std::vector<std::byte> bytes(static_cast<std::size_t>(head.size));
  if (!bytes.empty()) s3.read(name, head.etag, 0, bytes);
  AtomicFile file(path, head.size);
  file.write(bytes);
  file.commit();
}

}  // namespace

sagemaker::Fetch code_fetcher() { return fetch; }

}  // namespace shoal::app
