// A job on two hosts of the emulated cluster (bench/cluster/emulate) that starts from only /opt/ml.
// Each host is a network namespace with its own address, disk and processes, `train` is its process
// 1, and mpirun reaches the second host through sshd. play_host plays SageMaker's part.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "sagemaker/container/opt_ml.h"
#include "support/temporary_directory.h"

namespace shoal::sagemaker {

struct HostEnd {
  std::string status, out, err, failure;  // failure: empty if there is none
  std::string said() const;
};

// The /opt/ml of two hosts, and a job that runs on them.
class Job {
 public:
  using Json = OptMl::Json;

  // Puts the text into the channels train and validation; empty: no channels.
  explicit Job(const Json& hyperparameters, const std::string& text = {});

  // Runs the hosts from their start until both have ended, for at most `seconds`. `play`:
  // NAME=value settings of play_host.
  std::vector<HostEnd> run(std::vector<std::string> play = {},
                           const std::vector<std::string>& words = {}, int seconds = 150);

  // Does what happens between an interruption and the next start: uploads the checkpoints of all
  // hosts to one place in S3, and downloads all of them to each host. `lose`: one file of the
  // newest checkpoint is missing or incomplete.
  void synchronize_checkpoints(std::mt19937* lose = nullptr);

  OptMl& host(std::size_t index) { return *hosts_[index]; }
  std::string path(const std::string& name) const { return folder_ / name; }
  // The step of the newest checkpoint on the first host; 0: there is none.
  std::int64_t newest_step() const;
  bool has_model(std::size_t host) const;
  std::string model() const;
  // The training losses and the last evaluation over all starts of the job.
  std::string losses() const;

 private:
  // Deletes or truncates a file of one host's newest checkpoint.
  void lose_something(std::mt19937& random);
  std::string left(const std::string& name) const;
  HostEnd end_of(std::size_t host) const;

  testing::TemporaryDirectory folder_;
  std::vector<std::unique_ptr<OptMl>> hosts_;
};

// The reason why this machine cannot emulate the hosts; empty: it can.
std::string why_no_hosts();

void expect_ended_well(const std::vector<HostEnd>& ends);

}  // namespace shoal::sagemaker
