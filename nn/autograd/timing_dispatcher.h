// Sums the time of operations by name, for profiles. On a device it measures only the time to queue
// the kernels.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "shoal/nn/autograd/dispatcher.h"

namespace shoal::nn {

class TimingDispatcher final : public Dispatcher {
 public:
  explicit TimingDispatcher(Dispatcher& next) : next_(next) {}
  void run(const Operation& operation, const std::function<void()>& body) override;

  struct Total {
    double seconds = 0;
    std::int64_t calls = 0;
  };
  const std::map<std::string, Total, std::less<>>& totals() const { return totals_; }
  void clear() { totals_.clear(); }

 private:
  Dispatcher& next_;
  std::map<std::string, Total, std::less<>> totals_;
};

}  // namespace shoal::nn
