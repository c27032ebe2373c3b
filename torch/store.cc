#include "shoal/torch/store.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "shoal/runtime/base/error.h"

namespace shoal::pytorch {
namespace {

constexpr std::chrono::microseconds kFirstPause{100}, kLongestPause{20000};

std::vector<std::uint8_t> byte_vector(std::string_view text) { return {text.begin(), text.end()}; }

// An exception from the store means that its server is gone or that it refused the call.
template <typename Body>
auto guarded(std::string_view key, Body&& body) {
  try {
    return body();
  } catch (const Error&) {
    throw;
  } catch (const c10::Error& error) {
    throw_error(ErrorCode::peer_lost, "PyTorch's store does not answer for key {}: {}", key,
                error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw_error(ErrorCode::peer_lost, "PyTorch's store does not answer for key {}: {}", key,
                error.what());
  }
}

}  // namespace

void TorchStore::set(std::string_view key, std::string_view value) {
  SHOAL_CHECK(key.size() <= kMaxStoreKey && value.size() <= kMaxStoreValue,
              "a store key of {} bytes with a value of {} bytes", key.size(), value.size());
  guarded(key, [&] { store_->set(std::string(key), byte_vector(value)); });
}

std::optional<std::string> TorchStore::try_get(std::string_view key) {
  const std::string name(key);
  return guarded(key, [&]() -> std::optional<std::string> {
    if (!store_->check({name})) return std::nullopt;
    const std::vector<std::uint8_t> value = store_->get(name);
    return std::string(value.begin(), value.end());
  });
}

std::string TorchStore::get(std::string_view key, Deadline deadline) {
  const double seconds = std::min(longest_wait_, deadline.seconds_left());
  const Deadline end = Deadline::in_seconds(seconds);
  for (std::chrono::microseconds nap = kFirstPause;; nap = std::min(2 * nap, kLongestPause)) {
    if (auto value = try_get(key)) return *std::move(value);
    if (end.passed())
      throw Error(ErrorCode::timeout,
                  fmt::format("no rank has set key {} of PyTorch's store within {:.1f} s", key,
                              std::max(seconds, 0.0)),
                  "see which ranks did not start, or raise the timeout of the process group");
    std::this_thread::sleep_for(nap);
  }
}

std::int64_t TorchStore::add(std::string_view key, std::int64_t amount) {
  return guarded(key, [&] { return store_->add(std::string(key), amount); });
}

bool TorchStore::compare_set(std::string_view key, const std::optional<std::string>& expected,
                             std::string_view desired) {
  const std::vector<std::uint8_t> wanted = byte_vector(desired);
  return guarded(key, [&] {
    return store_->compareSet(std::string(key), byte_vector(expected.value_or("")), wanted) ==
           wanted;
  });
}

bool TorchStore::remove(std::string_view key) {
  return guarded(key, [&] { return store_->deleteKey(std::string(key)); });
}

c10::intrusive_ptr<c10d::Store> job_store(c10::intrusive_ptr<c10d::Store> of_group) {
  while (auto* const prefixed = dynamic_cast<c10d::PrefixStore*>(of_group.get())) {
    auto within = prefixed->getUnderlyingStore();
    if (dynamic_cast<c10d::PrefixStore*>(within.get()) == nullptr) break;
    of_group = std::move(within);
  }
  return of_group;
}

std::unique_ptr<Store> make_part_store(const std::string& part,
                                       c10::intrusive_ptr<c10d::Store> store, double longest_wait) {
  return std::make_unique<TorchStore>(
      c10::make_intrusive<c10d::PrefixStore>(part, std::move(store)), longest_wait);
}

}  // namespace shoal::pytorch
