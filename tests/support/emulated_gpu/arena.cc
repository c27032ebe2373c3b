#include "arena.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "sanitizer.h"
#include "settings.h"
#include "stream.h"
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

namespace shoal::emulated_gpu {
namespace {

thread_local int device_work = 0;
struct sigaction previous_action;

// The signal stack of a thread that runs device work, because its own stack may be small.
struct SignalStack {
  SignalStack() {
    stack_t stack{};
    stack.ss_sp = bytes;
    stack.ss_size = sizeof bytes;
    sigaltstack(&stack, &before);
  }
  ~SignalStack() { sigaltstack(&before, nullptr); }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  stack_t before{};  // a sanitizer's stack, which it frees itself
  char bytes[64 << 10];
};

std::atomic<std::string (*)()> position_of_kernels{nullptr};

std::string describe_fault(const void* address) {
  std::string (*const position)() = position_of_kernels;
  const std::string kernel = position ? position() : std::string();
  return fmt::format(
      "{} at {}: {}{}{}",
      device_work ? "device work touched what is not allocated" : "the host touched device memory",
      address, describe_address(address), kernel.empty() ? "" : ", in ", kernel);
}

void on_fault(int signal, siginfo_t* info, void* context) {
  if (Arena::get().holds(info->si_addr)) {
    sigaction(SIGSEGV, &previous_action, nullptr);  // a fault in here gets the previous handler
    fail(describe_fault(info->si_addr));
  }
  if (previous_action.sa_flags & SA_SIGINFO)
    return previous_action.sa_sigaction(signal, info, context);
  // The instruction runs again and reaches the handler that was installed before ours.
  sigaction(SIGSEGV, &previous_action, nullptr);
}

void madvise_whole_pages(std::byte* begin, std::size_t bytes, int advice) {
  const std::size_t skipped = -reinterpret_cast<std::uintptr_t>(begin) % kPage;
  if (bytes < skipped + kPage) return;
  madvise(begin + skipped, (bytes - skipped) / kPage * kPage, advice);
}

// The byte of a pattern at an address: the low byte at even addresses, else the high one.
std::byte pattern_at(std::uintptr_t address, Poison pattern) {
  const auto bits = static_cast<unsigned>(pattern);
  return static_cast<std::byte>(address % 2 == 0 ? bits & 0xff : bits >> 8);
}

}  // namespace

void poison(void* begin, std::size_t bytes, Poison pattern) {
  auto* at = static_cast<std::byte*>(begin);
  for (; bytes > 0 && reinterpret_cast<std::uintptr_t>(at) % 8 != 0; ++at, --bytes)
    *at = pattern_at(reinterpret_cast<std::uintptr_t>(at), pattern);
  const std::uint64_t word = 0x0001000100010001u * static_cast<std::uint64_t>(pattern);
  for (; bytes >= 8; at += 8, bytes -= 8) std::memcpy(at, &word, 8);
  for (; bytes > 0; ++at, --bytes) *at = pattern_at(reinterpret_cast<std::uintptr_t>(at), pattern);
}

SHOAL_MAY_TOUCH_ANYTHING
std::size_t unpoisoned(const void* begin, std::size_t bytes, Poison pattern) {
  const auto* at = static_cast<const std::byte*>(begin);
  const std::uint64_t word = 0x0001000100010001u * static_cast<std::uint64_t>(pattern);
  std::size_t i = 0;
  while (i < bytes) {
    if (reinterpret_cast<std::uintptr_t>(at + i) % 8 == 0 && bytes - i >= 8) {
      std::uint64_t found = 0;
      __builtin_memcpy(&found, at + i, 8);
      if (found == word) {
        i += 8;
        continue;
      }
    }
    if (at[i] != pattern_at(reinterpret_cast<std::uintptr_t>(at + i), pattern)) return i;
    ++i;
  }
  return bytes;
}

void say(const std::string& line) {
  const std::string text = "emulated GPU: " + line + "\n";
  std::fflush(stdout);
  (void)!write(STDERR_FILENO, text.data(), text.size());
}
void fail(const std::string& line) {
  say(line);
  std::abort();
}

void tell_position(std::string (*position)()) { position_of_kernels = position; }

Arena& Arena::get() {
  static Arena& arena = *new Arena;  // outlives every thread
  return arena;
}

Arena::Arena() {
  const Settings& machine = settings();
  const auto devices = static_cast<std::size_t>(machine.devices);
  span_ = 4 * ((machine.memory + kPage - 1) / kPage * kPage);
  windows_ = (devices + 1) * span_;
  const std::size_t all = devices * span_ + windows_;
  void* made = mmap(nullptr, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (made == MAP_FAILED)
    fail(fmt::format("no {} bytes of addresses for {} devices; set SHOAL_EMULATED_GPU_MEMORY", all,
                     devices));
  base_ = static_cast<std::byte*>(made);
  for (std::size_t device = 0; device < devices; ++device) {
    // A file, so that another process can map parts of it.
    const int file = memfd_create("emulated-gpu", MFD_CLOEXEC);
    std::byte* const begin = base_ + device * span_;
    if (file < 0 || ftruncate(file, static_cast<off_t>(span_)) != 0 ||
        mmap(begin, span_, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0) ==
            MAP_FAILED)
      fail(fmt::format("no memory for device {}: {}", device, std::strerror(errno)));
    files_.push_back(file);
    used_.push_back(begin);
  }
  used_.push_back(base_ + devices * span_);
  madvise(base_, all, MADV_DONTFORK);  // a forked child has no device
  madvise(base_, all, MADV_DONTDUMP);
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaction(SIGSEGV, &action, &previous_action);
  // In a forked child these addresses are ordinary memory.
  pthread_atfork(nullptr, nullptr, [] { get().allow_all(); });
  // Adds our allocation to AddressSanitizer's report, which knows only source lines.
  on_report([](const void* address) {
    if (get().holds(address)) say(describe_fault(address));
  });
}

void Arena::allow_all() const {
  for (std::size_t i = 0; i < used_.size(); ++i)
    allow(base_ + i * span_, static_cast<std::size_t>(used_[i] - (base_ + i * span_)));
}

bool Arena::holds(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  return at >= base_ && at < base_ + files_.size() * span_ + windows_;
}

int Arena::device_of(const void* address) const {
  const auto* at = static_cast<const std::byte*>(address);
  if (at < base_ || at >= base_ + files_.size() * span_) return -1;
  return static_cast<int>(static_cast<std::size_t>(at - base_) / span_);
}

void Arena::protect(std::byte* begin, std::byte* end, bool allowed) const {
  if (begin == end) return;
  if (mprotect(begin, static_cast<std::size_t>(end - begin),
               allowed ? PROT_READ | PROT_WRITE : PROT_NONE) != 0)
    fail(fmt::format("mprotect of {} bytes: {}", end - begin, std::strerror(errno)));
}

void Arena::open() {
  thread_local const SignalStack stack;
  const std::scoped_lock lock(mutex_);
  if (opened_++ > 0) return;
  for (std::size_t i = 0; i < used_.size(); ++i) protect(base_ + i * span_, used_[i], true);
}

void Arena::close() {
  const std::scoped_lock lock(mutex_);
  if (--opened_ > 0) return;
  for (std::size_t i = 0; i < used_.size(); ++i) protect(base_ + i * span_, used_[i], false);
}

void Arena::use(int device, std::byte* end) {
  const std::scoped_lock lock(mutex_);
  std::byte*& used = used_[static_cast<std::size_t>(device)];
  end = base_ + (static_cast<std::size_t>(end - base_) + kPage - 1) / kPage * kPage;
  if (end <= used) return;
  forbid(used, static_cast<std::size_t>(end - used));
  if (opened_ > 0) protect(used, end, true);
  used = end;
}

void Arena::fill(std::byte* begin, std::size_t bytes, Poison pattern) const {
  constexpr std::size_t kPiece = std::size_t{64} << 10;
  alignas(8) thread_local std::byte piece[kPiece];
  const int device = device_of(begin);
  if (bytes >= kPiece) madvise_whole_pages(begin, bytes, MADV_DONTNEED);
  // A pattern depends on whether the address is even, so both `begin` and `piece` start alike.
  poison(piece, std::min(bytes + 1, kPiece), pattern);
  const std::size_t odd = reinterpret_cast<std::uintptr_t>(begin) % 2;
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t next = std::min(bytes - done, kPiece - 2);
    const auto offset = static_cast<off_t>(begin - this->begin(device)) + static_cast<off_t>(done);
    const ssize_t wrote = pwrite(file(device), piece + (odd + done) % 2, next, offset);
    if (wrote <= 0)
      fail(fmt::format("no memory for {} bytes of device {}: {}", bytes, device,
                       std::strerror(errno)));
    done += static_cast<std::size_t>(wrote);
  }
}

void Arena::release(std::byte* begin, std::size_t bytes) const {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  if (bytes < kLarge) return;
  const int device = device_of(begin);
  const auto offset = static_cast<std::size_t>(begin - this->begin(device));
  const std::size_t first = (offset + kPage - 1) / kPage * kPage,
                    last = (offset + bytes) / kPage * kPage;
  if (fallocate(file(device), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                static_cast<off_t>(last - first)) != 0)
    fail(fmt::format("fallocate of {} bytes: {}", bytes, std::strerror(errno)));
}

void* Arena::open_window(int file, std::size_t offset, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  std::byte *at = base_ + files_.size() * span_, *const end = at + windows_;
  for (const auto& [begin, size] : open_windows_) {  // the first hole that is wide enough
    if (static_cast<std::size_t>(begin - at) >= bytes) break;
    at = begin + size;
  }
  if (static_cast<std::size_t>(end - at) < bytes) return nullptr;
  const int allowed = opened_ > 0 ? PROT_READ | PROT_WRITE : PROT_NONE;
  if (mmap(at, bytes, allowed, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(offset)) ==
      MAP_FAILED)
    return nullptr;
  madvise(at, bytes, MADV_DONTFORK);
  open_windows_.emplace(at, bytes);
  if (at + bytes > used_.back()) used_.back() = at + bytes;
  return at;
}

void Arena::close_window(void* begin) {
  const std::scoped_lock lock(mutex_);
  const auto found = open_windows_.find(static_cast<std::byte*>(begin));
  if (found == open_windows_.end()) return;
  if (mmap(begin, found->second, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED)
    fail(fmt::format("mmap of {} bytes: {}", found->second, std::strerror(errno)));
  forbid(begin, found->second);
  open_windows_.erase(found);
  used_.back() = open_windows_.empty()
                     ? base_ + files_.size() * span_
                     : open_windows_.rbegin()->first + open_windows_.rbegin()->second;
}

DeviceWork::DeviceWork() { ++device_work; }
DeviceWork::~DeviceWork() { --device_work; }
bool DeviceWork::here() { return device_work > 0; }

}  // namespace shoal::emulated_gpu
