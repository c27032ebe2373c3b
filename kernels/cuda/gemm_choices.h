// The matmul algorithms chosen by timing, stored in a file for the device and the library's
// version. Ranks that time separately may choose different algorithms, which add in different
// orders. So all processes that share the directory use the first choice written, and a resumed run
// uses those of the earlier run. Hosts with separate directories choose separately. Host code only.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace shoal::kernels {

struct GemmChoice {
  // A cublasLtMatmulAlgo_t; the same version of the library accepts it back unchanged.
  std::array<std::uint64_t, 8> algorithm{};
  std::uint64_t workspace = 0;  // bytes
  double microseconds = 0;
  // False: the product without its epilogue (activation, a bias's gradient) plus a pass of our own
  // was faster, or cuBLASLt's sums were wrong. The fields above are then meaningless.
  bool fused = true;
  friend bool operator==(const GemmChoice&, const GemmChoice&) = default;
};

class GemmChoices {
 public:
  // Empty `directory`: choices stay in memory. A file that cannot be read, or is for another device
  // or version, is ignored with one line in the log.
  GemmChoices(const std::string& directory, std::string device, std::uint64_t library_version);

  bool on_disk() const { return !path_.empty(); }
  const std::string& path() const { return path_; }
  // Returns this process's choice, or else the one that is in the file now.
  std::optional<GemmChoice> find(const std::string& key);
  // Returns find()'s choice if there is one, even if another process has written it meanwhile;
  // otherwise stores and returns `choice`. The file is replaced as a whole, including choices of
  // other processes, under a lock. No process holds the lock while it times, since timed work may
  // be queued behind work that waits for another rank. A failure to write is logged once.
  GemmChoice agree(const std::string& key, const GemmChoice& choice);
  // Returns find()'s choice, or else agree() on the result of time(); nullopt if time() returns
  // none. If several threads or processes time at once, they all use the result of one of them.
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
