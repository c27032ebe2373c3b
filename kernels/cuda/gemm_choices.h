// The algorithms chosen for products by timing, in a file for the device and the library's version.
// Host code only.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace shoal::kernels {

struct GemmChoice {
  // cublasLtMatmulAlgo_t, which the same version of the library takes back as it is.
  std::array<std::uint64_t, 8> algorithm{};
  std::uint64_t workspace = 0;  // bytes
  double microseconds = 0;
  // False: the product without its activation and a pass of our own were faster; then the above is
  // meaningless.
  bool fused = true;
  friend bool operator==(const GemmChoice&, const GemmChoice&) = default;
};

class GemmChoices {
 public:
  // `directory` empty: remembers in memory alone. What cannot be read, or is of another device or
  // version, is ignored with one line in the log.
  GemmChoices(const std::string& directory, std::string device, std::uint64_t library_version);

  bool on_disk() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  std::optional<GemmChoice> find(const std::string& key) const;
  // Replaces the file whole, with what others have added to it since; a failure is logged once.
  void remember(const std::string& key, const GemmChoice& choice);

 private:
  void read();
  std::string device_, path_;
  std::uint64_t version_;
  std::map<std::string, GemmChoice> choices_;
};

}  // namespace shoal::kernels
