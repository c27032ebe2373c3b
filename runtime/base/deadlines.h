// Every bound on a wait for another rank, host or process, with its reason. tools/check_rules
// refuses such numbers anywhere else.
//
// The rule: a wait for another rank lasts at most SHOAL_DEADLINE_S since the last sign of progress.
// A rank that dies is detected through its connection within a second or two; the deadline is for
// ranks that are alive but make no progress. The constants below are grace periods: they end a
// courtesy, never work.
#pragma once

#include <chrono>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/env.h"

namespace shoal::deadlines {

// SHOAL_DEADLINE_S, in seconds. Throws invalid_argument if it is none of its numbers.
inline double seconds() { return env::get_real(env::kDeadline); }
// Deadline of a wait for another rank that begins now.
inline Deadline start() { return Deadline::in_seconds(seconds()); }
// No wait: the call returns the cards that are there, or throws and names the missing ranks.
inline Deadline at_once() { return Deadline::in_seconds(0); }

// ---- the rendezvous ----
// Longest interval at which a rank that waits for the store checks for lost ranks and progress.
inline constexpr std::chrono::milliseconds kLookAtRanks{50};
// Long work reports its progress every second, or kProgressTold times within the deadline if that
// is more often. A waiting rank checks for it kProgressLooks times within the deadline.
inline constexpr double kTellProgress = 1, kProgressTold = 16, kProgressLooks = 8;
// One attempt to reach the store's server; short, so that the host's other addresses get a turn.
inline constexpr double kConnectAttempt = 5, kShortestConnectAttempt = 0.1;
// Time that a closing store server waits for answers that are still on their way.
inline constexpr double kStoreCourtesy = 1;
// Wait for a server that has missed the deadline once before, instead of a second deadline.
inline constexpr double kSilentStore = 2;
// The server closes a connection that is silent this long in the middle of a request.
inline constexpr double kStoreStall = 60;
// Endless waits are split into slices, since time_point::max() overflows in some implementations.
inline constexpr std::chrono::hours kLongestSlice{1};

// ---- control links ----
// Longest interval between heartbeats in seconds, and the number of missed ones that is reported.
inline constexpr double kLongestBeat = 1, kMissedBeats = 2.5;
// Longest attempt to reach one of rank 0's addresses. A rank that reaches none of them for as long
// as a host may be unreachable (below) reports it; rank 0 looks for such reports this often.
inline constexpr double kHubConnectAttempt = 2;
inline constexpr double kLookForUnreached = 0.5;
// Time that rank 0 waits for a hello, and a rank for the answer; the latter grows in each round.
inline constexpr double kHelloAnswer = 2, kShortestHelloAnswer = 0.1;
// Rank 0 names the missing ranks once the deadline has passed. Other ranks wait this much longer
// for its message.
inline constexpr double kMissingToldWithin = 1;
// Time that closing links have to send their last messages.
inline constexpr std::chrono::milliseconds kLastWords{500};
// How long a host may be unreachable. It is less than the deadline, so that a cut link is reported
// as such.
inline constexpr double kShareOutOfReach = 0.8, kShortestOutOfReach = 1, kLongestOutOfReach = 15;

// ---- operations that end or fail ----
// Time that a lost connection waits for the control links to report the cause.
inline constexpr double kCause = 1;
// Time that a finished rank stays for ranks that may still need the data that it sent.
inline constexpr double kLinger = 5;
// Time that data from a rank that left may still be on its way.
inline constexpr std::chrono::milliseconds kLeftGrace{500};
// Time that a closing group waits for writes into its memory that have already begun, and that a
// rank waits to learn whether an unreachable peer has ended.
inline constexpr double kMemoryClosing = 1;
// Time that the engine's thread has, once a device's operation is late, to name the missing ranks.
inline constexpr std::chrono::seconds kDeviceTellsWhoIsMissing{10};
// Time that memory opened by other processes waits for them to close it.
inline constexpr double kOthersClose = 2;
// Time that work in flight, on streams and hosts, has to end before its memory is freed.
inline constexpr double kInFlightEnds = 5;
// Time that a closing endpoint gives to messages in flight.
inline constexpr double kEndpointFlush = 1;
// A send without a grant announces itself to its receiver after this time, and then repeatedly.
inline constexpr std::chrono::milliseconds kAnnounceAfter{200};
inline constexpr std::chrono::seconds kAnnounceAgain{1};

// ---- PyTorch's backend ----
// The own deadline of a group that carries PyTorch's messages. A receive from any source leaves
// headers asked for that may never come; the process group's time-out ends each receive.
inline constexpr double kHeadersMayNeverCome = 1e8;
// Rank 0 of a monitored barrier has the whole time-out and may begin late. Others wait this many
// times as long for its verdict, and a little more.
inline constexpr double kVerdictTimes = 2, kVerdictMore = 1;

// ---- a run ----
// Time that failing ranks wait for each other's reports.
inline constexpr double kTellFailures = 1;
// The same once a rank is gone: mpirun ends the survivors one second after it.
inline constexpr double kTellOfDeath = 0.3;
// Ranks of a run open their temporary directory within this of each other. A directory that no
// process uses, and that not all ranks have opened, is removed at this age.
inline constexpr std::chrono::minutes kRanksCome{1};
// Temporary directories left behind by killed processes are removed at this age.
inline constexpr std::chrono::hours kLeftBehind{24};
// The holder of an output_dir's lock renews it every kRunBeat. Without a renewal for kRunLease, the
// holder counts as dead. The lease is several beats, since a network disk may be slow.
inline constexpr double kRunBeat = 5, kRunLease = 30;

// ---- a SageMaker container ----
// All hosts of a job start within this time.
inline constexpr double kHostsCome = 3600;
// orted starts on a host within this time. It starts only after the first host has seen all hosts.
inline constexpr double kOrtedComes = 4200;
// If orted is gone this long, mpirun has finished.
inline constexpr double kOrtedGone = 5;
// SageMaker allows 120 s between SIGTERM and SIGKILL; ranks have this long to save a checkpoint.
inline constexpr double kSaveGrace = 110;
// Extra time for a program that ignored its signal; mpirun needs one second of it to end ranks.
inline constexpr double kGivenUp = 10;
// A channel's pipe appears within this time.
inline constexpr double kFirstPipe = 600;
// A host's SSH server greets within this time, or is asked again.
inline constexpr double kGreeting = 2;

// ---- AWS ----
// One attempt to connect, and the time after which a request without data fails.
inline constexpr double kAwsConnect = 10, kAwsStall = 60;
// How long AWS may be out of reach while a job is followed.
inline constexpr double kAwsBack = 600;

}  // namespace shoal::deadlines
