#include "shoal/train/trainer/use_monitor.h"

#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace shoal {
namespace {

constexpr std::array<const char*, 3> kNames = {"processor_cores", "resident_bytes", "network_rate"};

}  // namespace

void UseMonitor::look(collectives::Communicator& host, double elapsed) {
  const ProcessUse now = process_use();
  const double window = elapsed - elapsed_;
  const auto rate = [&](double of_window) { return window > 0 ? of_window / window : 0; };
  const auto traffic = [](const ProcessUse& use) {
    return static_cast<double>(use.received_bytes + use.sent_bytes);
  };
  const std::array<double, kNames.size()> own = {
      rate(now.processor_seconds - before_.processor_seconds),
      static_cast<double>(now.resident_bytes), rate(traffic(now) - traffic(before_))};
  before_ = now;
  elapsed_ = elapsed;
  of_ranks_.assign(own.begin(), own.end());
  if (host.size() == 1) return;
  of_ranks_.resize(own.size() * static_cast<std::size_t>(host.size()));
  host.all_gather(own.data(), of_ranks_.data(), std::ssize(own), DType::f64)->wait();
}

void UseMonitor::add_to(nlohmann::ordered_json& record) const {
  const std::size_t ranks = of_ranks_.size() / kNames.size();
  const auto most = static_cast<std::size_t>(most_ranks_);
  const std::size_t apart = (ranks + most - 1) / most;
  for (std::size_t value = 0; value < kNames.size(); ++value)
    for (std::size_t rank = 0; rank < ranks; rank += apart)
      record[fmt::format("{}_rank{}", kNames[value], rank)] =
          of_ranks_[rank * kNames.size() + value];
}

}  // namespace shoal
