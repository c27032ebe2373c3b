// Rank-tagged logging over spdlog, to standard error. SHOAL_LOG=debug|info|warn|error|off chooses
// the level. A program sets the rank when it is known.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace shoal::log {

enum class Level { debug, info, warn, error, off };

// Thread-safe. After set_rank(), each line starts with the rank: "[rank 2] ...".
void set_rank(int rank, int world_size);
void set_level(Level level);
Level parse_level(std::string_view text);  // throws invalid_argument, naming the levels
bool enabled(Level level);
void write(Level level, std::string_view text);

// Logs `text` once per `key` and process, and only on rank 0 (or before the rank is known). Used to
// log each fallback once per job.
void once(Level level, std::string_view key, std::string_view text);

// The once() calls of this process so far, in order, including those that were not printed: the
// fallbacks that the job has taken.
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
