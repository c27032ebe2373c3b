#include "shoal/runtime/io/base64.h"

#include <algorithm>

#include <openssl/evp.h>

namespace shoal {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL ends it with a zero byte
  text.resize(
      static_cast<std::size_t>(EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                                               bytes_of(bytes), static_cast<int>(bytes.size()))));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  if (text.size() % 4 != 0 || text.size() > (std::size_t{1} << 30)) return std::nullopt;
  if (text.empty()) return bytes;
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), bytes_of(text),
                                     static_cast<int>(text.size()));
  if (length < 0) return std::nullopt;
  // OpenSSL decodes the padding to zero bytes.
  const std::string_view tail = text.substr(text.size() - 2);
  bytes.resize(bytes.size() - static_cast<std::size_t>(std::count(tail.begin(), tail.end(), '=')));
  return bytes;
}

}  // namespace shoal
