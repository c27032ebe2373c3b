// Work that takes each rank its own time. Ranks notice each other's ends during it, and wait as
// long as a rank makes progress.
//
//   LongWork work(communicator);         // once; collective
//   for (const Piece& piece : mine) {    // any number on each rank
//     do_some(piece);
//     if (work.beat(&signal) != 0) break;
//   }
//   const int told = work.finish(&signal);  // all ranks are done, or all know what one was told
//
// The ranks pass through rounds, each one small all_reduce. A rank joins the next round with a
// beat, and never waits in it. So a rank that died is named at the next beat, and a rank that gives
// no beat within the deadline is named as missing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "shoal/collectives/communicator.h"
#include "shoal/runtime/base/clock.h"

namespace shoal::collectives {

// One thread. After an Error, abort() or destroy it.
class LongWork {
 public:
  // Collective. The rounds have a group of their own, so that the work may use `ranks` itself.
  explicit LongWork(Communicator& ranks);

  using Told = const std::atomic<int>*;  // a number that this rank got, such as a signal; or null
  // Reports progress of this rank. Returns the highest number that any rank got, once all ranks
  // know it, and 0 before. No rank then takes part in further rounds, and all must call finish().
  // Throws as Work::test(). Costs a few loads if it is called often.
  int beat(Told told = nullptr);
  // The same, but waits for the round: every rank gets the same answer. All ranks call it equally
  // often.
  int agree(Told told = nullptr);
  // Reports that this rank is done. Waits until all ranks are done, or know a number that one of
  // them received, and returns it. Throws as Work::wait().
  int finish(Told told = nullptr);
  // Ends the other ranks' waits.
  void abort(std::string_view reason);

 private:
  void begin_round(bool done, Told told);
  void end_round();

  const int size_;
  // Buffer of a round: this rank's values, then the result. The group writes to it until destroyed.
  std::array<std::int64_t, 2> round_{};  // the number, and whether a rank is not done
  std::unique_ptr<Communicator> group_;  // null: one rank
  WorkPtr work_;                         // the round under way
  Clock::time_point next_{};             // no round begins before
  int told_ = 0;
  bool all_done_ = false;
};

}  // namespace shoal::collectives
