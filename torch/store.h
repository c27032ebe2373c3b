// PyTorch's store behind Shoal's Store interface.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "shoal/runtime/rendezvous/store.h"

namespace shoal::pytorch {

// Polls while it waits, so that a waiting thread does not block others on the connection of
// `store`. No wait lasts longer than `longest_wait` seconds, whatever its deadline.
class TorchStore final : public Store {
 public:
  TorchStore(c10::intrusive_ptr<c10d::Store> store, double longest_wait)
      : store_(std::move(store)), longest_wait_(longest_wait) {}

  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> try_get(std::string_view key) override;
  std::string get(std::string_view key, Deadline deadline) override;
  std::int64_t add(std::string_view key, std::int64_t amount) override;
  // Also true if another rank set the same value at the same time, because PyTorch's stores return
  // only the value.
  bool compare_set(std::string_view key, const std::optional<std::string>& expected,
                   std::string_view desired) override;
  bool remove(std::string_view key) override;
  std::string name() const override { return "PyTorch's store"; }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  double longest_wait_;
};

// The store that all groups of the job share. PyTorch gives a group this store within prefixes: the
// default group's, further ones of other groups, and the device.
c10::intrusive_ptr<c10d::Store> job_store(c10::intrusive_ptr<c10d::Store> of_group);
// A store for a part of the group, such as its messages: `store` with a prefix for keys.
std::unique_ptr<Store> make_part_store(const std::string& part,
                                       c10::intrusive_ptr<c10d::Store> store, double longest_wait);

}  // namespace shoal::pytorch
