// Every limit on a wait for another rank, host or process, with its reason. tools/check_rules
// rejects such numbers anywhere else.
//
// The rule: a wait for another rank ends SHOAL_DEADLINE_S after the last sign of progress. A rank
// that dies is detected through its connection within a second or two. The deadline is for ranks
// that are alive but make no progress. The constants below are grace periods; they never cut off
// useful work.
#pragma once

#include <chrono>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/env.h"

namespace shoal::deadlines {

// SHOAL_DEADLINE_S, in seconds. Throws invalid_argument if its value is not valid.
inline double seconds() { return env::get_real(env::kDeadline); }
// Deadline for a wait for another rank that begins now.
inline Deadline start() { return Deadline::in_seconds(seconds()); }
// A deadline that has already passed. A wait with it returns if the result is present; otherwise it
// throws at once and names the missing ranks.
inline Deadline at_once() { return Deadline::in_seconds(0); }

// ---- the rendezvous ----
// A rank that waits for the store checks for lost ranks and for progress at least this often.
inline constexpr std::chrono::milliseconds kLookAtRanks{50};
// Long work reports progress once a second, or kProgressReports times per deadline if that is more
// often. A waiting rank looks for such reports kProgressLooks times per deadline.
inline constexpr double kTellProgress = 1, kProgressReports = 16, kProgressLooks = 8;
// Limit on one attempt to connect to the store's server. It is short so that the host's other
// addresses are tried too.
inline constexpr double kConnectAttempt = 5, kShortestConnectAttempt = 0.1;
// How long a closing store server waits until pending answers are delivered.
inline constexpr double kStoreCourtesy = 1;
// The same after an error. The clients learn its cause meanwhile.
inline constexpr double kStoreLastWords = 0.5;
// How long a client waits for a server after a wait that took its whole deadline.
inline constexpr double kSilentStore = 1;
// The server closes a connection that sends nothing for this long in the middle of a request.
inline constexpr double kStoreStall = 60;
// The server closes a connection that has not shown the job's token within this time. It is short,
// since strangers may open many; a rank's own proof takes one round trip. If too many wait, the
// oldest has at least kShortestGreeting.
inline constexpr double kStoreGreeting = 5, kShortestGreeting = 0.1;
// Waits without a limit are split into slices, since time_point::max() overflows in some
// implementations.
inline constexpr std::chrono::hours kLongestSlice{1};

// ---- control links ----
// Longest interval between heartbeats, in seconds, and the number of missed heartbeats after which
// a rank is reported.
inline constexpr double kLongestBeat = 1, kMissedBeats = 2.5;
// Limit on one attempt to reach one of rank 0's addresses. A rank that reaches none of them for as
// long as a host may be unreachable (below) reports that. Rank 0 looks for such reports every
// kLookForUnreached.
inline constexpr double kHubConnectAttempt = 2;
inline constexpr double kLookForUnreached = 0.5;
// How long rank 0 waits for a hello, and a rank for the answer. A rank's wait grows in each round.
inline constexpr double kHelloAnswer = 2, kShortestHelloAnswer = 0.1;
// Rank 0 names the missing ranks when the deadline has passed. The other ranks wait this much
// longer to receive that message.
inline constexpr double kMissingReportedWithin = 1;
// How long closing links may take to send their last messages.
inline constexpr std::chrono::milliseconds kLastWords{500};
// How long a host may be unreachable before it counts as lost: a share of the deadline, within
// bounds. It is less than the deadline, so that a broken link is reported as such.
inline constexpr double kShareOutOfReach = 0.8, kShortestOutOfReach = 1, kLongestOutOfReach = 15;

// ---- operations that end or fail ----
// How long to wait for the control links to report the cause after a connection is lost.
inline constexpr double kCause = 1;
// How long a failed PyTorch rank waits for what the others said of it, kCause included: their store
// may not answer.
inline constexpr double kStatements = 2;
// How long a finished rank stays for ranks that may still need data that it sent.
inline constexpr double kLinger = 5;
// How long data from a rank that has left may still be in transit. That rank lingers longer, so
// that transports can repeat what a short outage lost.
inline constexpr std::chrono::seconds kLeftGrace{2};
// How long a closing group waits for writes into its memory that have already begun. Also how long
// a rank waits to learn whether an unreachable peer has ended.
inline constexpr double kMemoryClosing = 1;
// How long the engine's thread has to name the missing ranks after an operation on a device has
// missed its deadline.
inline constexpr std::chrono::seconds kDeviceTellsWhoIsMissing{10};
// How long a rank waits for other processes to close its memory that they have opened.
inline constexpr double kOthersClose = 2;
// How long to wait for work in flight, on streams and on hosts, before its memory is freed.
inline constexpr double kInFlightEnds = 5;
// How long a closing endpoint waits for messages in flight.
inline constexpr double kEndpointFlush = 1;
// A send that has no grant from its receiver announces itself after kAnnounceAfter, then every
// kAnnounceAgain.
inline constexpr std::chrono::milliseconds kAnnounceAfter{200};
inline constexpr std::chrono::seconds kAnnounceAgain{1};

// ---- PyTorch's backend ----
// Deadline of a communicator group that carries PyTorch's messages. A receive from any source
// requests headers that may never arrive; the process group's own time-out ends each receive
// instead.
inline constexpr double kHeadersMayNeverCome = 1e8;
// In a monitored barrier, rank 0 may begin late and then use the whole time-out. The other ranks
// wait for its verdict for kVerdictTimes the time-out plus kVerdictMore seconds.
inline constexpr double kVerdictTimes = 2, kVerdictMore = 1;

// ---- a run ----
// How long failing ranks wait for each other's reports.
inline constexpr double kTellFailures = 1;
// The same after a rank has died, since mpirun kills the survivors one second later.
inline constexpr double kTellOfDeath = 0.3;
// All ranks of a run open their temporary directory within this time of each other. A directory
// that no process uses, and that not all ranks have opened, is removed at this age.
inline constexpr std::chrono::minutes kRanksCome{1};
// Temporary directories left behind by killed processes are removed at this age.
inline constexpr std::chrono::hours kLeftBehind{24};
// The process that holds the lock of an output_dir renews it every kRunBeat. If it is not renewed
// for kRunLease, its holder counts as dead. The lease covers several renewals, since a network disk
// may be slow.
inline constexpr double kRunBeat = 5, kRunLease = 30;

// ---- a SageMaker container ----
// All hosts of a job start within this time.
inline constexpr double kHostsCome = 3600;
// orted starts on a host within this time. The first host starts it only after it has seen all
// hosts.
inline constexpr double kOrtedComes = 4200;
// If orted has been gone for this long, mpirun has finished.
inline constexpr double kOrtedGone = 5;
// Ranks have this long after SIGTERM to save a checkpoint. SageMaker sends SIGKILL after 120 s.
inline constexpr double kSaveGrace = 110;
// Extra time for a program that ignored its signal. mpirun needs one second of it to end its ranks.
inline constexpr double kGivenUp = 10;
// The named pipe of an input channel appears within this time.
inline constexpr double kFirstPipe = 600;
// If a host's SSH server does not greet within this time, it is contacted again.
inline constexpr double kGreeting = 2;

// ---- AWS ----
// Limit on one attempt to connect, and the time without data after which a request fails.
inline constexpr double kAwsConnect = 10, kAwsStall = 60;
// How long AWS may be unreachable while a job is being followed.
inline constexpr double kAwsBack = 600;

}  // namespace shoal::deadlines
