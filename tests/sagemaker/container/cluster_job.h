// A job on two hosts of the emulated cluster (bench/cluster/emulate), from nothing but /opt/ml:
// each host is a network namespace with an address, a disk and processes of its own, `train` is its
// process 1, and mpirun reaches the second through sshd. play_host does what SageMaker does.
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
  std::string status, out, err, failure;  // failure: empty where there is none
  std::string said() const;
};

// Two hosts' /opt/ml, and what becomes of them.
class Job {
 public:
  using Json = OptMl::Json;

  // With the text in the channels train and validation; empty: without channels.
  explicit Job(const Json& hyperparameters, const std::string& text = {});

  // The hosts from their start to the end of both; `play`: NAME=value of play_host. They have so
  // many seconds.
  std::vector<HostEnd> run(std::vector<std::string> play = {},
                           const std::vector<std::string>& words = {}, int seconds = 150);

  // Between an interruption and the next start: each host's checkpoints went to one place in S3,
  // and all of what is there comes to each. `lose`: of which files it never got all.
  void synchronize_checkpoints(std::mt19937* lose = nullptr);

  OptMl& host(std::size_t index) { return *hosts_[index]; }
  std::string path(const std::string& name) const { return folder_ / name; }
  // Of the newest checkpoint on the first host; 0: none.
  std::int64_t newest_step() const;
  bool has_model(std::size_t host) const;
  std::string model() const;
  // The training losses and the last evaluation of all starts of the job.
  std::string losses() const;

 private:
  // A file of one host's newest checkpoint, or its end.
  void lose_something(std::mt19937& random);
  std::string left(const std::string& name) const;
  HostEnd end_of(std::size_t host) const;

  testing::TemporaryDirectory folder_;
  std::vector<std::unique_ptr<OptMl>> hosts_;
};

// Why this machine cannot emulate the hosts; empty: it can.
std::string why_no_hosts();

void expect_ended_well(const std::vector<HostEnd>& ends);

}  // namespace shoal::sagemaker
