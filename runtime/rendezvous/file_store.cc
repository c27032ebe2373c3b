#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/descriptor.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/shared_directory.h"
#include "shoal/runtime/rendezvous/store_internal.h"

namespace shoal {
namespace {

std::string reason() { return std::strerror(errno); }

// Encodes a key as a file name. Special bytes become %NN. A long name is cut and gets a hash; the
// file itself holds the whole key.
std::string encode(std::string_view key) {
  std::string text;
  for (const char c : key) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
        (byte >= 'A' && byte <= 'Z') || byte == '-' || byte == '_' || byte == '.')
      text += c;
    else
      text += fmt::format("%{:02x}", byte);
  }
  if (text.size() <= 200) return text;
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : key) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return fmt::format("{}%{:016x}%{}", text.substr(0, 150), hash, key.size());
}

// Each file contains: u32 key length (in the byte order that all ranks share), key, value.
class FileStore final : public Store {
 public:
  // If `shared` is given, it removes the directory. Otherwise the store does; `world_size` is then
  // as in make_file_store().
  FileStore(const std::string& directory, const std::string& job, int world_size,
            std::unique_ptr<SharedDirectory> shared = nullptr)
      : shared_(std::move(shared)),
        directory_(path_of(directory, job)),
        world_size_(shared_ ? 0 : world_size) {
    make_directories(directory, "give a directory that every rank can write (SHOAL_STORE_DIR)");
    if (::mkdir(directory_.c_str(), 0700) != 0 && errno != EEXIST)
      throw Error(ErrorCode::io,
                  fmt::format("file store: cannot create {}: {}", directory_, reason()),
                  "give a directory that every rank can write (SHOAL_STORE_DIR)");
    refuse_planted_directory(directory);
    static std::atomic<std::uint64_t> instances{0};
    temporary_stem_ = fmt::format("{}/t-{}-{}-{}-", directory_, encode(host_name()), ::getpid(),
                                  instances.fetch_add(1));
  }

  static std::string path_of(const std::string& directory, const std::string& job) {
    return directory + "/shoal-" + encode(job);
  }

  ~FileStore() override {
    if (world_size_ <= 0) return;
    try {
      const bool last = [this] {
        const auto lock = lock_directory();
        const std::string left = directory_ + "/left";
        const auto text = read_file(left, "left");
        const std::int64_t count = store::add_to_counter("left", text.value_or(""), 1);
        write_file(left, "left", std::to_string(count));
        return count >= world_size_;
      }();
      if (last) remove_tree(directory_);
    } catch (const std::exception& problem) {  // harmless: the job id is new each time
      log::debug("the files of {} are left behind: {}", directory_, problem.what());
    }
  }

  void set(std::string_view key, std::string_view value) override {
    store::check_key(key);
    store::check_value(key, value);
    const auto lock = lock_directory();
    write_file(path(key), key, value);
  }

  std::optional<std::string> try_get(std::string_view key) override {
    store::check_key(key);
    return read_file(path(key), key);
  }

  std::string get(std::string_view key, Deadline deadline) override {
    store::check_key(key);
    const auto start = Clock::now();
    const std::string file = path(key);
    auto pause = std::chrono::milliseconds(1);
    for (;;) {
      if (auto value = read_file(file, key)) return *std::move(value);
      if (deadline.passed()) store::throw_missing_key(key, name(), seconds_since(start));
      std::this_thread::sleep_until(std::min(deadline.time(), Clock::now() + pause));
      pause =
          std::min(pause + pause / 4 + std::chrono::milliseconds(1), std::chrono::milliseconds(50));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    store::check_key(key);
    const auto lock = lock_directory();
    const std::string file = path(key);
    const std::int64_t value =
        store::add_to_counter(key, read_file(file, key).value_or(""), amount);
    write_file(file, key, std::to_string(value));
    return value;
  }

  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    store::check_key(key);
    store::check_value(key, desired);
    const auto lock = lock_directory();
    const std::string file = path(key);
    if (read_file(file, key) != expected) return false;
    write_file(file, key, desired);
    return true;
  }

  bool remove(std::string_view key) override {
    store::check_key(key);
    const auto lock = lock_directory();
    if (::unlink(path(key).c_str()) == 0) return true;
    if (errno == ENOENT) return false;
    fail("remove", path(key));
  }

  std::string name() const override { return "file store at " + directory_; }

 private:
  // Under a directory that all users may write, such as /tmp, another user could have created our
  // directory first, or a link in its place.
  void refuse_planted_directory(const std::string& parent) const {
    struct stat ours{}, above{};
    if (::lstat(directory_.c_str(), &ours) != 0 || ::stat(parent.c_str(), &above) != 0)
      fail("inspect", directory_);
    const bool shared_parent = (above.st_mode & S_ISVTX) != 0;
    if (!S_ISDIR(ours.st_mode) || (shared_parent && ours.st_uid != ::geteuid()))
      throw_error(ErrorCode::io, "file store: {} is not a directory of this user", directory_);
  }

  [[noreturn]] void fail(const char* step, const std::string& file) const {
    const int error = errno;
    throw_error(error == ENOENT ? ErrorCode::peer_lost : ErrorCode::io,
                "file store: cannot {} {}: {}", step, file, std::strerror(error));
  }

  std::string path(std::string_view key) const { return directory_ + "/k-" + encode(key); }

  // The lock is held until the returned descriptor closes; the kernel releases it if the rank dies.
  std::unique_ptr<Descriptor> lock_directory() const {
    const std::string file = directory_ + "/lock";
    auto lock = std::make_unique<Descriptor>(
        ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (lock->get() < 0) fail("open", file);
    while (::flock(lock->get(), LOCK_EX) != 0)
      if (errno != EINTR) fail("lock", file);
    return lock;
  }

  std::optional<std::string> read_file(const std::string& file, std::string_view key) const {
    const Descriptor in(::open(file.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW));
    if (in.get() < 0) {
      if (errno == ENOENT) return std::nullopt;
      fail("open", file);
    }
    std::string bytes;
    std::array<char, 65536> block;
    for (;;) {
      const ssize_t count = ::read(in.get(), block.data(), block.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) fail("read", file);
      if (count == 0) break;
      bytes.append(block.data(), static_cast<std::size_t>(count));
      if (bytes.size() > kMaxStoreValue + kMaxStoreKey + 4)
        throw_error(ErrorCode::corrupt_data, "file store: {} is larger than any value", file);
    }
    std::uint32_t length = 0;
    if (bytes.size() < sizeof length)
      throw_error(ErrorCode::corrupt_data, "file store: {} has only {} bytes", file, bytes.size());
    std::memcpy(&length, bytes.data(), sizeof length);
    if (bytes.size() - sizeof length < length ||
        std::string_view(bytes).substr(sizeof length, length) != key)
      throw_error(ErrorCode::corrupt_data, "file store: {} does not hold key '{}'", file,
                  store::printable(key));
    return bytes.substr(sizeof length + length);
  }

  void write_file(const std::string& file, std::string_view key, std::string_view value) {
    const std::string temporary = temporary_stem_ + std::to_string(counter_.fetch_add(1));
    Descriptor out(
        ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (out.get() < 0) fail("create", temporary);
    const auto length = static_cast<std::uint32_t>(key.size());
    std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
    bytes.append(key).append(value);
    const auto abandon = [&](const char* step) {
      const int error = errno;
      best_effort("remove a temporary file", [&] { remove_file(temporary); });
      errno = error;
      fail(step, temporary);
    };
    for (std::size_t done = 0; done < bytes.size();) {
      const ssize_t count = ::write(out.get(), bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) abandon("write");
      done += static_cast<std::size_t>(count);
    }
    // On NFS, close() sends the bytes and reports a full disk.
    if (::close(out.release()) != 0) abandon("close");
    if (::rename(temporary.c_str(), file.c_str()) != 0) abandon("rename");
  }

  std::unique_ptr<SharedDirectory> shared_;
  std::string directory_, temporary_stem_;
  int world_size_;
  std::atomic<std::uint64_t> counter_{0};
};

}  // namespace

std::shared_ptr<Store> make_file_store(const std::string& directory, const std::string& job,
                                       int world_size) {
  SHOAL_CHECK(!directory.empty() && !job.empty(),
              "a file store needs a directory and a job id, not '{}' and '{}'", directory, job);
  return std::make_shared<FileStore>(directory, job, world_size);
}

std::shared_ptr<Store> make_temporary_file_store(const std::string& directory,
                                                 const std::string& job, int rank, int world_size) {
  make_directories(directory, "set TMPDIR to a directory that can be written to");
  // Each rank does this before it joins, so that it never reads files of an earlier run with the
  // same name.
  remove_left_directories(directory, "shoal-");
  return std::make_shared<FileStore>(
      directory, job, world_size,
      std::make_unique<SharedDirectory>(FileStore::path_of(directory, job), rank, world_size));
}

}  // namespace shoal
