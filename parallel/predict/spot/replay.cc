#include "shoal/parallel/predict/spot/replay.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Seconds in which on working instances `work` is done and saved.
double seconds_of(double work, const SpotJob& job) {
  return work + (job.interval > 0 ? job.checkpoint * std::ceil(work / job.interval) : 0);
}

class Run {
 public:
  Run(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy, std::size_t start)
      : trace_(trace), job_(job), policy_(policy), start_(start), left_(job.work) {}

  SpotRun replay() {
    decide();
    while (left_ > 0) {
      if (to_the_end_) {
        const double rest = seconds_of(left_, job_);
        run_.checkpoints += rest - left_;
        pass_until(cycle_begin_ + rest);
        break;
      }
      const double sample_end = trace_.gap * static_cast<double>(samples_ + 1);
      const double other = place_ == Place::idle ? latest_wait() : cycle_end();
      pass_until(std::min(sample_end, other));
      const bool sample = time_ == sample_end;
      const bool saved = place_ != Place::idle && time_ == cycle_end();
      if (sample) ++samples_;
      if (saved || (sample && job_.interval == 0)) save();
      if (left_ == 0) break;
      if (sample && place_ == Place::spot && !spot_is_there()) interrupt();
      if (place_ == Place::idle || (job_.interval > 0 ? saved : sample)) decide();
      if (place_ == Place::idle && time_ - last_save_ >= trace_.seconds() &&
          !keeps_deadline(policy_)) {  // the trace has passed once, and will pass the same again
        run_.cost = run_.finish = kNever;
        return run_;
      }
    }
    end_instances();
    run_.finish = time_;
    return run_;
  }

 private:
  enum class Place : std::uint8_t { idle, spot, on_demand };

  std::size_t sample() const { return (start_ + samples_) % trace_.instances.size(); }
  bool spot_is_there() const { return trace_.instances[sample()] >= job_.nodes; }
  // Work from one checkpoint to the next; without an interval, what is left.
  double cycle() const { return job_.interval > 0 ? std::min(job_.interval, left_) : left_; }
  double cycle_end() const {
    return cycle_begin_ + cycle() + (job_.interval > 0 ? job_.checkpoint : 0);
  }
  // Seconds by which spot instances may delay a run: two restarts, and a cycle that is lost.
  double risk() const {
    return 2 * job_.restart + (job_.interval > 0 ? cycle() + job_.checkpoint : 0);
  }
  // When the safety net ends a wait for spot instances.
  double latest_wait() const {
    return keeps_deadline(policy_) ? job_.deadline - seconds_of(left_, job_) - risk() : kNever;
  }
  // Whether the saved progress is at least what an even progress has at `time`.
  bool ahead_of(double time) const {
    const double whole = seconds_of(job_.work, job_);
    return (whole - seconds_of(left_, job_)) * job_.deadline >= time * whole;
  }

  void pass_until(double time) {
    const double seconds = time - time_, hours = seconds * job_.nodes / 3600;
    if (place_ == Place::idle) {
      run_.waiting += seconds;
    } else if (place_ == Place::spot) {
      run_.cost += hours * (job_.spot_price >= 0 ? job_.spot_price : trace_.prices[sample()]);
    } else {
      run_.cost += hours * job_.price;
      run_.on_demand += seconds;
    }
    time_ = time;
  }
  void take(Place place) {
    end_instances();
    place_ = place;
    begin_ = time_;
    cycle_begin_ = time_ + job_.restart;
  }
  void end_instances() {
    if (place_ != Place::idle) run_.starting += std::min(time_ - begin_, job_.restart);
    place_ = Place::idle;
  }
  // The end of a cycle; without an interval, any moment.
  void save() {
    if (place_ == Place::idle || time_ <= cycle_begin_) return;
    if (job_.interval > 0) run_.checkpoints += job_.checkpoint;
    left_ -= job_.interval > 0 || time_ == cycle_end() ? cycle() : time_ - cycle_begin_;
    cycle_begin_ = last_save_ = time_;
  }
  void interrupt() {
    run_.lost += std::max(0.0, time_ - cycle_begin_);
    ++run_.interruptions;
    end_instances();
  }
  void decide() {
    if (place_ == Place::spot || to_the_end_) return;
    const bool idle = place_ == Place::idle;
    if (policy_ == SpotPolicy::on_demand) {
      take(Place::on_demand);
      to_the_end_ = true;
      return;
    }
    if (policy_ == SpotPolicy::spot) {
      if (spot_is_there()) take(Place::spot);
      return;
    }
    const double latest = latest_wait();
    if (!idle && !ahead_of(time_ + risk())) return;
    if (time_ <= latest && spot_is_there()) {
      take(Place::spot);
    } else if (!idle) {
      if (time_ < latest && policy_ == SpotPolicy::uniform_progress) end_instances();
    } else if (time_ >= latest) {
      take(Place::on_demand);
      to_the_end_ = true;
    } else if (policy_ != SpotPolicy::greedy && !ahead_of(time_)) {
      take(Place::on_demand);
    }
  }

  const SpotTrace& trace_;
  const SpotJob& job_;
  const SpotPolicy policy_;
  const std::size_t start_;
  std::size_t samples_ = 0;  // that have ended
  double time_ = 0, last_save_ = 0;
  double left_;  // work that is not saved
  Place place_ = Place::idle;
  double begin_ = 0, cycle_begin_ = 0;  // of the instances and of their cycle of work
  bool to_the_end_ = false;             // on-demand instances that are kept
  SpotRun run_;
};

}  // namespace

std::string_view name(SpotPolicy policy) {
  switch (policy) {
    case SpotPolicy::on_demand:
      return "on-demand only";
    case SpotPolicy::spot:
      return "spot only";
    case SpotPolicy::greedy:
      return "greedy";
    case SpotPolicy::uniform_progress:
      return "uniform progress";
    case SpotPolicy::uniform_kept:
      return "uniform, kept";
  }
  throw_error(ErrorCode::internal, "policy {}", static_cast<int>(policy));
}

bool keeps_deadline(SpotPolicy policy) {
  return policy != SpotPolicy::on_demand && policy != SpotPolicy::spot;
}

void check_job(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto natural = [](double value) { return std::isfinite(value) && value >= 0; };
  SHOAL_CHECK(positive(job.work), "{} seconds of work", job.work);
  SHOAL_CHECK(job.nodes >= 1, "a run on {} nodes", job.nodes);
  SHOAL_CHECK(
      natural(job.checkpoint) && natural(job.interval) && natural(job.restart),
      "checkpoints of {} s after {} s of work, and restarts of {} s: each must be 0 or more",
      job.checkpoint, job.interval, job.restart);
  SHOAL_CHECK(job.checkpoint == 0 || job.interval > 0,
              "checkpoints of {} s need an interval above 0", job.checkpoint);
  SHOAL_CHECK(natural(job.price), "a price of {} dollars an hour", job.price);
  SHOAL_CHECK(policy == SpotPolicy::on_demand || job.spot_price >= 0 || !trace.prices.empty(),
              "{} has no prices: give one for spot instances", trace.name);
  SHOAL_CHECK(natural(job.deadline), "a deadline of {} s", job.deadline);
  SHOAL_CHECK(job.deadline > 0 || !keeps_deadline(policy), "{} needs a deadline", name(policy));
  const double least = job.restart + seconds_of(job.work, job);
  SHOAL_CHECK(job.deadline == 0 || job.deadline >= least,
              "a deadline of {:.2f} h is shorter than the run, which takes {:.2f} h on on-demand "
              "instances with its start and checkpoints",
              job.deadline / 3600, least / 3600);
}

SpotRun replay(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy, std::size_t start) {
  return Run(trace, job, policy, start).replay();
}

}  // namespace shoal::parallel
