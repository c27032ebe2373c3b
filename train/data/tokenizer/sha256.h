// SHA-256 (FIPS 180-4) through OpenSSL.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shoal {

using Sha256Digest = std::array<std::uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  void add(const void* data, std::size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  Sha256Digest finish();  // call once

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

Sha256Digest sha256(std::string_view text);
std::string to_hex(const Sha256Digest& digest);      // 64 lower-case digits
Sha256Digest digest_from_hex(std::string_view hex);  // invalid_argument unless 64 digits

}  // namespace shoal
