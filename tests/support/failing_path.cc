#include "support/failing_path.h"

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <map>
#include <mutex>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace {

struct Failure {
  int error = 0, calls = 0;
};

std::mutex mutex;
std::atomic<int> count{0};  // number of failing paths; 0 makes the checks cheap
std::map<std::string, Failure>& failures() {
  static std::map<std::string, Failure> all;
  return all;
}

bool fails(const char* path) {
  if (count == 0 || path == nullptr) return false;
  const std::scoped_lock lock(mutex);
  const auto found = failures().find(path);
  if (found == failures().end()) return false;
  ++found->second.calls;
  errno = found->second.error;
  return true;
}

// Tests a name relative to an open directory.
bool fails(int directory, const char* name) {
  if (count == 0 || name == nullptr) return false;
  if (directory == AT_FDCWD || name[0] == '/') return fails(name);
  char parent[4096] = {};
  const std::string link = "/proc/self/fd/" + std::to_string(directory);
  if (::readlink(link.c_str(), parent, sizeof parent - 1) < 0) return false;
  return fails((std::string(parent) + "/" + name).c_str());
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

mode_t mode_of(int flags, va_list rest) {
  // va_arg needs the promoted type of mode_t.
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
}

}  // namespace

namespace shoal::test {

FailingPath::FailingPath(std::string path, int error) : path_(std::move(path)) {
  const std::scoped_lock lock(mutex);
  failures()[path_] = {error, 0};
  ++count;
}

FailingPath::~FailingPath() {
  const std::scoped_lock lock(mutex);
  failures().erase(path_);
  --count;
}

int FailingPath::calls() const {
  const std::scoped_lock lock(mutex);
  return failures().at(path_).calls;
}

}  // namespace shoal::test

// Definitions in the executable take precedence over libc's, for shared libraries too.
extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  static const auto next = real<int (*)(const char*, int, ...)>("open");
  return fails(path) ? -1 : next(path, flags, mode);
}

int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  static const auto next = real<int (*)(const char*, int, ...)>("open64");
  return fails(path) ? -1 : next(path, flags, mode);
}

int openat(int directory, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  static const auto next = real<int (*)(int, const char*, int, ...)>("openat");
  return fails(directory, path) ? -1 : next(directory, path, flags, mode);
}

DIR* opendir(const char* path) {
  static const auto next = real<DIR* (*)(const char*)>("opendir");
  return fails(path) ? nullptr : next(path);
}

int stat(const char* __restrict path, struct stat* __restrict status) noexcept {
  static const auto next = real<int (*)(const char*, struct stat*)>("stat");
  return fails(path) ? -1 : next(path, status);
}

int stat64(const char* __restrict path, struct stat64* __restrict status) noexcept {
  static const auto next = real<int (*)(const char*, struct stat64*)>("stat64");
  return fails(path) ? -1 : next(path, status);
}

int remove(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("remove");
  return fails(path) ? -1 : next(path);
}

int unlinkat(int directory, const char* path, int flags) noexcept {
  static const auto next = real<int (*)(int, const char*, int)>("unlinkat");
  return fails(directory, path) ? -1 : next(directory, path, flags);
}

int rename(const char* from, const char* to) noexcept {
  static const auto next = real<int (*)(const char*, const char*)>("rename");
  return fails(from) || fails(to) ? -1 : next(from, to);
}

int unlink(const char* path) noexcept {
  static const auto next = real<int (*)(const char*)>("unlink");
  return fails(path) ? -1 : next(path);
}

}  // extern "C"
