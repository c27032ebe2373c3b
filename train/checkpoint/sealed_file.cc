#include "shoal/train/checkpoint/sealed_file.h"

#include <cstring>
#include <memory>
#include <vector>

#include <openssl/evp.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/progress.h"
#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path) : value_(open_regular_file(path)) {}
  ~FileDescriptor() { ::close(value_); }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return value_; }

 private:
  int value_;
};

// Sets `bytes` to the file's size.
Sha256Sum digest(const FileDescriptor& file, const std::string& path, std::int64_t& bytes) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  SHOAL_ASSERT(context && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<unsigned char> block(std::size_t{1} << 20);
  for (bytes = 0;;) {
    const ssize_t got = ::read(file.get(), block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_error(ErrorCode::io, "cannot read {}: {}", path, std::strerror(errno));
    if (got == 0) break;
    bytes += got;
    EVP_DigestUpdate(context.get(), block.data(), static_cast<std::size_t>(got));
    progress::made();
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> sum{};
  EVP_DigestFinal_ex(context.get(), sum.data(), nullptr);
  Sha256Sum words{};
  for (std::size_t i = 0; i < 32; ++i)
    words[i / 8] =
        static_cast<std::int64_t>(static_cast<std::uint64_t>(words[i / 8]) << 8 | sum[i]);
  return words;
}

}  // namespace

std::string to_hex(const Sha256Sum& sum) {
  std::string hex;
  for (const std::int64_t word : sum)
    hex += fmt::format("{:016x}", static_cast<std::uint64_t>(word));
  return hex;
}

SealedFile seal_file(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  const FileDescriptor file(path);
  if (::fsync(file.get()) != 0)
    throw_error(ErrorCode::io, "cannot sync {}: {}", path, std::strerror(errno));
  progress::made();
  SealedFile sealed{.name = name};
  sealed.sha256 = digest(file, path, sealed.bytes);
  return sealed;
}

Sha256Sum sha256_of_file(const std::string& path) {
  std::int64_t bytes = 0;
  return digest(FileDescriptor(path), path, bytes);
}

}  // namespace shoal
