// Shoal's only exception type, and the checks that throw it.
//
//   try {
//     model.load_pretrained("gpt2");
//   } catch (const Error& error) {
//     if (error.code() != ErrorCode::not_found) throw;
//     job.print("{}\n", error.what());  // one line: what is wrong and what to do
//   }
//
// The library never prints, exits or aborts (docs/internals/architecture.md, decision 15). It
// throws Error for a fatal condition; a program prints it as one line and exits with a non-zero
// status.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace shoal {

enum class ErrorCode {
  invalid_argument,  // the caller or the user asked for something impossible
  not_found,         // a file, key, tensor or option that should exist does not
  corrupt_data,      // bytes do not follow their format
  io,                // the operating system reported a failure (permission, full disk, network)
  out_of_memory,
  timeout,      // a deadline passed
  peer_lost,    // another rank died or left
  mismatch,     // ranks made different calls
  aborted,      // a rank or caller called abort
  unavailable,  // missing from this build or this machine
  internal,     // a bug in Shoal
};

std::string_view to_string(ErrorCode code);  // "invalid_argument"

class Error : public std::runtime_error {  // the problem, where it occurred, and a remedy
 public:
  // `message`: the problem, with its numbers. `remedy`: how to solve it; may be empty.
  Error(ErrorCode code, std::string message, std::string remedy = {});

  // Called in the layer that knows the rank, peer or operation. Return *this, so that they can be
  // chained in a throw.
  Error& at_rank(int rank);
  Error& with_peer(int peer);
  Error& in_operation(std::string operation);

  ErrorCode code() const { return code_; }
  int rank() const { return rank_; }  // -1: not known
  int peer() const { return peer_; }  // -1: none
  const std::string& operation() const { return operation_; }
  const std::string& message() const { return message_; }
  const std::string& remedy() const { return remedy_; }
  // One line: "message [rank 3, peer 1, all_reduce]; remedy".
  const char* what() const noexcept override { return what_.c_str(); }

 private:
  void compose();

  ErrorCode code_;
  int rank_ = -1;
  int peer_ = -1;
  std::string operation_, message_, remedy_, what_;
};

// throw_error(ErrorCode::io, "cannot open {}: {}", path, reason)
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace shoal

// SHOAL_CHECK(rows > 0, "matmul: {} rows", rows) throws invalid_argument unless the condition
// holds.
#define SHOAL_CHECK(condition, ...)                                            \
  do {                                                                         \
    if (!(condition)) [[unlikely]]                                             \
      ::shoal::throw_error(::shoal::ErrorCode::invalid_argument, __VA_ARGS__); \
  } while (false)

// SHOAL_ASSERT(condition) throws internal, with the source line, if the condition is false: a bug
// in Shoal.
#define SHOAL_ASSERT(condition)                                                                    \
  do {                                                                                             \
    if (!(condition)) [[unlikely]]                                                                 \
      ::shoal::throw_error(::shoal::ErrorCode::internal, "internal error: {} ({}:{})", #condition, \
                           __FILE__, __LINE__);                                                    \
  } while (false)
