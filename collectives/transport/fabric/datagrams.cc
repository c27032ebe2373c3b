#include "shoal/collectives/transport/fabric/datagrams.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string>

#include <fmt/format.h>

#include "shoal/runtime/base/error.h"

namespace shoal::collectives::fabric {
namespace {

constexpr const char* kVariable = "FI_OFI_RXD_MAX_UNACKED";
constexpr int kProvidersWindow = 128;  // the provider's default

bool overruns(std::uint32_t version) { return version < (2u << 16 | 4u); }
bool overruns(std::string_view provider, std::uint32_t version) {
  return provider == "udp;ofi_rxd" && overruns(version);
}

}  // namespace

void bound_datagrams(std::uint32_t version, int peers) {
  [[maybe_unused]] static const bool once = [version, peers] {
    const int window = std::clamp(kMostDatagrams / std::max(peers, 1), 1, kDatagramWindow);
    if (overruns(version))  // NOLINTNEXTLINE(concurrency-mt-unsafe)
      ::setenv(kVariable, std::to_string(window).c_str(), 0);  // keeps the user's value
    return true;
  }();
}

int datagram_window() {
  const char* value = std::getenv(kVariable);  // NOLINT(concurrency-mt-unsafe)
  const std::string_view text = value ? value : "";
  int window = kProvidersWindow;
  std::from_chars(text.data(), text.data() + text.size(), window);
  return window;
}

std::size_t datagram_receives(std::string_view provider, std::uint32_t version,
                              std::size_t offered) {
  if (!overruns(provider, version)) return offered;
  return std::min<std::size_t>(offered, kDatagramReceives);
}

void check_datagrams(std::string_view provider, std::uint32_t version, int window, int peers) {
  const std::int64_t datagrams = std::int64_t{window} * peers;
  if (!overruns(provider, version) || datagrams <= kMostDatagrams) return;
  const int fits = kMostDatagrams / peers;
  throw Error(
      ErrorCode::unavailable,
      fmt::format("udp;ofi_rxd of libfabric {}.{} overruns its queue of datagrams: {} peers may "
                  "have {} each on their way, {} in all are safe",
                  version >> 16, version & 0xffff, peers, window, kMostDatagrams),
      fits > 0 ? fmt::format("set {}={} before the program starts, or use tcp or libfabric 2.4",
                             kVariable, fits)
               : "use tcp or libfabric 2.4");
}

}  // namespace shoal::collectives::fabric
