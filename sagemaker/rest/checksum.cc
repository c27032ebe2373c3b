#include "shoal/sagemaker/rest/checksum.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include <openssl/evp.h>

namespace shoal::sagemaker {
namespace {

class OpenSslDigest final : public Checksum {
 public:
  static std::unique_ptr<Checksum> make(const char* name) {
    std::unique_ptr<EVP_MD, decltype(&EVP_MD_free)> kind(EVP_MD_fetch(nullptr, name, nullptr),
                                                         &EVP_MD_free);
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                    &EVP_MD_CTX_free);
    if (!kind || !context || EVP_DigestInit_ex2(context.get(), kind.get(), nullptr) != 1)
      return nullptr;
    return std::unique_ptr<Checksum>(new OpenSslDigest(std::move(context)));
  }
  void add(std::span<const std::byte> piece) override {
    EVP_DigestUpdate(context_.get(), piece.data(), piece.size());
  }
  std::string finish() override {
    std::array<char, EVP_MAX_MD_SIZE> digest{};
    unsigned length = 0;
    EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(digest.data()), &length);
    return {digest.data(), length};
  }

 private:
  using Context = std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)>;
  explicit OpenSslDigest(Context context) : context_(std::move(context)) {}
  Context context_;
};

// A reflected CRC with initial value and final XOR of all ones. Processes eight bytes at a time
// ("slicing by 8", Kounavis and Berry 2008), about ten times faster than bytewise.
template <class Word>
class Crc final : public Checksum {
 public:
  using Tables = std::array<std::array<Word, 256>, 8>;
  static Tables tables_of(Word polynomial) {
    Tables tables{};
    for (unsigned byte = 0; byte < 256; ++byte) {
      Word value = byte;
      for (int bit = 0; bit < 8; ++bit)
        value = (value >> 1U) ^ ((value & 1U) != 0 ? polynomial : Word{0});
      tables[0][byte] = value;
    }
    for (std::size_t slice = 1; slice < 8; ++slice)
      for (std::size_t byte = 0; byte < 256; ++byte) {
        const Word before = tables[slice - 1][byte];
        tables[slice][byte] = (before >> 8U) ^ tables[0][before & 255U];
      }
    return tables;
  }
  explicit Crc(const Tables& tables) : tables_(tables) {}

  void add(std::span<const std::byte> piece) override {
    static_assert(std::endian::native == std::endian::little);
    const std::byte* at = piece.data();
    std::size_t left = piece.size();
    Word value = value_;
    for (; left >= 8; left -= 8, at += 8) {
      std::uint64_t block = 0;
      std::memcpy(&block, at, 8);
      block ^= value;
      Word next = 0;
      for (std::size_t i = 0; i < 8; ++i) next ^= tables_[7 - i][(block >> (8 * i)) & 255U];
      value = next;
    }
    for (; left > 0; --left, ++at)
      value = (value >> 8U) ^ tables_[0][(value ^ static_cast<Word>(*at)) & 255U];
    value_ = value;
  }
  std::string finish() override {
    std::string bytes;
    for (std::size_t i = sizeof(Word); i-- > 0;)
      bytes += static_cast<char>((~value_ >> (8 * i)) & 255U);
    return bytes;
  }

 private:
  const Tables& tables_;
  Word value_ = static_cast<Word>(~Word{0});
};

}  // namespace

std::unique_ptr<Checksum> make_checksum(std::string_view name) {
  using Crc32 = Crc<std::uint32_t>;
  using Crc64 = Crc<std::uint64_t>;
  if (name == "md5") return OpenSslDigest::make("MD5");
  if (name == "sha1") return OpenSslDigest::make("SHA1");
  if (name == "sha256") return OpenSslDigest::make("SHA256");
  if (name == "crc32") {
    static const Crc32::Tables tables = Crc32::tables_of(0xEDB88320U);
    return std::make_unique<Crc32>(tables);
  }
  if (name == "crc32c") {
    static const Crc32::Tables tables = Crc32::tables_of(0x82F63B78U);
    return std::make_unique<Crc32>(tables);
  }
  if (name == "crc64nvme") {
    static const Crc64::Tables tables = Crc64::tables_of(0x9A6C9329AC4BC9B5U);
    return std::make_unique<Crc64>(tables);
  }
  return nullptr;
}

}  // namespace shoal::sagemaker
