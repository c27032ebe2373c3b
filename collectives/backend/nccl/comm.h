// An ncclComm_t and its lifetime. It is non-blocking (ncclConfig_t::blocking = 0): Shoal polls
// calls that NCCL leaves in progress, so that every wait has a deadline.
//
// NCCL does not compare arguments between ranks. If ranks make different calls, this backend
// reports it only when the deadline passes.
#pragma once

#include <nccl.h>
// These headers follow nccl.h, which brings CUDA's macros.
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

// Throws unavailable if the loaded NCCL is older than Shoal needs.
void check_nccl_version();

// Thread-safe.
class NcclComm {
 public:
  // Collective over the ranks that use this prefix. Rank 0 publishes the id in the store.
  NcclComm(int rank, int size, Device device, Store& store, std::string prefix,
           double deadline_seconds);
  // Takes over the result of ncclCommSplit of `parent` and waits until it is usable.
  NcclComm(const NcclComm& parent, ncclComm_t handle, int rank, int size, std::string prefix);
  ~NcclComm();  // finalizes the communicator, or aborts it if it failed

  int rank() const { return rank_; }
  int size() const { return size_; }
  Device device() const { return device_; }
  Store& store() const { return store_; }
  const std::string& prefix() const { return prefix_; }
  double deadline_seconds() const { return deadline_seconds_; }

  // Calls `body` with the communicator. While its result is "in progress", waits. Any other result
  // but success fails the communicator.
  void run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& body);
  // Throws an error that has occurred meanwhile: NCCL's asynchronous error, an abort here, or an
  // abort on another rank (polled every 250 ms).
  void check(const std::string& operation);
  // Ends everything in flight and keeps the error for all later calls.
  [[noreturn]] void fail(Error error);
  void abort(std::string_view reason);

 private:
  // Call with mutex_ held. Polls until NCCL is done. Ends early if a thread or another rank aborts.
  void settle(const char* what, ncclResult_t result);
  void fail_locked(const Error& error);
  // Reason of an abort here or on another rank (polled every 250 ms).
  std::optional<std::string> abort_seen();

  const int rank_, size_;
  const Device device_;
  Store& store_;
  const std::string prefix_;
  const double deadline_seconds_;
  std::mutex aborting_mutex_;
  std::optional<std::string> aborting_;  // set by abort() here, which may still wait for mutex_
  std::mutex mutex_;
  ncclComm_t handle_ = nullptr;  // null once aborted
  std::optional<Error> failure_;
  Clock::time_point next_look_{};
};

}  // namespace shoal::collectives::nccl
