// s3:// as a ByteSource: parallel ranged reads, read-ahead, and the promise that all bytes are of
// one version of the object.
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
  int connections = 8;  // requests under way at once, of all open objects
  std::int64_t part_bytes = std::int64_t{8} << 20U;  // of one request
  int read_ahead = 4;                                // parts fetched before they are asked for
  int attempts = 8;    // of each request, HEAD and list too: a job should outlive a bad minute
  bool verify = true;  // whole objects, against S3's checksum where it has one
};

// Opens and lists objects; they share its connections. Thread-safe. Sources keep what they need
// of it alive.
class S3Reader {
 public:
  explicit S3Reader(S3 s3, S3ReadOptions options = {});
  ~S3Reader();

  // One HEAD: size, ETag, checksum. not_found. Of the source:
  // - A read of a part's bytes or more is cut into parts that are fetched at once, straight into
  //   the destination. Of the whole object, the checksum is computed while parts arrive and
  //   compared: corrupt_data.
  // - A smaller one that begins where the one before ended (or at 0) is served from parts fetched
  //   ahead; any other fetches its own range.
  // - Every request says If-Match: an object that was replaced is corrupt_data, never a mixture.
  std::shared_ptr<ByteSource> open(const std::string& uri) const;
  // s3:// names of all objects whose keys begin with the prefix's; no "folders" (keys that end
  // with '/').
  std::vector<std::string> list(const std::string& prefix) const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Serves "s3" of `registry`. `make` is called once, when the first such name is used: a program
// that reads none needs no region and no credentials.
void register_s3(SourceRegistry& registry, std::function<std::shared_ptr<const S3Reader>()> make);

}  // namespace shoal::sagemaker
