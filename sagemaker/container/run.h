// Runs `train` in the container, from /opt/ml to the exit status.
#pragma once

#include <atomic>
#include <functional>
#include <string>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/hosts.h"

namespace shoal::sagemaker {

// Fetches s3://... into a file. `region`: the job's, if the environment has none; otherwise empty.
using Fetch =
    std::function<void(const std::string& uri, const std::string& path, const std::string& region)>;

struct ContainerOptions {
  std::string root = "/opt/ml";
  std::string shoal = "shoal", mpirun = "mpirun", python = "python3";
  HostRules hosts;
  double grace_seconds = deadlines::kSaveGrace;  // after that, the ranks are killed
  bool only_shows = false;      // prints the command without running it; leaves no files
  bool trains_on_gpus = false;  // `shoal` was built for GPUs: refuses a host that lacks some
  Fetch fetch;                  // null: refuses code in S3
};

// Runs this host's part of the job. `stop` is the signal that ends it, 0 until then. Returns the
// exit status (runtime/base/exit_status.h), which is the trainer's if it ran. Failures are logged
// and, unless only_shows, written to output/failure. Does not throw.
int run_container(const ContainerOptions& options, const std::atomic<int>& stop);

}  // namespace shoal::sagemaker
