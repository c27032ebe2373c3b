// S3's operations, by its REST interface (docs.aws.amazon.com/AmazonS3/latest/API).
#pragma once

#include <cstddef>
#include <cstdint>
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
  // What S3 keeps of the whole object, if anything: "crc64nvme" ... and the bytes of its value, or
  // "md5" and those of an ETag that is one (no multipart upload, no KMS key).
  std::string checksum_name = {}, checksum = {};
};

struct ListedObject {
  std::string key;
  std::int64_t size = 0;
  std::string etag;
};

struct PutOptions {
  std::string content_type = "application/octet-stream";
  std::string kms_key_id = {};  // encrypts with it; empty: as the bucket does
};

struct UploadOptions {
  PutOptions put = {};
  std::int64_t part_bytes = 0;  // 0: 16 MiB, more where 10,000 parts would not do
  int connections = 4;          // parts sent at once
};
// The size of all parts but the last: at least 5 MiB, at most 5 GiB, at most 10,000 parts.
// invalid_argument where the object is above 5 TiB or `wanted` leads outside.
std::int64_t part_size(std::int64_t object_bytes, std::int64_t wanted = 0);

// A bucket's region is learnt from S3's answers and remembered. Thread-safe; copies share that.
class S3 {
 public:
  S3(Wire wire, EndpointOptions options);

  ObjectHead head(const S3Name& name, int attempts = 0) const;  // not_found; as read()'s
  // Exactly into.size() bytes from `offset`, in one request. `etag`: what it must still be, else
  // corrupt_data; empty: anything. `attempts` 0: the wire's.
  void read(const S3Name& name, const std::string& etag, std::int64_t offset,
            std::span<std::byte> into, int attempts = 0) const;
  // In S3's order: UTF-8 bytes.
  std::vector<ListedObject> list(const S3Name& prefix, int attempts = 0) const;
  // One request, signed with the body's SHA-256, which S3 checks. Returns the ETag.
  std::string put(const S3Name& name, std::string_view body, const PutOptions& options = {}) const;
  // Any size: one request up to a part's bytes, else a multipart upload, aborted if it fails.
  std::string upload(const S3Name& name, const ByteSource& source,
                     const UploadOptions& options = {}) const;
  void remove(const S3Name& name) const;  // also where there is none

 private:
  struct Regions {
    std::mutex mutex;
    std::map<std::string, std::string> of_bucket;
  };
  // Sends to the bucket's region, once more where S3 names another. `query`: after '?'.
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
