#include "shoal/runtime/base/error.h"

#include <utility>

#include "shoal/runtime/base/terminal.h"

namespace shoal {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid argument";
    case ErrorCode::not_found:
      return "not found";
    case ErrorCode::corrupt_data:
      return "corrupt data";
    case ErrorCode::io:
      return "i/o error";
    case ErrorCode::out_of_memory:
      return "out of memory";
    case ErrorCode::timeout:
      return "timeout";
    case ErrorCode::peer_lost:
      return "peer lost";
    case ErrorCode::mismatch:
      return "mismatch";
    case ErrorCode::aborted:
      return "aborted";
    case ErrorCode::unavailable:
      return "unavailable";
    case ErrorCode::internal:
      return "internal error";
  }
  return "unknown error";
}

Error::Error(ErrorCode code, std::string message, std::string remedy)
    : std::runtime_error(message),
      code_(code),
      message_(std::move(message)),
      remedy_(std::move(remedy)) {
  compose();
}

Error& Error::at_rank(int rank) {
  rank_ = rank;
  compose();
  return *this;
}

Error& Error::with_peer(int peer) {
  peer_ = peer;
  compose();
  return *this;
}

Error& Error::in_operation(std::string operation) {
  operation_ = std::move(operation);
  compose();
  return *this;
}

void Error::compose() {
  std::string place;
  const auto add = [&place](const std::string& text) {
    if (!place.empty()) place += ", ";
    place += text;
  };
  if (rank_ >= 0) add(fmt::format("rank {}", rank_));
  if (peer_ >= 0) add(fmt::format("peer {}", peer_));
  if (!operation_.empty()) add(operation_);
  what_ = message_;
  if (!place.empty()) what_ += " [" + place + "]";
  if (!remedy_.empty()) what_ += "; " + remedy_;
  what_ = terminal::visible(what_);  // messages quote names from files
}

}  // namespace shoal
