#include "shoal/runtime/io/digest.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include "shoal/runtime/base/error.h"

namespace shoal {

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<char, 32> digest{};
  unsigned length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &length) == nullptr)
    throw Error(ErrorCode::unavailable, "OpenSSL does not compute HMAC-SHA-256");
  return {digest.data(), digest.size()};
}

bool equal_secrets(std::string_view first, std::string_view second) {
  return first.size() == second.size() &&
         CRYPTO_memcmp(first.data(), second.data(), first.size()) == 0;
}

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  for (std::size_t have = 0; have < count;) {
    const ssize_t got = ::getrandom(bytes.data() + have, count - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      throw_error(ErrorCode::unavailable, "the kernel gives no random numbers: {}",
                  std::strerror(errno));
    have += static_cast<std::size_t>(got);
  }
  return bytes;
}

}  // namespace shoal
