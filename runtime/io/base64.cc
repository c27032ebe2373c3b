#include "shoal/runtime/io/base64.h"

#include <algorithm>

#include <openssl/evp.h>

namespace shoal {
namespace {

const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string text((bytes.size() + 2) / 3 * 4 + 1, '\0');  // OpenSSL adds a zero byte
  text.resize(static_cast<std::size_t>(
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()), unsigned_bytes(bytes),
                      static_cast<int>(bytes.size()))));
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  std::string bytes(text.size() / 4 * 3, '\0');
  if (text.size() % 4 != 0 || text.size() > (std::size_t{1} << 30)) return std::nullopt;
  if (text.empty()) return bytes;
  const std::size_t padding = text.size() - std::min(text.find('='), text.size());
  if (padding > 2 || text.substr(text.size() - padding).find_first_not_of('=') != text.npos)
    return std::nullopt;
  const int length = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                                     unsigned_bytes(text), static_cast<int>(text.size()));
  // OpenSSL ignores some trailing characters, which would give a shorter result.
  if (length < 0 || static_cast<std::size_t>(length) != bytes.size()) return std::nullopt;
  bytes.resize(bytes.size() - padding);  // OpenSSL decodes padding to zero bytes
  return bytes;
}

}  // namespace shoal
