#include "shoal/runtime/io/named_pipe.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/shown_path.h"

namespace shoal {
namespace {

constexpr int kPollMilliseconds = 50;

[[noreturn]] void give_up(const std::string& path) {
  throw_error(ErrorCode::aborted, "{}: reading it was stopped", path);
}

}  // namespace

NamedPipe::NamedPipe(std::string path, const std::atomic<bool>& stop, double wait_seconds)
    : path_(std::move(path)), stop_(stop) {
  const Deadline deadline = Deadline::in_seconds(wait_seconds);
  // Without O_NONBLOCK, open() would wait for a writer and ignore `stop`.
  while ((descriptor_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
    if (errno != ENOENT && errno != EINTR)
      throw_error(ErrorCode::io, "cannot open {}: {}", shown_path(path_), std::strerror(errno));
    if (stop_) give_up(path_);
    if (deadline.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("the pipe {} is not there after {:.0f} s", path_, wait_seconds),
                  "a channel in Pipe mode brings NAME_0 for the first epoch, NAME_1 for the next");
    std::this_thread::sleep_for(std::chrono::milliseconds(kPollMilliseconds));
  }
  struct stat status{};
  if (::fstat(descriptor_, &status) == 0 && S_ISFIFO(status.st_mode)) return;
  ::close(descriptor_);
  throw_error(ErrorCode::io, "{} is no named pipe", path_);
}

NamedPipe::~NamedPipe() { ::close(descriptor_); }

std::size_t NamedPipe::read(std::span<std::byte> into) {
  for (;;) {
    if (stop_) give_up(path_);
    // poll() reports nothing until a process has opened the pipe for writing. POLLHUP means that
    // all writers have closed it.
    pollfd watched{descriptor_, POLLIN, 0};
    if (::poll(&watched, 1, kPollMilliseconds) <= 0) continue;
    const ssize_t count = ::read(descriptor_, into.data(), into.size());
    if (count >= 0) return static_cast<std::size_t>(count);
    if (errno != EINTR && errno != EAGAIN)
      throw_error(ErrorCode::io, "cannot read {}: {}", shown_path(path_), std::strerror(errno));
  }
}

}  // namespace shoal
