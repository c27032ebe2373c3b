#include "shoal/runtime/base/exit_status.h"

#include <array>
#include <new>
#include <string>

namespace shoal {

Error error_of(const std::exception& caught) {
  if (const auto* const error = dynamic_cast<const Error*>(&caught)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&caught) != nullptr)
    return {ErrorCode::out_of_memory, "out of memory"};
  return {ErrorCode::internal, std::string("unexpected: ") + caught.what()};
}

int exit_status(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
    case ErrorCode::unavailable:
      return kWrongOptions;
    case ErrorCode::not_found:
    case ErrorCode::corrupt_data:
      return kBadInput;
    case ErrorCode::io:
    case ErrorCode::out_of_memory:
      return kNoResources;
    case ErrorCode::timeout:
    case ErrorCode::peer_lost:
    case ErrorCode::mismatch:
    case ErrorCode::aborted:
      return kPeersFailed;
    case ErrorCode::internal:
      break;
  }
  return kFailed;
}

std::span<const ExitRow> exit_statuses() {
  static constexpr std::array kRows = {
      ExitRow{"0", "done"},
      ExitRow{"1",
              "failed for another reason: a result is wrong, a step cannot be computed, or Shoal "
              "has a bug"},
      ExitRow{"2",
              "wrong options, job file or environment variables, or an option that this build or "
              "machine lacks; nothing was changed"},
      ExitRow{"3", "bad input: a file, model or column is missing, or its content is damaged"},
      ExitRow{"4",
              "the machine refused: memory, disk, permission, network or a service; the same "
              "command may succeed later"},
      ExitRow{"5",
              "another rank ended, is stopped, made another call, or did not answer before the "
              "deadline; restart the job"},
      ExitRow{"128 + N",
              "stopped by signal N: 130 Ctrl-C, 138 SIGUSR1, 143 SIGTERM. A run of `shoal train` "
              "has saved a checkpoint"}};
  return kRows;
}

std::span<const ExitRow> exit_status_exceptions() {
  static constexpr std::array kRows = {
      ExitRow{"shoal train",
              "2 only before training begins; later such an error ends with 1. Each rank returns "
              "the status of the error that began the failure, not 5"},
      ExitRow{"shoal jobs attach, shoal submit --wait", "0 only if the job completed, else 1"},
      ExitRow{"shoal study", "1 if a run failed; the same command continues with it"},
      ExitRow{"shoal checkpoint inspect", "1 if a tensor is missing or the model is refused"},
      ExitRow{"shoal doctor --need", "1 if something that is needed is missing"},
      ExitRow{"shoal diagnose", "0 whatever happened to the job"},
      ExitRow{"train in a SageMaker container",
              "the trainer's status if it ran; 143 after SIGTERM"},
      ExitRow{"mpirun", "the status of the first rank that failed"}};
  return kRows;
}

}  // namespace shoal
