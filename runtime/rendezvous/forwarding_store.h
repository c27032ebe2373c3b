// A Store that forwards every call to another one; derive from it to change single calls.
#pragma once

#include "shoal/runtime/rendezvous/store.h"

namespace shoal {

class ForwardingStore : public Store {
 public:
  explicit ForwardingStore(Store& inner) : inner_(inner) {}  // `inner` must outlive it

  void set(std::string_view key, std::string_view value) override { inner_.set(key, value); }
  std::optional<std::string> try_get(std::string_view key) override { return inner_.try_get(key); }
  std::string get(std::string_view key, Deadline deadline) override {
    return inner_.get(key, deadline);
  }
  std::int64_t add(std::string_view key, std::int64_t amount) override {
    return inner_.add(key, amount);
  }
  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override {
    return inner_.compare_set(key, expected, desired);
  }
  bool remove(std::string_view key) override { return inner_.remove(key); }
  std::string name() const override { return inner_.name(); }

 private:
  Store& inner_;
};

}  // namespace shoal
