// The checksums that S3 keeps of objects, computed over pieces in order.
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
  virtual std::string finish() = 0;  // the bytes, most significant first; call it once
};

// "md5", "sha1", "sha256", "crc32", "crc32c" or "crc64nvme" (the last part of the names of S3's
// x-amz-checksum-* headers). Null for another, and where OpenSSL refuses one (MD5 in FIPS mode).
std::unique_ptr<Checksum> make_checksum(std::string_view name);

}  // namespace shoal::sagemaker
