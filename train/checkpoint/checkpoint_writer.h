// The thread that writes checkpoints during training.
#pragma once

#include <functional>
#include <memory>

namespace shoal {

// Only the trainer's thread calls the methods. A job owns the snapshot that it writes and must not
// touch data that a step changes. At most one job is in flight, so memory holds one snapshot.
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
  // The same, but calls `progressed` now and then while the job makes progress (progress.h). If
  // `progressed` throws, the job stays in flight.
  void finish(const std::function<void()>& progressed);
  bool busy() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shoal
