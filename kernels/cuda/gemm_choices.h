// The algorithms chosen for products by timing, in a file for the device and the library's version.
// Ranks that time alone may find another one the fastest each, and other algorithms add in other
// orders: all who share the directory therefore take the choice that was written first, and a run
// that goes on takes those of the run before. Hosts with directories of their own choose for
// themselves. Host code only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace shoal::kernels {

struct GemmChoice {
  // cublasLtMatmulAlgo_t, which the same version of the library takes back as it is.
  std::array<std::uint64_t, 8> algorithm{};
  std::uint64_t workspace = 0;  // bytes
  double microseconds = 0;
  // False: the product without its end (activation, a bias's gradient) and a pass of our own were
  // faster, or cuBLASLt's sums were wrong; then the above is meaningless.
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
  // Of this process, else of the file as it is now.
  std::optional<GemmChoice> find(const std::string& key);
  // What find() knows; else `choice`, unless somebody has written another meanwhile: then that one.
  // The file is replaced whole, with what others have added to it, under a lock that nobody keeps
  // while he times (what is timed may be queued behind what waits for another rank). A failure is
  // logged once.
  GemmChoice agree(const std::string& key, const GemmChoice& choice);
  // find(), else what time() says, agreed upon; nothing where it says nothing. One of several
  // threads or processes that come at once decides for all.
  std::optional<GemmChoice> find_or_time(const std::string& key,
                                         const std::function<std::optional<GemmChoice>()>& time);

 private:
  void read();
  void write() const;
  std::string device_, path_;
  std::uint64_t version_;
  std::map<std::string, GemmChoice> choices_;
};

}  // namespace shoal::kernels
