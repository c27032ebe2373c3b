#include "shoal/train/data/tokenizer/sha256.h"

#include <openssl/evp.h>

#include "shoal/runtime/base/error.h"

namespace shoal {

struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  if (context_->md == nullptr || EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) != 1)
    throw_error(ErrorCode::unavailable, "OpenSSL offers no SHA-256");
}

Sha256::~Sha256() = default;

void Sha256::add(const void* data, std::size_t bytes) {
  if (EVP_DigestUpdate(context_->md, data, bytes) != 1)
    throw_error(ErrorCode::internal, "SHA-256 failed over {} bytes", bytes);
}

Sha256Digest Sha256::finish() {
  Sha256Digest digest{};
  if (EVP_DigestFinal_ex(context_->md, digest.data(), nullptr) != 1)
    throw_error(ErrorCode::internal, "SHA-256 failed to finish");
  return digest;
}

Sha256Digest sha256(std::string_view text) {
  Sha256 hash;
  hash.add(text);
  return hash.finish();
}

std::string to_hex(const Sha256Digest& digest) {
  std::string hex;
  for (const std::uint8_t byte : digest) fmt::format_to(std::back_inserter(hex), "{:02x}", byte);
  return hex;
}

Sha256Digest digest_from_hex(std::string_view hex) {
  const auto digit = [&](char c) -> unsigned {
    if (c >= '0' && c <= '9') return static_cast<unsigned>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<unsigned>(c - 'a' + 10);
    throw_error(ErrorCode::invalid_argument, "'{}' is not a SHA-256 in lower-case hex", hex);
  };
  SHOAL_CHECK(hex.size() == 64, "'{}' has {} characters; a SHA-256 has 64", hex, hex.size());
  Sha256Digest digest{};
  for (std::size_t i = 0; i < digest.size(); ++i)
    digest[i] = static_cast<std::uint8_t>(digit(hex[2 * i]) << 4 | digit(hex[2 * i + 1]));
  return digest;
}

}  // namespace shoal
