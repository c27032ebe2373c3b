#include "shoal/collectives/backend/nccl/comm.h"

#include <cstring>
#include <thread>

#include "shoal/runtime/rendezvous/cards.h"

namespace shoal::collectives::nccl {
namespace {

constexpr auto kLookEvery = std::chrono::milliseconds(250);

ncclConfig_t config() {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

ncclUniqueId agree_on_id(int rank, Store& store, const std::string& prefix, Deadline deadline) {
  ncclUniqueId id;
  if (rank == 0) {
    const ncclResult_t result = ncclGetUniqueId(&id);
    if (result != ncclSuccess)
      throw_error(ErrorCode::unavailable, "nccl: ncclGetUniqueId: {}", ncclGetErrorString(result));
    store.set(prefix + "/id", std::string_view(id.internal, sizeof id.internal));
    return id;
  }
  return read_card(0, "nccl", store.get(prefix + "/id", deadline), [&](std::string_view card) {
    if (card.size() != sizeof id.internal)
      throw_error(ErrorCode::corrupt_data, "an id of {} bytes, not {}", card.size(),
                  sizeof id.internal);
    std::memcpy(id.internal, card.data(), card.size());
    return id;
  });
}

}  // namespace

void check_nccl_version() {
  constexpr int kNeeded = NCCL_VERSION(2, 19, 0);  // ncclMemAlloc, ncclCommRegister
  const auto text = [](int version) {
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  };
  int loaded = 0;
  const ncclResult_t result = ncclGetVersion(&loaded);
  if (result == ncclSuccess && loaded >= kNeeded) return;
  throw Error(ErrorCode::unavailable,
              fmt::format("the NCCL that was loaded is {}; this build of Shoal needs {} or later",
                          text(loaded), text(kNeeded)),
              "see which libnccl.so.2 LD_LIBRARY_PATH names, or use the native backend");
}

NcclComm::NcclComm(int rank, int size, Device device, Store& store, std::string prefix,
                   double deadline_seconds)
    : rank_(rank),
      size_(size),
      device_(device),
      store_(store),
      prefix_(std::move(prefix)),
      deadline_seconds_(deadline_seconds) {
  const CurrentCudaDevice current(device_);
  const ncclUniqueId id = agree_on_id(rank, store, prefix_, Deadline::in_seconds(deadline_seconds));
  ncclConfig_t options = config();
  const std::lock_guard lock(mutex_);
  settle("ncclCommInitRankConfig", ncclCommInitRankConfig(&handle_, size, id, rank, &options));
}

NcclComm::NcclComm(const NcclComm& parent, ncclComm_t handle, int rank, int size,
                   std::string prefix)
    : rank_(rank),
      size_(size),
      device_(parent.device_),
      store_(parent.store_),
      prefix_(std::move(prefix)),
      deadline_seconds_(parent.deadline_seconds_),
      handle_(handle) {
  const std::lock_guard lock(mutex_);
  settle("ncclCommSplit", ncclInProgress);
}

NcclComm::~NcclComm() {
  const std::lock_guard lock(mutex_);
  if (!handle_) return;
  try {
    const CurrentCudaDevice current(device_);
    settle("ncclCommFinalize", ncclCommFinalize(handle_));
    ncclCommDestroy(handle_);
  } catch (const Error&) {  // settle() has aborted it
  }
}

void NcclComm::run(const char* what, const std::function<ncclResult_t(ncclComm_t)>& body) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  const CurrentCudaDevice current(device_);
  settle(what, body(handle_));
}

void NcclComm::settle(const char* what, ncclResult_t result) {
  const Deadline deadline = Deadline::in_seconds(deadline_seconds_);
  while (result == ncclInProgress && !deadline.passed()) {
    if (const auto text = abort_seen()) {
      fail_locked(Error(ErrorCode::aborted, *text).at_rank(rank_).in_operation(what));
      throw Error(*failure_);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    const ncclResult_t asked = ncclCommGetAsyncError(handle_, &result);
    if (asked != ncclSuccess) result = asked;
  }
  if (result == ncclSuccess) return;
  const bool late = result == ncclInProgress;
  Error error(late ? ErrorCode::timeout : ErrorCode::io,
              late ? fmt::format("nccl: {} did not finish within {} s", what, deadline_seconds_)
                   : fmt::format("nccl: {}: {} ({})", what, ncclGetErrorString(result),
                                 ncclGetLastError(handle_)),
              late ? "see whether every rank came here, or raise SHOAL_DEADLINE_S"
                   : "NCCL_DEBUG=INFO says more");
  error.at_rank(rank_);
  fail_locked(error);
  throw Error(*failure_);
}

void NcclComm::fail_locked(const Error& error) {
  if (!failure_) failure_ = error;
  if (handle_) ncclCommAbort(handle_);
  handle_ = nullptr;
}

void NcclComm::fail(Error error) {
  const std::lock_guard lock(mutex_);
  fail_locked(error);
  throw Error(*failure_);
}

void NcclComm::check(const std::string& operation) {
  const std::lock_guard lock(mutex_);
  if (failure_) throw Error(*failure_);
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(handle_, &state);
  const ncclResult_t worse = asked != ncclSuccess ? asked : state;
  if (worse != ncclSuccess && worse != ncclInProgress) {
    const ErrorCode code = worse == ncclRemoteError ? ErrorCode::peer_lost : ErrorCode::io;
    Error error(code,
                fmt::format("nccl: {} ({})", ncclGetErrorString(worse), ncclGetLastError(handle_)),
                "NCCL_DEBUG=INFO says more");
    error.at_rank(rank_).in_operation(operation);
    fail_locked(error);
    throw Error(*failure_);
  }
  if (const auto text = abort_seen()) {
    fail_locked(Error(ErrorCode::aborted, *text).at_rank(rank_).in_operation(operation));
    throw Error(*failure_);
  }
}

std::optional<std::string> NcclComm::abort_seen() {
  {
    const std::lock_guard lock(aborting_mutex_);
    if (aborting_) return aborting_;
  }
  const auto now = Clock::now();
  if (now < next_look_) return std::nullopt;
  next_look_ = now + kLookEvery;
  return store_.try_get(prefix_ + "/abort");
}

void NcclComm::abort(std::string_view reason) {
  const std::string text = fmt::format("rank {} aborted: {}", rank_, reason);
  {
    const std::lock_guard lock(aborting_mutex_);
    if (!aborting_) aborting_ = text;
  }
  store_.compare_set(prefix_ + "/abort", std::nullopt, text);
  const std::lock_guard lock(mutex_);
  fail_locked(Error(ErrorCode::aborted, text).at_rank(rank_));
}

}  // namespace shoal::collectives::nccl
