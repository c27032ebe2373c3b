// A file of a checkpoint with the SHA-256 (FIPS 180-4) that its writer computed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>

namespace shoal {

// Eight bytes per word, in big-endian order. Ranks can exchange these words with a sum.
using Sha256Sum = std::array<std::int64_t, 4>;
std::string to_hex(const Sha256Sum& sum);

struct SealedFile {
  std::string name;  // within the checkpoint's directory
  std::int64_t bytes = 0;
  Sha256Sum sha256 = {};
};

// Syncs the file and reads every byte. Blocks; throws io with path and reason.
SealedFile seal_file(const std::string& directory, const std::string& name);
// Reads every byte; a sign of progress (progress.h) after each MiB.
Sha256Sum sha256_of_file(const std::string& path);

}  // namespace shoal
