// Host tensors are offloaded to a file, which a separate thread writes and reads.
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <unistd.h>

#include "shoal/parallel/activation/offload_place.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

constexpr std::int64_t kAlignment = 4096;  // of offsets in the file

// While an item is leaving or arriving, only the file thread changes its `state`.
struct FileItem final : OffloadedTensor {
  enum class State : std::uint8_t { leaving, away, arriving, here, failed };
  Tensor tensor;  // defined while the item takes memory
  Shape shape;
  DType dtype = DType::f32;
  std::int64_t offset = 0, bytes = 0;
  State state = State::leaving;
  int error = 0;  // errno of the failed transfer
  bool failed_out = false;
  bool ahead = false;  // its read began before backward asked for it
};

// Allocates ranges of the file, first fit.
class Places {
 public:
  std::int64_t take(std::int64_t bytes) {
    const std::int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    for (auto free = free_.begin(); free != free_.end(); ++free) {
      if (free->second < size) continue;
      const std::int64_t offset = free->first, left = free->second - size;
      free_.erase(free);
      if (left > 0) free_.emplace(offset + size, left);
      return offset;
    }
    const std::int64_t offset = end_;
    end_ += size;
    return offset;
  }
  void give_back(std::int64_t offset, std::int64_t bytes) {
    std::int64_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    auto next = free_.lower_bound(offset);
    if (next != free_.end() && offset + size == next->first) {
      size += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == offset) {
        before->second += size;
        return;
      }
    }
    free_.emplace(offset, size);
  }
  std::int64_t end() const { return end_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset -> bytes; neighbours are merged
  std::int64_t end_ = 0;
};

int open_nameless(const std::string& directory) {
  const int direct = ::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (direct >= 0) return direct;
  // For file systems without O_TMPFILE. mkostemp replaces the last six characters.
  std::string name = directory + "/shoal-activations-" + std::string(6, 'X');
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0 && ::unlink(name.c_str()) != 0) {
    const int error = errno;
    ::close(named);
    errno = error;
    return -1;
  }
  return named;
}

std::string directory_of(const OffloadOptions& options) {
  if (!options.directory.empty()) return options.directory;
  const char* temporary = std::getenv("TMPDIR");  // NOLINT(concurrency-mt-unsafe)
  return temporary && *temporary ? temporary : "/tmp";
}

// Transfers all bytes, or returns an errno.
int transfer(int file, bool out, std::byte* data, std::int64_t bytes, std::int64_t offset) {
  while (bytes > 0) {
    const ssize_t moved = out ? ::pwrite(file, data, static_cast<std::size_t>(bytes), offset)
                              : ::pread(file, data, static_cast<std::size_t>(bytes), offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return moved == 0 ? EIO : errno;
    data += moved;
    offset += moved;
    bytes -= moved;
  }
  return 0;
}

struct FilePlace final : OffloadPlace {
  FilePlace(MemoryResource& memory_in, const OffloadOptions& options_in)
      : memory(memory_in), options(options_in), directory(directory_of(options_in)) {
    file = open_nameless(directory);
    if (file < 0)
      throw Error(ErrorCode::io,
                  fmt::format("no file for activations in {}: {}", directory,
                              std::strerror(errno)),  // NOLINT(concurrency-mt-unsafe)
                  "name a directory that can be written (TMPDIR)");
    thread = std::thread([this] { serve(); });
  }
  ~FilePlace() override {
    {
      const std::scoped_lock lock(mutex);
      stop = true;
    }
    wake.notify_all();
    thread.join();
    ::close(file);
  }
  FilePlace(const FilePlace&) = delete;
  FilePlace& operator=(const FilePlace&) = delete;

  // Body of the file thread. Reads go first, because the computing thread may wait for them.
  void serve() {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [this] { return stop || !arriving.empty() || !leaving.empty(); });
      if (arriving.empty() && leaving.empty()) return;
      auto& queue = arriving.empty() ? leaving : arriving;
      const bool out = &queue == &leaving;
      const std::shared_ptr<FileItem> item = queue.front();
      queue.pop_front();
      std::byte* const data = static_cast<std::byte*>(pointers.at(item.get()));
      pointers.erase(item.get());
      lock.unlock();
      const int error = transfer(file, out, data, item->bytes, item->offset);
      lock.lock();
      item->error = error;
      item->failed_out = out;
      item->state = error != 0 ? FileItem::State::failed
                    : out      ? FileItem::State::away
                               : FileItem::State::here;
      done.notify_all();
    }
  }

  [[noreturn]] void fail(const FileItem& item) const {
    throw Error(ErrorCode::io,
                fmt::format("activations cannot be {} {}: {}",
                            item.failed_out ? "written to" : "read from", directory,
                            std::strerror(item.error)),  // NOLINT(concurrency-mt-unsafe)
                "make room there, or offload to another directory (TMPDIR)");
  }

  // Waits until `item` leaves `state`. The caller holds `lock`.
  void wait_while(std::unique_lock<std::mutex>& lock, const FileItem& item, FileItem::State state) {
    if (item.state != state) return;
    const Clock::time_point began = Clock::now();
    done.wait(lock, [&] { return item.state != state; });
    taken.waited_seconds += std::chrono::duration<double>(Clock::now() - began).count();
  }

  // Frees the memory of tensors that have left, on the computing thread.
  void drop_what_left(std::unique_lock<std::mutex>& lock, int most) {
    while (!outgoing.empty()) {
      FileItem& oldest = *outgoing.front();
      if (static_cast<int>(outgoing.size()) > most)
        wait_while(lock, oldest, FileItem::State::leaving);
      if (oldest.state == FileItem::State::leaving) return;
      if (oldest.state == FileItem::State::failed) fail(oldest);
      if (oldest.state == FileItem::State::away) oldest.tensor = {};
      outgoing.pop_front();
    }
  }

  std::shared_ptr<OffloadedTensor> save(const Tensor& tensor) override {
    auto item = std::make_shared<FileItem>();
    item->tensor = tensor;
    item->shape = tensor.shape();
    item->dtype = tensor.dtype();
    item->bytes = static_cast<std::int64_t>(tensor.bytes());
    const void* data = tensor.const_view().data;
    std::unique_lock lock(mutex);
    item->offset = places.take(item->bytes);
    pointers[item.get()] = const_cast<void*>(data);
    leaving.push_back(item);
    outgoing.push_back(item);
    ++taken.tensors;
    taken.bytes += item->bytes;
    taken.peak_bytes = std::max(taken.peak_bytes, places.end());
    wake.notify_one();
    drop_what_left(lock, options.max_leaving);
    return item;
  }

  void begin_load(std::unique_lock<std::mutex>& lock, const std::shared_ptr<FileItem>& item) {
    drop_what_left(lock, options.max_leaving);
    if (item->state == FileItem::State::leaving)
      return;  // still in memory: load() uses it in place
    if (item->state != FileItem::State::away) return;
    item->tensor = Tensor::empty(item->shape, item->dtype, memory, MemoryTag::activations);
    pointers[item.get()] = item->tensor.view().data;
    item->state = FileItem::State::arriving;
    arriving.push_back(item);
    wake.notify_one();
  }

  // Starts to read the next expected tensors, up to max_returning.
  void advance(std::unique_lock<std::mutex>& lock) {
    while (!expected.empty() && ahead < options.max_returning) {
      if (const auto item = expected.front().lock()) {
        if (item->state == FileItem::State::leaving) return;  // its write must finish first
        if (item->state == FileItem::State::away) {
          begin_load(lock, item);
          item->ahead = true;
          ++ahead;
        }
      }
      expected.pop_front();
    }
  }
  void no_longer_ahead(FileItem& item) {
    if (std::exchange(item.ahead, false)) --ahead;
  }

  Tensor load(const std::shared_ptr<OffloadedTensor>& tensor) override {
    const auto item = std::static_pointer_cast<FileItem>(tensor);
    std::unique_lock lock(mutex);
    wait_while(lock, *item, FileItem::State::leaving);
    if (item->state == FileItem::State::failed) fail(*item);
    if (item->state == FileItem::State::here) ++taken.early;
    // An item whose memory was not freed yet need not be read.
    if (item->state == FileItem::State::away && item->tensor.defined())
      item->state = FileItem::State::here;
    begin_load(lock, item);
    wait_while(lock, *item, FileItem::State::arriving);
    if (item->state == FileItem::State::failed) fail(*item);
    no_longer_ahead(*item);
    advance(lock);
    return item->tensor;
  }

  void forget(const std::shared_ptr<OffloadedTensor>& tensor) noexcept override {
    const auto item = std::static_pointer_cast<FileItem>(tensor);
    std::unique_lock lock(mutex);
    wait_while(lock, *item, FileItem::State::leaving);
    wait_while(lock, *item, FileItem::State::arriving);
    no_longer_ahead(*item);
    std::erase(outgoing, item);
    places.give_back(item->offset, item->bytes);
    item->tensor = {};
  }

  void expect(std::span<const std::shared_ptr<OffloadedTensor>> tensors) override {
    std::unique_lock lock(mutex);
    for (const auto& tensor : tensors)
      expected.push_back(std::static_pointer_cast<FileItem>(tensor));
    advance(lock);
  }

  OffloadStatistics statistics() const override {
    const std::scoped_lock lock(mutex);
    return taken;
  }

  MemoryResource& memory;
  OffloadOptions options;
  std::string directory;
  int file = -1;
  mutable std::mutex mutex;
  std::condition_variable wake, done;
  std::deque<std::shared_ptr<FileItem>> leaving, arriving;  // for the file thread
  std::deque<std::shared_ptr<FileItem>> outgoing;           // memory not freed yet
  std::deque<std::weak_ptr<FileItem>> expected;  // in the order in which backward needs them
  int ahead = 0;                                 // items whose `ahead` is true
  std::map<const FileItem*, void*> pointers;
  Places places;
  OffloadStatistics taken;
  bool stop = false;
  std::thread thread;
};

}  // namespace

std::unique_ptr<OffloadPlace> make_file_place(MemoryResource& memory,
                                              const OffloadOptions& options) {
  return std::make_unique<FilePlace>(memory, options);
}

}  // namespace shoal::parallel
