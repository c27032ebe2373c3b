#include "shoal/train/checkpoint/run_lock.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <optional>
#include <random>
#include <sstream>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <fmt/chrono.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal {
namespace {

constexpr std::size_t kMostBytes = 4096;  // a larger lock file is malformed
constexpr double kLooksInLease = 60;
// Limit of a wait, in leases: one for the holder, one for a waiter that died with the claim, and a
// margin.
constexpr double kMostLeases = 5;
constexpr int kAttempts = 3;

[[noreturn]] void fail(const char* step, const std::string& path) {
  throw_error(ErrorCode::io, "cannot {} {}: {}", step, path, std::strerror(errno));
}

// Opens the file again each time, so that a network file system asks its server.
std::optional<std::string> small_file(const std::string& path) {
  for (int attempt = 1;; ++attempt) {
    int descriptor = -1;
    try {
      descriptor = open_regular_file(path);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::not_found) return std::nullopt;
      throw;
    }
    std::string text(kMostBytes, '\0');
    std::size_t have = 0;
    ::ssize_t count = 0;
    do {
      count = ::read(descriptor, text.data() + have, text.size() - have);
      if (count > 0) have += static_cast<std::size_t>(count);
    } while (count > 0 || (count < 0 && errno == EINTR));
    const int error = errno;
    ::close(descriptor);
    errno = error;
    text.resize(have);
    if (count == 0) return text;
    // On a network file system, the file may be removed between open() and read(). The next open()
    // shows that.
    if (error != ESTALE || attempt == kAttempts) fail("read", path);
  }
}

// Creates a new, empty file; returns -1 if the name exists.
int create_new(const std::string& file) {
  const int descriptor = ::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0 && errno != EEXIST) fail("create", file);
  return descriptor;
}

std::string now_text() {
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(std::time(nullptr)));
}

// State of a process: ended (including zombies), alive since a tick of the boot, or unknown.
struct ProcessLife {
  bool ended = false;
  std::optional<std::uint64_t> start;
};

ProcessLife life_of(std::int64_t pid) {
  const auto gone = [pid] { return ::kill(static_cast<::pid_t>(pid), 0) != 0 && errno == ESRCH; };
  if (gone()) return {true, {}};
  std::optional<std::string> stat;
  best_effort("look at the process that holds an output_dir",
              [&] { stat = small_file(fmt::format("/proc/{}/stat", pid)); });
  // The process has just ended, or /proc hides other users' processes.
  if (!stat) return {gone(), {}};
  const std::size_t name_end = stat->rfind(')');  // the name may contain blanks and brackets
  if (name_end == std::string::npos) return {};
  std::istringstream fields(stat->substr(name_end + 1));
  std::string field;
  fields >> field;  // the third field: the state
  if (field == "Z" || field == "X") return {true, {}};
  for (int skipped = 4; skipped < 22; ++skipped) fields >> field;
  std::uint64_t start = 0;
  if (fields >> start) return {false, start};
  return {};
}

// True for a token made by Holder::self(). Another program may have written anything, even a path.
bool is_token(std::string_view text) {
  return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos;
}

struct Holder {
  std::string host, boot, token, since, alive;
  std::uint64_t pid_namespace = 0, start = 0, beat = 0;
  std::int64_t pid = 0;

  static Holder self() {
    Holder own;
    own.host = host_name();
    own.boot = small_file("/proc/sys/kernel/random/boot_id").value_or("");
    while (own.boot.ends_with('\n')) own.boot.pop_back();
    struct ::stat of_namespace{};
    if (::stat("/proc/self/ns/pid", &of_namespace) == 0) own.pid_namespace = of_namespace.st_ino;
    own.pid = ::getpid();
    own.start = life_of(own.pid).start.value_or(0);
    std::random_device random;
    own.token = fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
    own.since = own.alive = now_text();
    return own;
  }

  // The text has the same length for each beat, because it overwrites the previous one.
  std::string text() const {
    nlohmann::ordered_json json;
    json["host"] = host;
    json["boot"] = boot;
    json["pid_namespace"] = pid_namespace;
    json["pid"] = pid;
    json["process_start"] = start;
    json["token"] = token;
    json["since"] = since;
    std::string text = json.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
    text.pop_back();
    return text + fmt::format(",\"alive\":\"{}\",\"beat\":{:20}}}\n", alive, beat);
  }

  // nullopt: malformed, as a file may be while it is written.
  static std::optional<Holder> of(std::string_view text) {
    const std::optional<nlohmann::json> json = json_if_valid(text);
    if (!json || !json->is_object()) return std::nullopt;
    try {
      Holder holder;
      const JsonFields fields(*json, "run.lock");
      fields.text("host", holder.host);
      fields.text("boot", holder.boot);
      fields.text("token", holder.token);
      fields.text("since", holder.since);
      fields.text("alive", holder.alive);
      fields.integer("pid_namespace", holder.pid_namespace);
      fields.integer("process_start", holder.start);
      fields.integer("pid", holder.pid);
      if (holder.token.empty() || holder.pid <= 0) return std::nullopt;
      for (std::string* const shown : {&holder.host, &holder.since, &holder.alive})
        std::ranges::replace(*shown, '\n', ' ');
      return holder;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  std::string name() const { return fmt::format("process {} on {} since {}", pid, host, since); }
};

// Whether a holder lives, as far as this host's processes show.
enum class Life : std::uint8_t { unknown, ended, alive };
Life life_here(const Holder& holder, const Holder& own) {
  if (own.boot.empty() || holder.boot != own.boot || holder.host != own.host ||
      holder.pid_namespace != own.pid_namespace || own.pid_namespace == 0)
    return Life::unknown;
  const ProcessLife life = life_of(holder.pid);
  if (life.ended) return Life::ended;
  if (!life.start || holder.start == 0) return Life::unknown;
  return *life.start == holder.start ? Life::alive : Life::ended;
}

}  // namespace

struct RunLock::Impl {
  std::string output_dir, path;
  std::function<void(const std::string&)> say;
  RunLockTimes times;
  Holder own = Holder::self();
  int descriptor = -1;
  std::mutex mutex;
  std::condition_variable wake;
  bool ends = false;
  std::string claimed_by_another;  // the stale lock that another waiter had claimed already
  std::thread refresher;

  void tell(const std::string& line) const {
    if (say)
      say(line);
    else
      log::warn("{}", line);
  }

  // False: the file exists. A new file is empty at first; a waiter that sees it empty keeps
  // watching it.
  bool create(const std::string& file) {
    own.since = own.alive = now_text();
    descriptor = create_new(file);
    if (descriptor < 0) return false;
    try {
      write_beat();
    } catch (...) {  // a full disk: the next run must not wait for an empty lock
      best_effort("remove a lock that was not written", [&] { remove_file(file); });
      throw;
    }
    return true;
  }

  void write_beat() const {
    const std::string text = own.text();
    const ::ssize_t written = ::pwrite(descriptor, text.data(), text.size(), 0);
    if (written >= 0 && static_cast<std::size_t>(written) != text.size()) errno = ENOSPC;
    if (written < 0 || static_cast<std::size_t>(written) != text.size()) fail("write", path);
    if (::fsync(descriptor) != 0) fail("sync", path);
  }

  [[noreturn]] void refuse(const std::optional<Holder>& holder) const {
    throw Error(ErrorCode::invalid_argument,
                holder ? fmt::format("{} is in use by {} (last sign of life {})", output_dir,
                                     holder->name(), holder->alive)
                       : fmt::format("{} is in use: another run is writing {}", output_dir, path),
                "wait for it, stop it, or give another --output_dir");
  }

  std::optional<Holder> holder_now() const {
    const std::optional<std::string> text = small_file(path);
    return text ? Holder::of(*text) : std::nullopt;
  }

  bool holds() const {
    const std::optional<Holder> holder = holder_now();
    return holder && holder->token == own.token;
  }

  std::string remedy() const {
    return fmt::format("remove {} if no run writes there, or give another --output_dir", path);
  }

  void refuse_link() const {
    if (const std::optional<std::string> target = link_target(path))
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is a link to {}, not the lock of a run", path, *target),
                  remedy());
  }

  void take() {
    const Deadline end = Deadline::in_seconds(kMostLeases * times.lease);
    while (!create(path)) {
      refuse_link();
      if (end.passed())
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} cannot be had: its {} came and went for {:g} s", output_dir,
                                kRunLockFile, kMostLeases * times.lease),
                    remedy());
      const std::optional<std::string> seen = small_file(path);
      if (!seen) {  // just released, or the file system does not show it yet
        look_again_later();
        continue;
      }
      const std::optional<Holder> holder = Holder::of(*seen);
      const Life life = holder ? life_here(*holder, own) : Life::unknown;
      if (life == Life::alive) refuse(holder);
      if (life == Life::unknown && !stands_still(*seen, holder)) continue;
      if (replace_stale(*seen, holder)) {
        tell(holder ? fmt::format("note: {} was in use by {}, which {}: this run takes it over",
                                  output_dir, holder->name(),
                                  life == Life::ended
                                      ? "has ended"
                                      : fmt::format("gave no sign of life for {:g} s", times.lease))
                    : fmt::format("note: {} cannot be read and nothing wrote it for {:g} s: this "
                                  "run takes {} over",
                                  path, times.lease, output_dir));
        return;
      }
      // Another waiter has the claim. It has one lease to put its lock in place.
      if (life == Life::ended) stands_still(*seen, holder);
    }
  }

  void look_again_later() const {
    std::this_thread::sleep_for(std::chrono::duration<double>(times.lease / kLooksInLease));
  }

  // Measures with this process's own clock, because hosts' clocks may differ. True: the file did
  // not change during the lease. False: the file is gone, or it is another run's lock. Throws if
  // the holder beats again.
  bool stands_still(const std::string& seen, const std::optional<Holder>& holder) const {
    tell(fmt::format("note: {} is in use by {}: waiting up to {:g} s to see whether it still lives",
                     output_dir, holder ? holder->name() : "the run that wrote " + path,
                     times.lease));
    const Deadline lease = Deadline::in_seconds(times.lease);
    while (!lease.passed()) {
      look_again_later();
      const std::optional<std::string> now = small_file(path);
      if (!now) return false;
      if (*now == seen) continue;
      const std::optional<Holder> is = Holder::of(*now);
      if (!holder || !is || is->token != holder->token) {
        if (!is) refuse(is);
        return false;
      }
      refuse(is);
    }
    return true;
  }

  // One of several waiters creates the claim, a file named after the stale lock. It renames its own
  // lock into place, so that a lock exists at every moment. It needs no hard link, which many file
  // systems lack.
  bool replace_stale(const std::string& stale, const std::optional<Holder>& holder) {
    const std::string claim =
        fmt::format("{}/tmp-checkpoint-lock-{}", output_dir,
                    holder && is_token(holder->token) ? holder->token : std::string("unreadable"));
    const int claimed = create_new(claim);
    if (claimed < 0) {
      // Another waiter is replacing it. If the lock outlives a second lease, that waiter has died.
      if (std::exchange(claimed_by_another, stale) == stale) remove_file(claim);
      return false;
    }
    ::close(claimed);
    const std::string next = fmt::format("{}/tmp-checkpoint-lock-{}", output_dir, own.token);
    try {
      if (small_file(path) == stale && create(next)) rename_path(next, path);
      remove_file(claim);
      if (holds()) return true;
    } catch (const Error& error) {
      best_effort("remove a claim", [&] { remove_file(claim), remove_file(next); });
      throw Error(error.code(), error.message(), remedy());
    }
    if (descriptor >= 0) ::close(std::exchange(descriptor, -1));
    return false;
  }

  // Beats go to the open file, so they can never go into another run's lock.
  void beat() {
    std::unique_lock lock(mutex);
    bool warned = false;
    while (
        !wake.wait_for(lock, std::chrono::duration<double>(times.beat), [this] { return ends; })) {
      ++own.beat;
      own.alive = now_text();
      try {
        write_beat();
        warned = false;
      } catch (const Error& error) {
        if (!warned) log::warn("the lock of {} is not kept alive: {}", output_dir, error.what());
        warned = true;
      }
    }
  }

  void release() noexcept {
    if (refresher.joinable()) {
      {
        const std::lock_guard lock(mutex);
        ends = true;
      }
      wake.notify_all();
      refresher.join();
    }
    if (descriptor < 0) return;
    ::close(std::exchange(descriptor, -1));
    best_effort("remove the lock of this run", [this] {
      if (holds()) remove_file(path);
    });
  }
};

RunLock::RunLock(const std::string& output_dir, const std::function<void(const std::string&)>& say,
                 const RunLockTimes& times)
    : impl_(std::make_unique<Impl>()) {
  impl_->output_dir = output_dir;
  impl_->path = fmt::format("{}/{}", output_dir, kRunLockFile);
  impl_->say = say;
  impl_->times = times;
  make_directories(output_dir, "choose another --output_dir or its permissions");
  try {
    impl_->take();
    impl_->say = {};
    impl_->refresher = std::thread([impl = impl_.get()] { impl->beat(); });
  } catch (...) {
    impl_->release();
    throw;
  }
}

RunLock::~RunLock() { impl_->release(); }

void RunLock::check() const {
  const std::optional<std::string> text = small_file(impl_->path);
  const std::optional<Holder> holder = text ? Holder::of(*text) : std::nullopt;
  if (holder && holder->token == impl_->own.token) return;
  throw Error(ErrorCode::unavailable,
              holder ? fmt::format("{} was taken over by {}: this run gave no sign of life for too "
                                   "long, and writes nothing there any more",
                                   impl_->output_dir, holder->name())
                     : fmt::format("{} is no longer this run's: its {} is {}", impl_->output_dir,
                                   kRunLockFile, text ? "overwritten" : "gone"),
              "let one run alone use an --output_dir");
}

}  // namespace shoal
