#include "shoal/runtime/base/log.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <set>

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"

namespace shoal::log {
namespace {

// The only logger of the process.
struct Logger {
  Logger()
      : sink(std::make_shared<spdlog::logger>(
            "shoal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>())) {
    sink->set_pattern("%H:%M:%S %^%L%$ %v");
    // An invalid SHOAL_LOG must not throw from the first log line. It is logged, and the level
    // stays info.
    const std::string wanted = env::get_string(env::kLog);
    try {
      level = parse_level(wanted);
    } catch (const Error& problem) {
      sink->warn("SHOAL_LOG: {}", problem.what());
    }
    sink->set_level(spdlog::level::trace);
  }
  std::shared_ptr<spdlog::logger> sink;
  std::atomic<Level> level{Level::info};
  std::atomic<int> rank{-1};
  std::mutex mutex;
  std::set<std::string, std::less<>> said, noticed;
  std::vector<Notice> notices;
};

Logger& logger() {
  static Logger instance;
  return instance;
}

}  // namespace

void set_rank(int rank, int world_size) { logger().rank = world_size > 1 ? rank : -1; }
void set_level(Level level) { logger().level = level; }

Level parse_level(std::string_view text) {
  if (text == "debug") return Level::debug;
  if (text == "info") return Level::info;
  if (text == "warn" || text == "warning") return Level::warn;
  if (text == "error") return Level::error;
  if (text == "off") return Level::off;
  throw_error(ErrorCode::invalid_argument,
              "'{}' is not a log level; use debug, info, warn, error or off", text);
}

bool enabled(Level level) { return level >= logger().level.load(std::memory_order_relaxed); }

void write(Level level, std::string_view text) {
  if (!enabled(level)) return;
  Logger& log = logger();
  const int rank = log.rank;
  const std::string shown = terminal::visible(text);
  const std::string line = rank < 0 ? shown : fmt::format("[rank {}] {}", rank, shown);
  switch (level) {
    case Level::debug:
      log.sink->debug("{}", line);
      break;
    case Level::info:
      log.sink->info("{}", line);
      break;
    case Level::warn:
      log.sink->warn("{}", line);
      break;
    case Level::error:
      log.sink->error("{}", line);
      break;
    case Level::off:
      break;
  }
}

void once(Level level, std::string_view key, std::string_view text) {
  Logger& log = logger();
  {
    const std::scoped_lock lock(log.mutex);
    if (log.noticed.emplace(key).second)
      log.notices.push_back({level, std::string(key), std::string(text)});
    if (log.rank > 0) return;
    if (!log.said.emplace(key).second) return;
  }
  write(level, text);
}

std::vector<Notice> notices() {
  Logger& log = logger();
  const std::scoped_lock lock(log.mutex);
  return log.notices;
}

}  // namespace shoal::log
