#include "shoal/runtime/io/shared_directory.h"

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/control_groups.h"
#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/shown_path.h"

namespace shoal {
namespace {

constexpr std::string_view kMark = "shoal";  // the first word of each line of `alive`

std::string file_in(const std::string& directory) { return directory + "/alive"; }

[[noreturn]] void fail(std::string_view step, const std::string& path) {
  throw Error(ErrorCode::io,
              fmt::format("cannot {} {}: {}", step, shown_path(path), std::strerror(errno)),
              "set TMPDIR to a directory that can be written to");
}

std::string this_boot() {
  std::string boot = read_kernel_file("/proc/sys/kernel/random/boot_id").value_or("");
  while (boot.ends_with('\n')) boot.pop_back();
  return boot.empty() ? "unknown" : boot;
}

std::string this_host() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name[0] == 0 ? "unknown" : name.data();
}

enum class Place : std::uint8_t { absent, ours, other };

// `ours`: a directory of this user, not a link to one.
Place place_of(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return Place::absent;
    fail("look at", path);
  }
  return S_ISDIR(status.st_mode) && status.st_uid == ::geteuid() ? Place::ours : Place::other;
}

// True if `path` still names the open file. Its directory may have been removed since it was
// opened.
bool is_still_at(int fd, const std::string& path) {
  struct stat open{}, named{};
  if (::fstat(fd, &open) != 0) fail("look at", path);
  if (::lstat(path.c_str(), &named) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return false;
    fail("look at", path);
  }
  return open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

// Returns false if `how` includes LOCK_NB and another process holds the lock.
bool lock(int fd, int how, const std::string& path) {
  while (::flock(fd, how) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) fail("lock", path);
  }
  return true;
}

// The content of `alive`: a line "shoal RANK RANKS BOOT HOST" for each rank that has joined.
struct Visits {
  std::set<int> came;
  std::size_t ranks = 0;
  bool this_boot = true;  // false: this host has been rebooted since
};

std::optional<Visits> visits_of(int fd, const std::string& path) {
  std::string text;
  std::array<char, 4096> block{};
  for (ssize_t count = 0;
       (count = ::pread(fd, block.data(), block.size(), static_cast<off_t>(text.size()))) != 0;) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("read", path);
    text.append(block.data(), static_cast<std::size_t>(count));
    if (text.size() > (std::size_t{1} << 20))
      return std::nullopt;  // too large for a file that Shoal wrote
  }
  Visits visits;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string mark, boot, host;
    int rank = 0;
    if (!(words >> mark >> rank >> visits.ranks >> boot >> host) || mark != kMark)
      return std::nullopt;
    visits.came.insert(rank);
    visits.this_boot = host != this_host() || boot == this_boot();
  }
  return visits.came.empty() ? std::nullopt : std::optional(visits);
}

// Renames the directory before removing it. A rank that joins meanwhile creates a new one instead
// of using a partly removed one.
void remove_locked(const std::string& path) {
  const std::string aside = fmt::format("{}.left-{}", path, ::getpid());
  rename_path(path, aside);
  remove_tree(aside);
}

bool was_left(const std::string& path, const Visits& visits) {
  if (visits.came.size() >= visits.ranks || !visits.this_boot) return true;
  const auto changed = modification_time(path);
  return changed &&
         *changed < std::filesystem::file_time_type::clock::now() - deadlines::kRanksCome;
}

void remove_if_left(const std::string& path) {
  if (place_of(path) != Place::ours) return;
  const std::string file = file_in(path);
  const Descriptor alive(::open(file.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
  if (alive.get() < 0) {
    if (errno == ENOENT) return;
    fail("open", file);
  }
  if (!lock(alive.get(), LOCK_EX | LOCK_NB, file) || !is_still_at(alive.get(), file)) return;
  const auto visits = visits_of(alive.get(), file);
  if (visits && was_left(path, *visits)) remove_locked(path);
}

// Returns `alive` with a shared lock; -1: another process has just removed the directory.
int join(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) fail("make the directory", path);
  const Place place = place_of(path);
  if (place == Place::absent) return -1;
  if (place == Place::other) throw_error(ErrorCode::io, "{} is not a directory of this user", path);
  const std::string file = file_in(path);
  Descriptor alive(::open(file.c_str(),
                          O_RDWR | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (alive.get() < 0) {
    if (errno == ENOENT) return -1;
    fail("open", file);
  }
  lock(alive.get(), LOCK_SH, file);
  return is_still_at(alive.get(), file) ? alive.release() : -1;
}

}  // namespace

SharedDirectory::SharedDirectory(std::string path, int rank, int ranks) : path_(std::move(path)) {
  while ((lock_ = join(path_)) < 0) {
  }
  const std::string line =
      fmt::format("{} {} {} {} {}\n", kMark, rank, ranks, this_boot(), this_host());
  ssize_t count = 0;
  while ((count = ::write(lock_, line.data(), line.size())) < 0 && errno == EINTR) {
  }
  if (count == std::ssize(line)) return;
  const Descriptor closed(lock_);
  if (count >= 0) errno = ENOSPC;
  fail("write", file_in(path_));
}

SharedDirectory::~SharedDirectory() {
  const Descriptor alive(lock_);
  try {
    // Converting to an exclusive lock releases the shared lock first, so the last rank to leave
    // succeeds.
    const std::string file = file_in(path_);
    if (!lock(lock_, LOCK_EX | LOCK_NB, file) || !is_still_at(lock_, file)) return;
    const auto visits = visits_of(lock_, file);
    if (visits && visits->came.size() >= visits->ranks) remove_locked(path_);
  } catch (const std::exception& problem) {  // the next run tries again
    log::debug("the files of {} are left behind: {}", path_, problem.what());
  }
}

void remove_left_directories(const std::string& parent, std::string_view prefix) noexcept {
  const auto try_it = [](const std::string& path, auto action) {
    try {
      action();
    } catch (const std::exception& problem) {
      log::debug("the files of {} are left behind: {}", path, problem.what());
    }
  };
  try_it(parent, [&] {
    for (const std::string& name : names_in_if_there(
             parent, [&](std::string_view entry) { return entry.starts_with(prefix); })) {
      const std::string path = parent + "/" + name;
      try_it(path, [&] { remove_if_left(path); });
    }
  });
}

}  // namespace shoal
