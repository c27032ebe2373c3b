// Rank-tagged logging over spdlog, to standard error. Programs choose the level
// (SHOAL_LOG=debug|info|warn|error|off) and set the logger's rank once it is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace shoal::log {

enum class Level { debug, info, warn, error, off };

// Thread-safe. Once set, each line starts with the rank: "[rank 2] ...".
void set_rank(int rank, int world_size);
void set_level(Level level);
Level parse_level(std::string_view text);  // throws invalid_argument, naming the levels
bool enabled(Level level);
void write(Level level, std::string_view text);

// Logs `text` once for each `key` in this process, and only on rank 0 (or before ranks are known).
// Fallbacks use it, so that each is logged once per job.
void once(Level level, std::string_view key, std::string_view text);

// All once() calls in this process so far, on any rank and at any level, in order: the job's
// fallbacks.
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
