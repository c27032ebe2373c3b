// One run on spot and on-demand instances, replayed over a trace of spot availability.
//
// The run needs `nodes` instances of one kind at once. After `restart` seconds on new instances it
// works; a checkpoint follows each `interval` seconds of work and the last of it. An interruption
// loses the work since the last checkpoint. The policy decides at each sample of the trace, and on
// on-demand instances after each checkpoint, so that leaving them loses nothing. Past its end the
// trace begins again. Without checkpoint time and interval, each moment's work is safe: the model
// of "Can't Be Late" (Wu et al., NSDI 2024).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "shoal/parallel/predict/spot/trace.h"

namespace shoal::parallel {

// All but on_demand and spot never miss the deadline. With L the time that the rest of the run and
// its checkpoints take, and risk = 2 · restart + interval + checkpoint, which a spot instance may
// cost:
// - They take spot instances that are there, and keep them until an interruption, if L + risk
//   still fits before the deadline. Otherwise a run without instances takes on-demand instances and
//   keeps them to the end (the paper's safety net). greedy knows no other rule.
// - uniform_progress, the paper's policy, also takes on-demand instances when it is behind an even
//   progress to the deadline. It gives them up once it is ahead of the progress that is due `risk`
//   seconds later.
// - uniform_kept does the same, but gives them up only for spot instances that are there.
enum class SpotPolicy : std::uint8_t { on_demand, spot, greedy, uniform_progress, uniform_kept };
inline constexpr std::array kSpotPolicies = {SpotPolicy::on_demand, SpotPolicy::spot,
                                             SpotPolicy::greedy, SpotPolicy::uniform_progress,
                                             SpotPolicy::uniform_kept};
std::string_view name(SpotPolicy policy);
bool keeps_deadline(SpotPolicy policy);

struct SpotJob {
  double work = 0;      // seconds on `nodes` instances, without checkpoints
  double deadline = 0;  // seconds from the start; 0: none
  int nodes = 1;
  double checkpoint = 0;   // seconds that a checkpoint stops the work
  double interval = 0;     // seconds of work between checkpoints
  double restart = 0;      // seconds from new instances to the first step
  double price = 0;        // dollars an hour and on-demand instance
  double spot_price = -1;  // the same of spot; below 0: the trace's prices
};

// Seconds and dollars. finish = work + waiting + starting + checkpoints + lost.
struct SpotRun {
  double finish = 0;  // infinite, as is cost: spot instances never last until a checkpoint
  double cost = 0;
  double waiting = 0, starting = 0, checkpoints = 0;
  double lost = 0;       // work, and checkpoints begun, that interruptions undid
  double on_demand = 0;  // part of finish on on-demand instances
  double interruptions = 0;
};

// Throws invalid_argument for a job that is not possible: sizes below 0, no price, or a deadline
// that even on-demand instances miss.
void check_job(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy);
// The run that begins with sample `start`. check_job() has accepted the job.
SpotRun replay(const SpotTrace& trace, const SpotJob& job, SpotPolicy policy, std::size_t start);

}  // namespace shoal::parallel
