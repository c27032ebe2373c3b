// Long work that takes each rank a different time. Meanwhile each rank notices if another dies, and
// ranks that finish first wait as long as the others make progress.
//
//   LongWork work(communicator);         // once; collective
//   for (const Piece& piece : mine) {    // any number on each rank
//     do_some(piece);
//     if (work.beat(&signal) != 0) break;
//   }
//   const int received = work.finish(&signal);  // all ranks are done, or know of a signal
//
// Ranks exchange their state in rounds, each one small all_reduce. beat() joins the next round and
// never waits for it. A rank that died is therefore named at the next beat, and a rank that does
// not call beat() within the deadline is named as missing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::collectives {

// For use by one thread. After an Error, call abort() or destroy the object.
class LongWork {
 public:
  // Collective. The rounds use a group of their own, so the work may use `ranks`.
  explicit LongWork(Communicator& ranks);

  using Received =
      const std::atomic<int>*;  // a number this rank received, such as a signal; or null
  // Reports progress of this rank. Returns 0 until all ranks know of a received number, then the
  // highest one. No rank takes part in further rounds then, and all must call finish(). Throws as
  // Work::test(). Frequent calls cost only a few loads each.
  int beat(Received received = nullptr);
  // Like beat(), but waits for the round, so every rank gets the same answer. All ranks must call
  // it equally often.
  int agree(Received received = nullptr);
  // Reports that this rank is done. Waits until all ranks are done or know the number that one of
  // them received. Returns that number or 0. Throws as Work::wait().
  int finish(Received received = nullptr);
  // Ends the other ranks' waits with this reason.
  void abort(std::string_view reason);

 private:
  void begin_round(bool done, Received received);
  void end_round();

  const int size_;
  // Buffer of a round: this rank's values, then the result. The group may write to it until the
  // group is destroyed.
  std::array<std::int64_t, 2> round_{};  // the number; 1 while any rank is not done
  std::unique_ptr<Communicator> group_;  // null: one rank
  WorkPtr work_;                         // the round under way
  Clock::time_point next_{};             // when the next round may begin
  int agreed_ = 0;
  bool all_done_ = false;
};

}  // namespace shoal::collectives
