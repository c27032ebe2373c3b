#include "shoal/parallel/predict/spot/outcome.h"

#include <algorithm>
#include <vector>

namespace shoal::parallel {

constexpr double kRounding = 1e-3;  // seconds, of sums of times that are not whole

SpotOutcome outcome(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy,
                    const std::function<void(std::size_t done)>& progress) {
  check_job(trace, job, policy);
  SpotOutcome all;
  all.starts = trace.instances.size();
  SpotRun& mean = all.mean;
  const double share = 1 / static_cast<double>(all.starts);
  std::vector<double> costs, finishes;
  for (std::size_t start = 0; start < all.starts; ++start) {
    const SpotRun run = replay(trace, job, policy, start);
    for (auto field :
         {&SpotRun::finish, &SpotRun::cost, &SpotRun::waiting, &SpotRun::starting,
          &SpotRun::checkpoints, &SpotRun::lost, &SpotRun::on_demand, &SpotRun::interruptions})
      mean.*field += share * (run.*field);
    costs.push_back(run.cost);
    finishes.push_back(run.finish);
    if (job.deadline > 0 && run.finish > job.deadline + kRounding) ++all.late;
    if (progress) progress(start + 1);
  }
  const auto percentile = [](std::vector<double>& values) {
    std::ranges::sort(values);
    return values[(values.size() * 95 + 99) / 100 - 1];
  };
  all.p95_cost = percentile(costs);
  all.p95_finish = percentile(finishes);
  all.last_finish = finishes.back();
  return all;
}

}  // namespace shoal::parallel
