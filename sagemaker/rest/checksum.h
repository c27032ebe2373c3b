// Checksums that S3 stores for objects, computed incrementally.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace shoal::sagemaker {

class Checksum {
 public:
  virtual ~Checksum() = default;
  virtual void add(std::span<const std::byte> piece) = 0;
  virtual std::string finish() = 0;  // bytes, most significant first; call once
};

// "md5", "sha1", "sha256", "crc32", "crc32c" or "crc64nvme" (suffixes of S3's x-amz-checksum-*
// headers). Null for other names, or if OpenSSL refuses one (MD5 in FIPS mode).
std::unique_ptr<Checksum> make_checksum(std::string_view name);

}  // namespace shoal::sagemaker
