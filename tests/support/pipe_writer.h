// Named pipes PREFIX_0, PREFIX_1, ..., each with the same text, as in SageMaker's Pipe mode. The
// next pipe appears when the reader has finished the one before.
#pragma once

#include <atomic>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace shoal::testing {

class PipeWriter {
 public:
  PipeWriter(std::string prefix, std::string text)
      : prefix_(std::move(prefix)), text_(std::move(text)) {
    std::signal(SIGPIPE, SIG_IGN);
    make(0);
    thread_ = std::thread([this] {
      for (int epoch = 0; !stop_; ++epoch) write(epoch);
    });
  }
  ~PipeWriter() {
    stop_ = true;
    thread_.join();
    for (int epoch = 0; epoch <= made_; ++epoch) ::unlink(path(epoch).c_str());
  }
  PipeWriter(const PipeWriter&) = delete;
  PipeWriter& operator=(const PipeWriter&) = delete;
  int epochs_begun() const { return begun_; }  // epochs whose pipe a reader has opened

 private:
  std::string path(int epoch) const { return prefix_ + "_" + std::to_string(epoch); }
  void make(int epoch) {
    ::unlink(path(epoch).c_str());
    ::mkfifo(path(epoch).c_str(), 0600);
    made_ = epoch;
  }
  void write(int epoch) {
    int pipe = -1;
    while (!stop_ && (pipe = ::open(path(epoch).c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    if (pipe < 0) return;
    ++begun_;
    for (std::size_t at = 0; at < text_.size() && !stop_;) {
      pollfd watched{pipe, POLLOUT, 0};
      if (::poll(&watched, 1, 10) <= 0) continue;
      const ssize_t count = ::write(pipe, text_.data() + at, text_.size() - at);
      if (count < 0) break;  // the reader has gone
      at += static_cast<std::size_t>(count);
    }
    make(epoch + 1);
    ::close(pipe);
  }

  std::string prefix_, text_;
  std::atomic<bool> stop_{false};
  std::atomic<int> begun_{0}, made_{0};
  std::thread thread_;
};

}  // namespace shoal::testing
