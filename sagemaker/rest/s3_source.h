// s3:// as a ByteSource with parallel ranged reads and read-ahead. All bytes come from the same
// version of the object.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/rest/s3.h"

namespace shoal::sagemaker {

struct S3ReadOptions {
  int connections = 8;                               // concurrent requests, over all open objects
  std::int64_t part_bytes = std::int64_t{8} << 20U;  // per request
  int read_ahead = 4;                                // parts fetched ahead of reads
  int attempts = 8;    // per request, also HEAD and list; enough to survive a bad minute
  bool verify = true;  // check whole objects against S3's checksum, if any
};

// Opens and lists objects over shared connections. Thread-safe. Sources keep the parts they need
// alive.
class S3Reader {
 public:
  explicit S3Reader(S3 s3, S3ReadOptions options = {});
  ~S3Reader();

  // Sends one HEAD for size, ETag and checksum. Throws not_found. Reads of the source:
  // - A read of at least a part's size is split into parts that are fetched concurrently into the
  //   destination. If it covers the whole object, the checksum is verified: corrupt_data on
  //   mismatch.
  // - A smaller read that starts where the last one ended (or at 0) is served from parts read
  //   ahead. Any other read fetches its own range.
  // - Every request has If-Match: a replaced object throws corrupt_data and is never mixed.
  std::shared_ptr<ByteSource> open(const std::string& uri) const;
  // s3:// names of all objects whose keys begin with the prefix's key, without "folders" (keys that
  // end with '/').
  std::vector<std::string> list(const std::string& prefix) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Serves "s3" in `registry`. `make` is called once, when such a name is first used, so programs
// that do not use S3 need no region and no credentials.
void register_s3(SourceRegistry& registry, std::function<std::shared_ptr<const S3Reader>()> make);

}  // namespace shoal::sagemaker
