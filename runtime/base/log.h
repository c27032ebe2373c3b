// Rank-tagged logging over spdlog, to standard error. Programs choose the level
// (SHOAL_LOG=debug|info|warn|error|off) and tell the logger their rank once it is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace shoal::log {

enum class Level { debug, info, warn, error, off };

// Thread-safe. The rank appears in each line once set: "[rank 2] ...".
void set_rank(int rank, int world_size);
void set_level(Level level);
Level parse_level(std::string_view text);  // throws invalid_argument, naming the levels
bool enabled(Level level);
void write(Level level, std::string_view text);

// Logs `text` once for each `key` in this process, and only on rank 0 (or before ranks are
// known). Fallbacks go through here, so that each is said exactly once a job.
void once(Level level, std::string_view key, std::string_view text);

// What once() was told in this process so far, on any rank and at any level, in order: the job's
// fallbacks, for whoever asks.
struct Notice {
  Level level;
  std::string key, text;
};
std::vector<Notice> notices();

template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::debug)) write(Level::debug, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::info)) write(Level::info, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::warn)) write(Level::warn, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(Level::error)) write(Level::error, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal::log
