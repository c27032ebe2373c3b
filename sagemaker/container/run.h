// What `train` does, from /opt/ml to the exit status.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/hosts.h"

namespace shoal::sagemaker {

// Fetches s3://... into a file. `region`: the job's, where the environment names none; else empty.
using Fetch =
    std::function<void(const std::string& uri, const std::string& path, const std::string& region)>;

struct ContainerOptions {
  std::string root = "/opt/ml";
  std::string shoal = "shoal", mpirun = "mpirun";
  HostRules hosts;
  double grace_seconds = deadlines::kSaveGrace;  // then the ranks are killed
  bool only_shows = false;      // prints what would be run, runs nothing, leaves no file behind
  bool trains_on_gpus = false;  // `shoal` is a build for GPUs: a host that lacks some is refused
  Fetch fetch;                  // null: code in S3 is refused
};

// Runs this host's part of the job; `stop` is the signal that asks for its end, 0 until then.
// Returns the exit status: 0 done, 128 + N stopped by signal N, else the trainer's. What fails is
// written to output/failure (unless only_shows) as well as said. Does not throw.
int run_container(const ContainerOptions& options, const std::atomic<int>& stop);

}  // namespace shoal::sagemaker
