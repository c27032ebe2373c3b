// The one thread that writes checkpoints while training goes on.
#pragma once

#include <functional>
#include <memory>

namespace shoal {

// Methods belong to one thread, the trainer's. A job owns what it writes (a snapshot), and may not
// touch anything that a step changes. At most one job is in flight: memory for one snapshot.
class CheckpointWriter {
 public:
  CheckpointWriter();
  // Waits for the job in flight. An error that no call has rethrown is logged.
  ~CheckpointWriter();

  // Waits for the job in flight, rethrows its error, then starts `job`.
  void submit(std::function<void()> job);
  // Rethrows the error of a job that failed, once; does not wait.
  void check();
  // Waits for the job in flight and rethrows its error.
  void finish();
  bool busy() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
