// Every bound on a wait for another rank, host or process, with its reason. tools/check_rules
// refuses such a number anywhere else.
//
// The rule: a wait for another rank lasts at most SHOAL_DEADLINE_S since the last sign of progress.
// A rank that dies is known by its connection within a second or two; the deadline is for ranks
// that live and do nothing. The constants below are grace periods: they end a courtesy, never work.
#pragma once

#include <chrono>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/env.h"

namespace shoal::deadlines {

// SHOAL_DEADLINE_S, in seconds. invalid_argument when it is no number.
inline double seconds() { return env::get_real(env::kDeadline); }
// A wait for another rank that begins now.
inline Deadline start() { return Deadline::in_seconds(seconds()); }
// No wait: takes what is there, or throws at once and names the ranks that are missing.
inline Deadline at_once() { return Deadline::in_seconds(0); }

// ---- the rendezvous ----
// A look whether other ranks are gone, or progress, while a rank waits for the store.
inline constexpr std::chrono::milliseconds kLookAtRanks{50};
// Long work tells its progress so often: each second, and so many times within the deadline. A rank
// that waits looks for it so many times within the deadline.
inline constexpr double kTellProgress = 1, kProgressTold = 16, kProgressLooks = 8;
// One attempt to reach the store's server, so that another address of its host gets its turn.
inline constexpr double kConnectAttempt = 5, kShortestConnectAttempt = 0.1;
// A store's server that closes waits so long for answers that are still on their way.
inline constexpr double kStoreCourtesy = 2;
// A server that once did not answer within the deadline gets no second one, only this.
inline constexpr double kSilentStore = 2;
// A connection that stays silent in the middle of a request to the store is closed after this.
inline constexpr double kStoreStall = 60;
// A wait without an end is cut into slices: time_point::max() overflows in some implementations.
inline constexpr std::chrono::hours kLongestSlice{1};

// ---- control links ----
// Seconds between heartbeats, at most; so many missed ones are worth telling.
inline constexpr double kLongestBeat = 1, kMissedBeats = 2.5;
// Rank 0 has so long for the answer to a hello, and more in each later round.
inline constexpr double kHelloAnswer = 2, kShortestHelloAnswer = 0.1;
// Rank 0 says who is missing when the deadline has passed; the others wait so much longer for that.
inline constexpr double kMissingToldWithin = 1;
// Links that end send their last words for so long.
inline constexpr std::chrono::milliseconds kLastWords{500};
// How long a host may be out of reach: less than the deadline, so that a cut link is named as such.
inline constexpr double kShareOutOfReach = 0.8, kShortestOutOfReach = 1, kLongestOutOfReach = 15;

// ---- operations that end or fail ----
// A lost connection waits so long for the control links to say why.
inline constexpr double kCause = 1;
// A rank that is done stays so long for the others, which may still want what it has sent.
inline constexpr double kLinger = 5;
// What a rank that left has sent may still be on its way for so long.
inline constexpr std::chrono::milliseconds kLeftGrace{500};
// A group that gives up waits so long for writes into its memory that have begun.
inline constexpr double kMemoryClosing = 1;
// Once a device's operation is late, the engine's thread has so long to say who is missing.
inline constexpr std::chrono::seconds kDeviceTellsWhoIsMissing{10};
// Memory that other processes have open waits so long for them to close it.
inline constexpr double kOthersClose = 2;
// Work in flight, on streams and hosts, that has so long to end before its memory goes.
inline constexpr double kInFlightEnds = 5;
// A closing endpoint gives so long to messages in flight.
inline constexpr double kEndpointFlush = 1;
// An ungranted send tells its receiver what it is: first, and again.
inline constexpr std::chrono::milliseconds kAnnounceAfter{200};
inline constexpr std::chrono::seconds kAnnounceAgain{1};

// ---- a run ----
// Ranks that fail wait so long for each other to say what they found.
inline constexpr double kTellFailures = 1;
// Temporary directories that killed processes left behind are removed once they are this old.
inline constexpr std::chrono::hours kLeftBehind{24};
// The holder of an output_dir's lock shows so often that it lives; without a sign for the lease it
// is dead. Several beats: a network's disk may be late.
inline constexpr double kRunBeat = 5, kRunLease = 30;

// ---- a SageMaker container ----
// All hosts of a job come up within this.
inline constexpr double kHostsCome = 3600;
// orted comes on a host: not before the first host has seen all hosts.
inline constexpr double kOrtedComes = 4200;
// Without orted for so long, mpirun is done.
inline constexpr double kOrtedGone = 5;
// SageMaker grants 120 s between SIGTERM and SIGKILL; ranks have so long to save a checkpoint.
inline constexpr double kSaveGrace = 110;
// A program that ignored its signal has so long more; mpirun takes a second of it to end ranks.
inline constexpr double kGivenUp = 10;
// A channel's pipe is there within this.
inline constexpr double kFirstPipe = 600;

}  // namespace shoal::deadlines
