// An ncclComm_t and how it ends. Non-blocking (ncclConfig_t::blocking = 0), so that every wait of
// ours has a deadline: calls that NCCL leaves in progress are polled.
//
// NCCL checks no arguments between ranks: where ranks call different things, this backend can only
// say so when the deadline passes.
#pragma once

#include <nccl.h>
// After nccl.h, which brings CUDA's macros.
#include <functional>
#include <mutex>
#include <optional>
#include <string>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/current_cuda_device.h"
#include "shoal/runtime/device/device.h"
#include "shoal/runtime/rendezvous/store.h"

namespace shoal::collectives::nccl {

// Throws unavailable where the NCCL that was loaded is older than what is used here.
void check_nccl_version();

// Thread-safe.
class NcclComm {
 public:
  // Collective over the ranks that use this prefix: rank 0 publishes the id in the store.
  NcclComm(int rank, int size, Device device, Store& store, std::string prefix,
           double deadline_seconds);
  // Takes over what ncclCommSplit made of `parent`, and waits until it can be used.
  NcclComm(const NcclComm& parent, ncclComm_t handle, int rank, int size, std::string prefix);
  ~NcclComm();  // finalizes it, or aborts it where it failed

  int rank() const { return rank_; }
  int size() const { return size_; }
  Device device() const { return device_; }
  Store& store() const { return store_; }
  const std::string& prefix() const { return prefix_; }
  double deadline_seconds() const { return deadline_seconds_; }

  // Runs `body` with the communicator, which returns what NCCL said; waits while that is "in
  // progress". Any other answer fails the communicator.
  void run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& body);
  // Throws what has gone wrong meanwhile: NCCL's asynchronous error, an abort here or, looked for
  // every 250 ms, on another rank.
  void check(const std::string& operation);
  // Ends everything in flight and keeps the error for all later calls.
  [[noreturn]] void fail(Error error);
  void abort(std::string_view reason);

 private:
  // With mutex_ held. Polls while NCCL is not done; ends early where somebody aborts.
  void settle(const char* what, ncclResult_t result);
  void fail_locked(const Error& error);
  std::optional<std::string> abort_seen();  // here or, looked for every 250 ms, on another rank

  const int rank_, size_;
  const Device device_;
  Store& store_;
  const std::string prefix_;
  const double deadline_seconds_;
  std::mutex aborting_mutex_;
  std::optional<std::string> aborting_;  // abort() was called here, and may be waiting for mutex_
  std::mutex mutex_;
  ncclComm_t handle_ = nullptr;  // null once aborted
  std::optional<Error> failure_;
  Clock::time_point next_look_{};
};

}  // namespace shoal::collectives::nccl
