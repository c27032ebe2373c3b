// How many spot instances a zone had, sample by sample, in the form of the traces that the authors
// of "Can't Be Late" (Wu et al., NSDI 2024) published (skypilot-org/spot-traces):
//
//   {"metadata": {"gap_seconds": 600}, "data": [0, 1, 1, 0], "prices": [0.9, 0.9, 0.9, 0.9]}
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace shoal::parallel {

struct SpotTrace {
  std::string name;            // names the trace in errors
  double gap = 0;              // seconds from one sample to the next; a sample holds for this long
  std::vector<int> instances;  // instances that can be had, by sample
  std::vector<double> prices;  // dollars an hour and instance, by sample; empty: not recorded

  double seconds() const { return gap * static_cast<double>(instances.size()); }
};

// Throws corrupt_data or invalid_argument, with the file and the field, for anything but such a
// trace of 1 to 10 million samples.
SpotTrace read_spot_trace(const std::string& path);

// The instances in a trace, for a run that needs `nodes` of them at once.
struct SpotAvailability {
  double share = 0;                  // of the samples that have `nodes` instances
  std::size_t interruptions = 0;     // times that a sample with `nodes` precedes one without
  double between_interruptions = 0;  // mean seconds with instances from one to the next; 0: none
};
SpotAvailability availability(const SpotTrace& trace, int nodes);

// Seconds of work between two checkpoints that lose the least time: Daly's higher-order estimate
// (2006), which is Young's sqrt(2 · checkpoint · between) less a checkpoint if checkpoints are
// short. `checkpoint` seconds stop the work; interruptions are `between_interruptions` seconds
// apart on average. Rounded to whole seconds, at least 1; 0 if a checkpoint takes no time.
double checkpoint_interval(double checkpoint, double between_interruptions);

}  // namespace shoal::parallel
