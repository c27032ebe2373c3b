// Preloaded into a program: its N-th call to the operating system for a file under a given folder
// fails, or ends the process. The environment says what happens:
//   NTH_CALL_ROOT     the folder; calls for other files do not count
//   NTH_CALL     N from 1 on; 0: only counts
//   NTH_CALL_EFFECT   "error", "kill", "full" (from this call on, nothing more can be written), or
//                      "memory" (the N-th operator new of 16 KiB or more throws; calls do not
//                      count. Of smaller ones, some lie in functions of libraries that may not
//                      throw: the destructor of a nlohmann::json makes a vector of up to 32 bytes a
//                      child, and the largest here has 280)
//   NTH_CALL_VARIANT  which of the call's errors, 0, 1, ...
//   NTH_CALL_LOG      gets one line for the injected fault, and "calls M" when the process ends
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <new>

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

struct Plan {
  const char* root = std::getenv("NTH_CALL_ROOT");
  std::size_t root_bytes = root == nullptr ? 0 : std::strlen(root);
  std::int64_t nth = number("NTH_CALL");
  std::int64_t variant = number("NTH_CALL_VARIANT");
  bool kill = is_effect("kill"), full = is_effect("full"), memory = is_effect("memory");
  const char* log = std::getenv("NTH_CALL_LOG");

  static std::int64_t number(const char* name) {
    const char* value = std::getenv(name);
    return value == nullptr ? 0 : std::atoll(value);
  }
  static bool is_effect(const char* wanted) {
    const char* value = std::getenv("NTH_CALL_EFFECT");
    return value != nullptr && std::strcmp(value, wanted) == 0;
  }
};

const Plan& plan() {
  static const Plan of_environment;
  return of_environment;
}

std::atomic<std::int64_t> calls{0};
// A file below the root was asked for. Allocations before that do not count: they belong to
// initializers, and to CLI11, some of whose functions may not throw.
std::atomic<bool> began{false};
constexpr std::size_t kDescriptors = 4'096;
std::array<std::atomic<bool>, kDescriptors> is_below{};  // the descriptor's file is below the root

void note(const char* text, int bytes) {
  const int saved = errno;
  const long log = ::syscall(SYS_openat, AT_FDCWD, plan().log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log >= 0) {
    ::syscall(SYS_write, log, text, bytes);
    ::syscall(SYS_close, log);
  }
  errno = saved;
}

struct Ending {
  Ending() { (void)plan(); }
  ~Ending() {
    char line[64];
    if (plan().log != nullptr)
      note(line,
           std::snprintf(line, sizeof line, "calls %lld\n", static_cast<long long>(calls.load())));
  }
} ending;

[[noreturn]] void end_here() {
  ::syscall(SYS_kill, ::getpid(), SIGKILL);
  for (;;) ::pause();
}

// Counts a call; sets errno and returns true if it has to fail. `writes`: it needs space on the
// disk.
bool fails(const char* name, const char* path, std::initializer_list<int> errors,
           bool writes = false) {
  const Plan& now = plan();
  began = true;
  if (now.memory) return false;
  const std::int64_t at = ++calls;
  if (now.nth == 0 || at < now.nth || (at > now.nth && !now.full)) return false;
  if (now.full && !writes) return false;
  const int error =
      now.full ? ENOSPC : errors.begin()[static_cast<std::size_t>(now.variant) % errors.size()];
  if (at == now.nth || now.full) {
    char line[4'400];
    note(line, std::min<int>(sizeof line, std::snprintf(line, sizeof line, "%s %d %s\n", name,
                                                        now.kill ? 0 : error, path)));
  }
  if (now.kill) end_here();
  errno = error;
  return true;
}

bool below(const char* path) {
  return path != nullptr && plan().root_bytes > 0 &&
         std::strncmp(path, plan().root, plan().root_bytes) == 0;
}
bool below(int descriptor) {
  return descriptor >= 0 && descriptor < static_cast<int>(kDescriptors) &&
         is_below[static_cast<std::size_t>(descriptor)];
}
bool below(int directory, const char* path) {
  return path != nullptr &&
         (path[0] == '/' || directory == AT_FDCWD ? below(path) : below(directory));
}
int opened(int descriptor, bool is) {
  if (descriptor >= 0 && descriptor < static_cast<int>(kDescriptors))
    is_below[static_cast<std::size_t>(descriptor)] = is;
  return descriptor;
}

template <typename Function>
Function real(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

bool open_fails(const char* path, int flags) {
  if ((flags & (O_CREAT | O_TMPFILE)) != 0)
    return fails("open", path, {ENOSPC, EMFILE, EIO, EINTR}, true);
  return fails("open", path, {EIO, EMFILE, ESTALE, EINTR});
}

mode_t mode_of(int flags, va_list rest) {
  // va_arg needs the promoted type of mode_t.
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, unsigned) : 0;
}

void maybe_throw(std::size_t bytes) {
  if (bytes < 16'384 || !began || !plan().memory) return;
  const std::int64_t at = ++calls;
  if (plan().nth == 0 || at != plan().nth) return;
  note("operator new 12 -\n", 18);
  throw std::bad_alloc();
}

}  // namespace

void* operator new(std::size_t bytes) {
  maybe_throw(bytes);
  void* block = std::malloc(std::max<std::size_t>(bytes, 1));
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* operator new(std::size_t bytes, std::align_val_t align) {
  maybe_throw(bytes);
  const auto to = static_cast<std::size_t>(align);
  void* block = std::aligned_alloc(to, (std::max<std::size_t>(bytes, 1) + to - 1) / to * to);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void operator delete(void* block) noexcept { std::free(block); }
void operator delete(void* block, std::size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, std::size_t, std::align_val_t) noexcept { std::free(block); }

extern "C" {

#define SHOAL_OPEN(name)                                                  \
  int name(const char* path, int flags, ...) {                            \
    va_list rest;                                                         \
    va_start(rest, flags);                                                \
    const mode_t mode = mode_of(flags, rest);                             \
    va_end(rest);                                                         \
    static const auto next = real<int (*)(const char*, int, ...)>(#name); \
    const bool counts = below(path);                                      \
    if (counts && open_fails(path, flags)) return -1;                     \
    return opened(next(path, flags, mode), counts);                       \
  }
SHOAL_OPEN(open)
SHOAL_OPEN(open64)
#undef SHOAL_OPEN

#define SHOAL_OPENAT(name)                                                     \
  int name(int directory, const char* path, int flags, ...) {                  \
    va_list rest;                                                              \
    va_start(rest, flags);                                                     \
    const mode_t mode = mode_of(flags, rest);                                  \
    va_end(rest);                                                              \
    static const auto next = real<int (*)(int, const char*, int, ...)>(#name); \
    const bool counts = below(directory, path);                                \
    if (counts && open_fails(path, flags)) return -1;                          \
    return opened(next(directory, path, flags, mode), counts);                 \
  }
SHOAL_OPENAT(openat)
SHOAL_OPENAT(openat64)
#undef SHOAL_OPENAT

#define SHOAL_FOPEN(name)                                                                \
  FILE* name(const char* path, const char* mode) {                                       \
    static const auto next = real<FILE* (*)(const char*, const char*)>(#name);           \
    const bool counts = below(path);                                                     \
    if (counts && open_fails(path, mode[0] == 'r' ? O_RDONLY : O_CREAT)) return nullptr; \
    FILE* file = next(path, mode);                                                       \
    if (file != nullptr) opened(::fileno(file), counts);                                 \
    return file;                                                                         \
  }
SHOAL_FOPEN(fopen)
SHOAL_FOPEN(fopen64)
#undef SHOAL_FOPEN

// A call on a descriptor: its result and name, its parameters, their names, its errors, and whether
// it needs space.
#define SHOAL_ON_DESCRIPTOR(result, name, parameters, arguments, writes, ...)     \
  result name parameters {                                                        \
    static const auto next = real<result(*) parameters>(#name);                   \
    if (below(descriptor) && fails(#name, "-", {__VA_ARGS__}, writes)) return -1; \
    return next arguments;                                                        \
  }
SHOAL_ON_DESCRIPTOR(ssize_t, read, (int descriptor, void* to, size_t bytes),
                    (descriptor, to, bytes), false, EIO, ESTALE, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, pread, (int descriptor, void* to, size_t bytes, off_t at),
                    (descriptor, to, bytes, at), false, EIO, ESTALE, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, pread64, (int descriptor, void* to, size_t bytes, off64_t at),
                    (descriptor, to, bytes, at), false, EIO, ESTALE, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, readv, (int descriptor, const iovec* to, int count),
                    (descriptor, to, count), false, EIO, ESTALE, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, write, (int descriptor, const void* from, size_t bytes),
                    (descriptor, from, bytes), true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, pwrite, (int descriptor, const void* from, size_t bytes, off_t at),
                    (descriptor, from, bytes, at), true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, pwrite64, (int descriptor, const void* from, size_t bytes, off64_t at),
                    (descriptor, from, bytes, at), true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(ssize_t, writev, (int descriptor, const iovec* from, int count),
                    (descriptor, from, count), true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(int, fsync, (int descriptor), (descriptor), true, EIO, ENOSPC)
SHOAL_ON_DESCRIPTOR(int, fdatasync, (int descriptor), (descriptor), true, EIO, ENOSPC)
SHOAL_ON_DESCRIPTOR(int, flock, (int descriptor, int operation), (descriptor, operation), false,
                    ENOLCK, EINTR)
SHOAL_ON_DESCRIPTOR(int, ftruncate, (int descriptor, off_t bytes) noexcept, (descriptor, bytes),
                    true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(int, ftruncate64, (int descriptor, off64_t bytes) noexcept, (descriptor, bytes),
                    true, ENOSPC, EIO, EINTR)
SHOAL_ON_DESCRIPTOR(int, fstat, (int descriptor, struct stat* status) noexcept,
                    (descriptor, status), false, EIO, ESTALE)
SHOAL_ON_DESCRIPTOR(int, fstat64, (int descriptor, struct stat64* status) noexcept,
                    (descriptor, status), false, EIO, ESTALE)
#undef SHOAL_ON_DESCRIPTOR

int close(int descriptor) {
  static const auto next = real<int (*)(int)>("close");
  const bool counts = below(descriptor);
  opened(descriptor, false);
  const bool failed = counts && fails("close", "-", {EIO, ENOSPC}, true);
  const int error = errno;
  const int result = next(descriptor);
  if (!failed) return result;
  errno = error;
  return -1;
}

#define SHOAL_ALLOCATE(name, Offset)                                                      \
  int name(int descriptor, Offset at, Offset bytes) {                                     \
    static const auto next = real<int (*)(int, Offset, Offset)>(#name);                   \
    if (below(descriptor) && fails(#name, "-", {ENOSPC, EIO, EINTR}, true)) return errno; \
    return next(descriptor, at, bytes);                                                   \
  }
SHOAL_ALLOCATE(posix_fallocate, off_t)
SHOAL_ALLOCATE(posix_fallocate64, off64_t)
#undef SHOAL_ALLOCATE

#define SHOAL_MMAP(name, Offset)                                                             \
  void* name(void* at, size_t bytes, int protection, int flags, int descriptor,              \
             Offset offset) noexcept {                                                       \
    static const auto next = real<void* (*)(void*, size_t, int, int, int, Offset)>(#name);   \
    if (below(descriptor) && fails(#name, "-", {ENOMEM, ENODEV, EAGAIN})) return MAP_FAILED; \
    return next(at, bytes, protection, flags, descriptor, offset);                           \
  }
SHOAL_MMAP(mmap, off_t)
SHOAL_MMAP(mmap64, off64_t)
#undef SHOAL_MMAP

// A call on a path.
#define SHOAL_ON_PATH(result, name, parameters, arguments, where, failed, writes, ...) \
  result name parameters {                                                             \
    static const auto next = real<result(*) parameters>(#name);                        \
    if (below where && fails(#name, path, {__VA_ARGS__}, writes)) return failed;       \
    return next arguments;                                                             \
  }
SHOAL_ON_PATH(int, stat, (const char* __restrict path, struct stat* __restrict status) noexcept,
              (path, status), (path), -1, false, EIO, ESTALE)
SHOAL_ON_PATH(int, stat64, (const char* __restrict path, struct stat64* __restrict status) noexcept,
              (path, status), (path), -1, false, EIO, ESTALE)
SHOAL_ON_PATH(int, lstat, (const char* __restrict path, struct stat* __restrict status) noexcept,
              (path, status), (path), -1, false, EIO, ESTALE)
SHOAL_ON_PATH(int, lstat64,
              (const char* __restrict path, struct stat64* __restrict status) noexcept,
              (path, status), (path), -1, false, EIO, ESTALE)
SHOAL_ON_PATH(int, mkdir, (const char* path, mode_t mode) noexcept, (path, mode), (path), -1, true,
              ENOSPC, EIO)
SHOAL_ON_PATH(int, unlink, (const char* path) noexcept, (path), (path), -1, false, EIO, EBUSY)
SHOAL_ON_PATH(int, remove, (const char* path) noexcept, (path), (path), -1, false, EIO, EBUSY)
SHOAL_ON_PATH(int, rmdir, (const char* path) noexcept, (path), (path), -1, false, EIO, EBUSY)
SHOAL_ON_PATH(int, unlinkat, (int directory, const char* path, int flags) noexcept,
              (directory, path, flags), (directory, path), -1, false, EIO, EBUSY)
SHOAL_ON_PATH(int, access, (const char* path, int mode) noexcept, (path, mode), (path), -1, false,
              EIO, ESTALE)
SHOAL_ON_PATH(int, rename, (const char* path, const char* to) noexcept, (path, to), (path), -1,
              true, EIO, ENOSPC)
SHOAL_ON_PATH(DIR*, opendir, (const char* path), (path), (path), nullptr, false, EIO, EMFILE)
#undef SHOAL_ON_PATH

}  // extern "C"
