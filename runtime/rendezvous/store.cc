#include "shoal/runtime/rendezvous/store.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/rendezvous/store_internal.h"

namespace shoal {
namespace store {

void check_key(std::string_view key) {
  SHOAL_CHECK(!key.empty() && key.size() <= kMaxStoreKey,
              "a store key has 1 to {} bytes, not {}: '{}'", kMaxStoreKey, key.size(),
              printable(key));
}

void check_value(std::string_view key, std::string_view value) {
  SHOAL_CHECK(value.size() <= kMaxStoreValue,
              "the value of store key '{}' has {} bytes, more than the {} that a store takes",
              printable(key), value.size(), kMaxStoreValue);
}

std::string printable(std::string_view key) {
  std::string text;
  for (const char c : key.substr(0, 200)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f)
      text += c;
    else
      text += fmt::format("\\x{:02x}", byte);
  }
  if (key.size() > 200) text += "...";
  return text;
}

void throw_missing_key(std::string_view key, const std::string& store, double waited_seconds) {
  throw Error(ErrorCode::timeout,
              fmt::format("no value for key '{}' in the {} after {:.1f} s", printable(key), store,
                          waited_seconds),
              "look at the log of the rank that should have set it");
}

std::int64_t add_to_counter(std::string_view key, std::string_view text, std::int64_t amount) {
  const auto counted = text.empty() ? 0 : parse_number<std::int64_t>(text);
  if (!counted)
    throw_error(ErrorCode::corrupt_data,
                "store key '{}' holds {} bytes that are not a number; add() needs a counter",
                printable(key), text.size());
  std::int64_t value = 0;
  if (__builtin_add_overflow(*counted, amount, &value))
    throw_error(ErrorCode::corrupt_data, "the counter in store key '{}' passes 64 bits",
                printable(key));
  return value;
}

}  // namespace store

namespace {

class HashStore final : public Store {
 public:
  void set(std::string_view key, std::string_view value) override {
    store::check_key(key);
    store::check_value(key, value);
    const std::scoped_lock lock(mutex_);
    assign(key, std::string(value));
  }

  std::optional<std::string> try_get(std::string_view key) override {
    store::check_key(key);
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return std::nullopt;
    return found->second;
  }

  std::string get(std::string_view key, Deadline deadline) override {
    store::check_key(key);
    const auto start = Clock::now();
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto found = values_.find(key);
      if (found != values_.end()) return found->second;
      if (deadline.passed()) store::throw_missing_key(key, name(), seconds_since(start));
      // Waits in slices, since time_point::max() overflows inside some implementations.
      changed_.wait_until(lock, std::min(deadline.time(), Clock::now() + deadlines::kLongestSlice));
    }
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    store::check_key(key);
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    const std::int64_t value =
        store::add_to_counter(key, found == values_.end() ? "" : found->second, amount);
    assign(key, std::to_string(value));
    return value;
  }

  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    store::check_key(key);
    store::check_value(key, desired);
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    const bool equal = found == values_.end() ? !expected : expected == found->second;
    if (equal) assign(key, std::string(desired));
    return equal;
  }

  bool remove(std::string_view key) override {
    store::check_key(key);
    const std::scoped_lock lock(mutex_);
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    values_.erase(found);
    return true;
  }

  std::string name() const override { return "in-process store"; }

 private:
  void assign(std::string_view key, std::string value) {
    values_.insert_or_assign(std::string(key), std::move(value));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string, std::less<>> values_;
};

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> inner)
      : prefix_(std::move(prefix) + "/"), inner_(std::move(inner)) {}

  void set(std::string_view key, std::string_view value) override { inner_->set(full(key), value); }
  std::optional<std::string> try_get(std::string_view key) override {
    return inner_->try_get(full(key));
  }
  std::string get(std::string_view key, Deadline deadline) override {
    return inner_->get(full(key), deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return inner_->add(full(key), amount);
  }
  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    return inner_->compare_set(full(key), expected, desired);
  }
  bool remove(std::string_view key) override { return inner_->remove(full(key)); }
  std::string name() const override { return inner_->name(); }

 private:
  std::string full(std::string_view key) const {
    store::check_key(key);
    return prefix_ + std::string(key);
  }
  std::string prefix_;
  std::shared_ptr<Store> inner_;
};

}  // namespace

void Store::wait(std::span<const std::string> keys, Deadline deadline) {
  for (const std::string& key : keys) (void)get(key, deadline);
}

std::shared_ptr<Store> make_hash_store() { return std::make_shared<HashStore>(); }

std::shared_ptr<Store> make_prefix_store(std::string prefix, std::shared_ptr<Store> store) {
  SHOAL_CHECK(store != nullptr, "a prefix store needs a store");
  return std::make_shared<PrefixStore>(std::move(prefix), std::move(store));
}

std::vector<std::string> exchange(Store& store, std::string_view label, int rank, int size,
                                  std::string_view value, Deadline deadline) {
  SHOAL_CHECK(size >= 1 && rank >= 0 && rank < size, "exchange '{}': rank {} of {}", label, rank,
              size);
  store.set(fmt::format("{}/{}", label, rank), value);
  std::vector<std::string> values;
  values.reserve(static_cast<std::size_t>(size));
  for (int other = 0; other < size; ++other) try {
      values.push_back(store.get(fmt::format("{}/{}", label, other), deadline));
    } catch (const Error& late) {
      if (late.code() != ErrorCode::timeout) throw;
      throw Error(ErrorCode::timeout,
                  fmt::format("rank {} did not come: {}", other, late.message()), late.remedy())
          .at_rank(late.rank())
          .in_operation(late.operation());
    }
  return values;
}

void barrier(Store& store, std::string_view label, int size, Deadline deadline) {
  const auto start = Clock::now();
  const std::string counter = fmt::format("{}/came", label), open = fmt::format("{}/open", label);
  const std::int64_t came = store.add(counter, 1);
  if (came > size)
    throw_error(ErrorCode::mismatch, "barrier '{}' of {} ranks was entered {} times", label, size,
                came);
  if (came == size) store.set(open, "");
  try {
    (void)store.get(open, deadline);
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::timeout) throw;
    const std::string now = store.try_get(counter).value_or("0");
    throw Error(ErrorCode::timeout,
                fmt::format("barrier '{}': {} of {} ranks came within {:.1f} s", label, now, size,
                            seconds_since(start)),
                "look at the logs of the ranks that did not come");
  }
}

}  // namespace shoal
