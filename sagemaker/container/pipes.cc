#include "shoal/sagemaker/container/pipes.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <filesystem>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/named_pipe.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = std::size_t{64} << 10U;  // capacity of a pipe
constexpr int kPollMilliseconds = 50;
constexpr double kForEver = 1e9;

// Write end of one rank's pipe.
class RankPipe {
 public:
  explicit RankPipe(std::string path) : path_(std::move(path)) {
    make_directories(fs::path(path_).parent_path());
    remove_file(path_);
    if (::mkfifo(path_.c_str(), 0600) != 0)
      throw_error(ErrorCode::io, "cannot make the pipe {}: {}", path_, std::strerror(errno));
  }
  ~RankPipe() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  RankPipe(const RankPipe&) = delete;
  RankPipe& operator=(const RankPipe&) = delete;

  // Waits for the rank to open its end. If the pipe were closed before that, its data would be
  // lost.
  void wait_for_reader(const std::atomic<bool>& stop) {
    while (descriptor_ < 0 && !stop) {
      descriptor_ = ::open(path_.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
      if (descriptor_ < 0 && errno != ENXIO && errno != EINTR)  // ENXIO: not open yet
        throw_error(ErrorCode::io, "cannot open the pipe {}: {}", path_, std::strerror(errno));
      if (descriptor_ < 0)
        std::this_thread::sleep_for(std::chrono::milliseconds(kPollMilliseconds));
    }
  }
  // Writes all bytes, waiting for the rank to read them. Discards bytes for a rank that closed its
  // end.
  void write(std::span<const std::byte> bytes, const std::atomic<bool>& stop) {
    wait_for_reader(stop);
    while (!bytes.empty() && !is_through_ && !stop) {
      pollfd watched{descriptor_, POLLOUT, 0};
      if (::poll(&watched, 1, kPollMilliseconds) <= 0) continue;
      const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
      if (count > 0)
        bytes = bytes.subspan(static_cast<std::size_t>(count));
      else if (errno != EAGAIN && errno != EINTR)
        is_through_ = true;
    }
  }

 private:
  std::string path_;
  int descriptor_ = -1;
  bool is_through_ = false;
};

}  // namespace

void copy_to_file(const PipedChannel& channel, const std::atomic<int>& stop) {
  make_directories(fs::path(channel.file).parent_path());
  std::atomic<bool> stops{false}, done{false};
  std::thread watch([&] {
    while (!done) {
      if (stop != 0) stops = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(kPollMilliseconds));
    }
  });
  std::exception_ptr failure;
  try {
    NamedPipe pipe(channel.prefix + "_0", stops, deadlines::kFirstPipe);
    AtomicFile file(channel.file);
    std::vector<std::byte> block(kBlock);
    while (const std::size_t got = pipe.read(block)) file.write(std::span(block).first(got));
    file.commit();
  } catch (...) {
    failure = std::current_exception();
  }
  done = true;
  watch.join();
  if (failure) std::rethrow_exception(failure);
}

struct PipeFanOut::Impl {
  Impl(PipedChannel given, const std::atomic<int>& signal)
      : channel(std::move(given)), job_stop(signal) {}

  std::vector<std::unique_ptr<RankPipe>> make_pipes(std::int64_t epoch) const {
    const std::string name = fs::path(channel.prefix).filename().string();
    std::vector<std::unique_ptr<RankPipe>> pipes;
    for (int rank = 0; rank < channel.ranks; ++rank)
      pipes.push_back(std::make_unique<RankPipe>(
          fmt::format("{}/{}/{}_{}", channel.fan_out, rank, name, epoch)));
    return pipes;
  }
  void serve() {
    try {
      std::vector<std::byte> block(kBlock);
      ranks = make_pipes(0);
      for (std::int64_t epoch = 0; !stop; ++epoch) {
        NamedPipe from(fmt::format("{}_{}", channel.prefix, epoch), stop, kForEver);
        while (const std::size_t got = from.read(block))
          for (const auto& rank : ranks) rank->write(std::span(block).first(got), stop);
        for (const auto& rank : ranks) rank->wait_for_reader(stop);
        ranks = make_pipes(epoch + 1);  // create the next pipes before these end
      }
    } catch (const std::exception& error) {
      if (stop || job_stop != 0) return;
      const std::lock_guard lock(mutex);
      failure =
          fmt::format("channel {}: {}", fs::path(channel.prefix).filename().string(), error.what());
    }
  }

  PipedChannel channel;
  std::vector<std::unique_ptr<RankPipe>> ranks;  // open until the end, even after a failure
  const std::atomic<int>& job_stop;
  std::atomic<bool> stop{false};
  mutable std::mutex mutex;  // protects failure
  std::optional<std::string> failure;
  std::thread thread;
};

PipeFanOut::PipeFanOut(const PipedChannel& channel, const std::atomic<int>& stop)
    : impl_(std::make_unique<Impl>(channel, stop)) {
  impl_->thread = std::thread([this] { impl_->serve(); });
}

PipeFanOut::~PipeFanOut() {
  impl_->stop = true;
  impl_->thread.join();
}

std::optional<std::string> PipeFanOut::failure() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->failure;
}

}  // namespace shoal::sagemaker
