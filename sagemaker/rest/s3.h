// S3 operations through its REST interface (docs.aws.amazon.com/AmazonS3/latest/API).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/runtime/io/byte_source.h"
#include "shoal/sagemaker/rest/client.h"

namespace shoal::sagemaker {

struct ObjectHead {
  std::int64_t size = 0;  // bytes
  std::string etag;       // with its quotes
  // Checksum that S3 has for the whole object, if any: a name such as "crc64nvme" and its bytes.
  // The name is "md5" if the ETag is one (no multipart upload, no KMS key).
  std::string checksum_name = {}, checksum = {};
};

struct ListedObject {
  std::string key;
  std::int64_t size = 0;
  std::string etag;
};

struct PutOptions {
  std::string content_type = "application/octet-stream";
  std::string kms_key_id = {};  // key for encryption; empty: the bucket's default
};

struct UploadOptions {
  PutOptions put = {};
  std::int64_t part_bytes = 0;  // 0: 16 MiB, or more if that needs over 10,000 parts
  int connections = 4;          // parts sent concurrently
  // Called with the bytes of each part that has been sent, from several threads at once.
  std::function<void(std::int64_t bytes)> sent = {};
};
// Size of all parts but the last: 5 MiB to 5 GiB, with at most 10,000 parts. Throws
// invalid_argument if the object exceeds 5 TiB or `wanted` violates these limits.
std::int64_t part_size(std::int64_t object_bytes, std::int64_t wanted = 0);

// Learns a bucket's region from S3's answers and remembers it. Thread-safe; copies share the
// regions.
class S3 {
 public:
  S3(Wire wire, EndpointOptions options);

  // throws not_found; attempts as in read()
  ObjectHead head(const S3Name& name, int attempts = 0) const;
  // Reads exactly into.size() bytes from `offset`, in one request. If the object's ETag differs
  // from `etag`, throws corrupt_data; empty: not checked. `attempts` 0: the wire's default.
  void read(const S3Name& name, const std::string& etag, std::int64_t offset,
            std::span<std::byte> into, int attempts = 0) const;
  // In S3's order (UTF-8 bytes).
  std::vector<ListedObject> list(const S3Name& prefix, int attempts = 0) const;
  // One request. The signature includes the body's SHA-256, which S3 verifies. Returns the ETag.
  std::string put(const S3Name& name, std::string_view body, const PutOptions& options = {}) const;
  // Uploads a source of any size: in one request up to a part's size, otherwise as a multipart
  // upload, which is aborted on failure.
  std::string upload(const S3Name& name, const ByteSource& source,
                     const UploadOptions& options = {}) const;
  // True if the listed object of the bucket has the source's bytes, by its size and its ETag. If
  // the ETag is not made of MD5s (KMS), by the checksum that S3 keeps of the whole object. Reads
  // the whole source.
  bool has_same(const std::string& bucket, const ListedObject& listed,
                const ByteSource& source) const;
  void remove(const S3Name& name) const;  // succeeds if there is no such object

 private:
  struct Regions {
    std::mutex mutex;
    std::map<std::string, std::string> of_bucket;
  };
  // Sends to the bucket's region; retries once if S3 names another. `query`: the part after '?'.
  HttpResponse send(const S3Name& name, const std::string& query, HttpRequest request,
                    const Call& call) const;
  ServiceClient client_for(const std::string& bucket) const;

  std::string upload_parts(const S3Name& name, const ByteSource& source, std::int64_t part_bytes,
                           const UploadOptions& options) const;
  std::string start_upload(const S3Name& name, const PutOptions& options) const;
  std::string put_part(const S3Name& name, const std::string& upload, int number,
                       std::string_view body) const;
  std::string complete_upload(const S3Name& name, const std::string& upload,
                              const std::vector<std::string>& etags, std::int64_t size) const;

  Wire wire_;
  EndpointOptions options_;
  std::shared_ptr<Regions> regions_ = std::make_shared<Regions>();
};

}  // namespace shoal::sagemaker
