#include "support/simulation/cluster.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <thread>

#include "collectives/predictable.h"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shoal/collectives/communicator_options.h"
#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/rendezvous/store.h"
#include "shoal/runtime/rendezvous/world.h"

namespace shoal::simulation {

void forget_queues();

namespace {

constexpr int kFirstCall = 3;  // the stage of a rank that has made call 0
constexpr int kPort = 29500;
constexpr const char* kReason = "the loss is NaN";
constexpr std::uint64_t kMostSteps = 60'000'000;
// An error may come this much after the deadline, and the process may end this much later.
constexpr Time kGrace = 2 * kSecond, kLeaving = 8 * kSecond;

constexpr std::array<std::string_view, 11> kFaults{"none",  "pause",     "blink",  "slow",
                                                   "kill",  "power off", "stop",   "cut",
                                                   "abort", "absent",    "differs"};

Time time_of(double seconds) { return static_cast<Time>(seconds * kSecond); }

bool goes_on(Fault fault) { return fault <= Fault::slow; }
// Whether the rank itself causes it, between two calls.
bool is_by_call(Fault fault) { return fault >= Fault::abort; }

// Without "[rank 1, peer 3, barrier]": the sentence itself must name the victim.
std::string without_places(std::string text) {
  for (std::size_t begin = 0; (begin = text.find(" [rank ", begin)) != text.npos;)
    text.erase(begin, text.find(']', begin) - begin + 1);
  return text;
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed * 0x9e3779b97f4a7c15U + 1) {}
  int between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }
  double share() { return static_cast<double>(random_() >> 11U) * 0x1p-53; }

 private:
  std::mt19937_64 random_;
};

collectives::test::Case case_of(const Plan& plan, int call) {
  using collectives::test::kDTypes;
  using collectives::test::kOperations;
  Dice dice(plan.seed ^ (static_cast<std::uint64_t>(call) << 40U));
  collectives::test::Case made;
  // Half of the calls are sums over all ranks, as most calls of training are.
  if (dice.share() < 0.5) made.operation = kOperations[dice.between(0, std::size(kOperations) - 1)];
  // The sums of more ranks are not exact in the shortest types.
  constexpr std::array wide{DType::f32, DType::f64, DType::i64, DType::i32};
  made.dtype = plan.ranks > 9 ? wide[static_cast<std::size_t>(dice.between(0, 3))]
                              : kDTypes[dice.between(0, std::size(kDTypes) - 1)];
  constexpr std::array counts{1, 7, 100, 1000, 4000, 10000};
  made.count = counts[static_cast<std::size_t>(dice.between(0, plan.ranks > 16 ? 3 : 5))];
  made.root = dice.between(0, plan.ranks - 1);
  made.in_place = dice.share() < 0.5;
  if (!is_possible(made)) made.in_place = !made.in_place;
  return made;
}

class Job {
 public:
  explicit Job(const Plan& plan)
      : plan_(plan),
        scheduler_(plan.seed),
        network_(scheduler_),
        outcomes_(static_cast<std::size_t>(plan.ranks)) {
    network_.weather = plan.weather;
    for (int rank = 0; rank < plan.ranks; ++rank) {
      const int host = network_.add_host(fmt::format("node{}", rank));
      Process& process = scheduler_.add_process(host);
      processes_.push_back(&process);
      // Launchers start processes one after another.
      const auto late = static_cast<Time>(scheduler_.random(20 * kMillisecond));
      scheduler_.after(late, [this, rank, &process] {
        if (process.ended) return;
        scheduler_.add_fiber(process, [this, rank] { live(rank); });
      });
    }
  }

  Report run() {
    Report report;
    report.plan = plan_;
    report.began = scheduler_.now();
    if (plan_.stage == 0 && !is_by_call(plan_.fault)) bring_fault();
    const Time limit = scheduler_.now() + time_of(6 * plan_.deadline) + 60 * kSecond;
    const auto ending = scheduler_.run([this] { return all_ended(); }, limit, kMostSteps);
    report.ranks = outcomes_;
    report.fault_at = fault_at_;
    report.ended = scheduler_.now();
    report.hash = scheduler_.hash();
    report.steps = scheduler_.steps();
    report.verdict = judge(ending);
    return report;
  }

 private:
  Outcome& outcome(int rank) { return outcomes_[static_cast<std::size_t>(rank)]; }
  Process& process(int rank) { return *processes_[static_cast<std::size_t>(rank)]; }

  bool is_gone(int rank) const {  // it can no longer end by itself
    const Fault fault = plan_.fault;
    return rank == plan_.victim && fault_at_ != 0 &&
           (fault == Fault::kill || fault == Fault::power_off || fault == Fault::stop);
  }

  bool all_ended() const {
    for (int rank = 0; rank < plan_.ranks; ++rank)
      if (!outcomes_[static_cast<std::size_t>(rank)].ended && !is_gone(rank)) return false;
    return true;
  }

  // A rank's program, from the start of its process to its end.
  void live(int rank) {
    Outcome& own = outcome(rank);
    try {
      work(rank, own);
    } catch (const Error& error) {
      own.failed = true;
      own.error = error.what();
    } catch (const std::exception& error) {
      own.failed = true;
      own.error = fmt::format("not an Error: {}", error.what());
    }
    own.ended = true;
    own.ended_at = scheduler_.now();
    if (!own.failed) own.failed_at = 0;
    scheduler_.after(0, [this, rank] {
      network_.close_all(process(rank));
      scheduler_.end(process(rank));
    });
  }

  struct NoteFailure {  // notes when an exception began to unwind the rank's work
    Outcome& own;
    Scheduler& time;
    ~NoteFailure() {
      if (std::uncaught_exceptions() > 0) own.failed_at = time.now();
    }
  };

  void work(int rank, Outcome& own) {
    own.since = scheduler_.now();
    const std::shared_ptr<Store> store = [&] {
      const NoteFailure note{own, scheduler_};
      return make_tcp_store("10.0.0.1", kPort, rank == 0, plan_.ranks,
                            Deadline::in_seconds(plan_.deadline), rank);
    }();
    reach(rank, own, 1);
    World world;
    world.rank = world.node = rank;
    world.size = world.nodes = plan_.ranks;
    collectives::CommunicatorOptions options;
    options.backend = "native";
    options.transport = "efa";
    options.deadline_seconds = plan_.deadline;
    auto communicator = [&] {
      const NoteFailure note{own, scheduler_};
      return collectives::make_communicator(world, *store, options);
    }();
    reach(rank, own, 2);
    for (int call = 0; call < plan_.calls; ++call) {
      const NoteFailure note{own, scheduler_};
      const auto thinks = static_cast<Time>(scheduler_.random(3 * kMillisecond));
      std::this_thread::sleep_for(std::chrono::nanoseconds(thinks));
      own.since = scheduler_.now();
      own.wrong += make_call(rank, *communicator, call);
      reach(rank, own, kFirstCall + call);
    }
    const NoteFailure note{own, scheduler_};
    communicator->barrier()->wait();
    reach(rank, own, kFirstCall + plan_.calls);
    communicator.reset();
  }

  std::int64_t make_call(int rank, collectives::Communicator& communicator, int call) {
    const bool by_this_call =
        is_by_call(plan_.fault) && rank == plan_.victim && call == plan_.stage - kFirstCall;
    auto what = case_of(plan_, call);
    if (by_this_call) {
      fault_at_ = scheduler_.now();
      if (plan_.fault == Fault::abort) {
        communicator.abort(kReason);
      } else if (plan_.fault == Fault::absent) {
        std::this_thread::sleep_for(std::chrono::duration<double>(3 * plan_.deadline));
      } else {
        what.operation = collectives::Operation::all_reduce;
        what.count += 1;
        what.in_place = false;
      }
    }
    return collectives::test::wrong_in(communicator, what);
  }

  void reach(int rank, Outcome& own, int stage) {
    own.stage = stage;
    own.since = scheduler_.now();
    scheduler_.note(static_cast<std::uint64_t>(rank) << 32U | static_cast<unsigned>(stage));
    if (rank == plan_.victim && stage == plan_.stage && !is_by_call(plan_.fault)) bring_fault();
  }

  void bring_fault() {
    if (plan_.fault == Fault::none) return;
    scheduler_.after(plan_.delay, [this] {
      if (process(plan_.victim).ended) return;
      fault_at_ = scheduler_.now();
      strike();
    });
  }

  void strike() {
    Process& victim = process(plan_.victim);
    const int host = victim.host;
    switch (plan_.fault) {
      case Fault::pause:
        scheduler_.stop(victim);
        return scheduler_.after(plan_.length, [this, &victim] { scheduler_.resume(victim); });
      case Fault::blink:
        network_.cut(host);
        return scheduler_.after(plan_.length, [this, host] { network_.heal(host); });
      case Fault::slow:
        network_.host(host).slow = plan_.length;
        return;
      case Fault::kill:
        network_.close_all(victim);
        return scheduler_.end(victim);
      case Fault::power_off:
        network_.power_off(host);
        return scheduler_.end(victim);
      case Fault::stop:
        return scheduler_.stop(victim);
      case Fault::cut:
        return network_.cut(host);
      default:
        return;
    }
  }

  std::string judge(Scheduler::Ending ending) const {
    if (ending == Scheduler::Ending::out_of_steps) return "more turns than any job should take";
    for (int rank = 0; rank < plan_.ranks; ++rank) {
      const Outcome& own = outcomes_[static_cast<std::size_t>(rank)];
      if (is_gone(rank)) continue;
      if (!own.ended) return fmt::format("rank {} hangs", rank);
      if (own.wrong > 0) return fmt::format("rank {} has {} wrong elements", rank, own.wrong);
      if (own.failed)
        if (std::string wrong = judge_failure(rank, own); !wrong.empty())
          return fmt::format("rank {} {}", rank, wrong);
    }
    return {};
  }

  std::string judge_failure(int rank, const Outcome& own) const {
    if (goes_on(plan_.fault)) return "failed although the job should go on";
    if (fault_at_ == 0) return "failed before the fault";
    if (own.error.starts_with("not an Error")) return "threw something else than an Error";
    // It has not waited: it was busy elsewhere.
    if (rank == plan_.victim && plan_.fault == Fault::absent) return {};
    const Time due = std::max(fault_at_, own.since) + time_of(plan_.deadline) + kGrace;
    if (own.failed_at > due)
      return fmt::format("failed {:.3f} s too late",
                         static_cast<double>(own.failed_at - due) * 1e-9);
    if (own.ended_at > due + kLeaving) return "took too long to leave";
    // A host that is cut off sees all others vanish.
    if (rank == plan_.victim && plan_.fault != Fault::abort) return {};
    if (blames_a_live_process(own.error)) return "misses heartbeats of a rank that sends them";
    if (plan_.fault == Fault::abort && own.error.find(kReason) == own.error.npos)
      return "does not repeat why the victim aborted";
    // A victim that has left the group is not to blame for what a rank still waits for.
    if (outcomes_[static_cast<std::size_t>(plan_.victim)].stage == kFirstCall + plan_.calls)
      return {};
    // Without rank 0 the others learn of faults by broken connections and deadlines only.
    const Outcome& hub = outcomes_.front();
    if (hub.ended && !hub.failed && hub.ended_at < own.failed_at) return {};
    const auto named = named_ranks(without_places(own.error));
    // A rank that waits for a message knows only its sender, which may wait for another.
    const bool by_message =
        own.error.find("send of") != own.error.npos || own.error.find("recv of") != own.error.npos;
    if (by_message && is_by_call(plan_.fault) && plan_.fault != Fault::abort && !named.empty())
      return {};
    if (std::ranges::find(named, plan_.victim) == named.end()) return "does not name the victim";
    return {};
  }

  bool blames_a_live_process(const std::string& error) const {
    const Fault fault = plan_.fault;
    const bool silent = fault == Fault::stop || fault == Fault::cut || fault == Fault::power_off;
    constexpr std::string_view kSilent = "no heartbeat of ";
    for (std::size_t at = error.find(kSilent); at != error.npos; at = error.find(kSilent, at + 1)) {
      const auto named = named_ranks(std::string_view(error).substr(at, kSilent.size() + 8));
      if (!silent || named.empty() || named.front() != plan_.victim) return true;
    }
    return false;
  }

  const Plan plan_;
  Scheduler scheduler_;
  Network network_;
  std::vector<Process*> processes_;
  std::vector<Outcome> outcomes_;
  Time fault_at_ = 0;
};

}  // namespace

std::string_view to_string(Fault fault) { return kFaults[static_cast<std::size_t>(fault)]; }

Plan plan_of(std::uint64_t seed) {
  Dice dice(seed);
  Plan plan;
  plan.seed = seed;
  const double size = dice.share();
  plan.ranks = size < 0.94    ? dice.between(2, 8)
               : size < 0.995 ? dice.between(9, 24)
                              : dice.between(25, 64);
  plan.calls = dice.between(1, plan.ranks > 16 ? 4 : 10);
  constexpr std::array deadlines{3.0, 6.0, 10.0};
  plan.deadline = deadlines[static_cast<std::size_t>(dice.between(0, 2))];
  plan.direct = dice.share() < 0.5;
  if (dice.share() < 0.7)
    plan.weather = {dice.share() * 0.02, dice.share() * 0.05,
                    static_cast<Time>(dice.share() * 300 * kMicrosecond)};
  plan.fault = static_cast<Fault>(dice.between(0, static_cast<int>(kFaults.size()) - 1));
  plan.victim = dice.share() < 0.25 ? 0 : dice.between(0, plan.ranks - 1);
  const int first = is_by_call(plan.fault) ? kFirstCall : 0;
  plan.stage = dice.between(first, kFirstCall + plan.calls - 1);
  // A third of the faults come while ranks form their group.
  if (first == 0 && dice.share() < 0.33) plan.stage = dice.between(0, 2);
  plan.delay = static_cast<Time>(dice.share() * dice.share() * 20 * kMillisecond);
  const double longest = plan.fault == Fault::pause   ? 0.7 * plan.deadline
                         : plan.fault == Fault::blink ? 0.5
                                                      : 0.004;
  plan.length = time_of(dice.share() * longest);
  return plan;
}

std::string describe(const Plan& plan) {
  std::string text =
      fmt::format("seed {}: {} ranks, {} calls, deadline {} s, {}", plan.seed, plan.ranks,
                  plan.calls, plan.deadline, plan.direct ? "efa-direct" : "efa");
  if (plan.weather.spread > 0)
    text += fmt::format(", {:.1f} % of packets lost and {:.1f} % repeated, spread over {} us",
                        plan.weather.lost * 100, plan.weather.repeated * 100,
                        plan.weather.spread / kMicrosecond);
  if (plan.fault == Fault::none) return text + ", no fault";
  text += fmt::format("; {} of rank {} {:.3f} ms after its stage {}", to_string(plan.fault),
                      plan.victim, static_cast<double>(plan.delay) * 1e-6, plan.stage);
  if (goes_on(plan.fault))
    text += fmt::format(", {:.3f} ms", static_cast<double>(plan.length) * 1e-6);
  return text;
}

std::string describe(const Report& report) {
  const auto seconds = [&](Time time) { return static_cast<double>(time - report.began) * 1e-9; };
  std::string text = describe(report.plan) + "\n";
  text += fmt::format("  {} turns, hash {:016x}, {:.6f} s of virtual time", report.steps,
                      report.hash, seconds(report.ended));
  if (report.fault_at != 0) text += fmt::format(", fault at {:.6f} s", seconds(report.fault_at));
  for (std::size_t rank = 0; rank < report.ranks.size(); ++rank) {
    const Outcome& own = report.ranks[rank];
    text += fmt::format("\n  rank {}: stage {}, ", rank, own.stage);
    if (!own.ended)
      text += "did not end";
    else if (!own.failed)
      text += fmt::format("succeeded, ended at {:.6f} s", seconds(own.ended_at));
    else
      text +=
          fmt::format("began at {:.6f} s, failed at {:.6f} s, ended at {:.6f} s: {}",
                      seconds(own.since), seconds(own.failed_at), seconds(own.ended_at), own.error);
  }
  return text + "\n  " + (report.verdict.empty() ? "as it should be" : report.verdict);
}

std::vector<int> named_ranks(std::string_view text) {
  std::vector<int> named;
  for (std::size_t at = text.find("rank"); at != text.npos; at = text.find("rank", at)) {
    at += 4;
    for (const std::string_view plural : {"(s)", "s"})
      if (text.substr(at).starts_with(plural)) {
        at += plural.size();
        break;
      }
    while (at < text.size() && text[at] == ' ') {  // a list of numbers
      std::size_t end = at + 1;
      while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end]))) ++end;
      if (end == at + 1) break;
      named.push_back(std::atoi(std::string(text.substr(at + 1, end - at - 1)).c_str()));
      at = end;
      if (at < text.size() && text[at] == ',') ++at;
    }
  }
  return named;
}

Report play(const Plan& plan) {
  log::set_level(log::Level::off);
  ::setenv("SHOAL_DEADLINE_S", fmt::format("{}", plan.deadline).c_str(), 1);
  ::setenv("SHOAL_TEST_EFA_FABRIC", plan.direct ? "efa-direct" : "efa", 1);
  forget_queues();
  return Job(plan).run();
}

}  // namespace shoal::simulation
