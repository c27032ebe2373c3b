#include "shoal/parallel/pipeline/validate.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shoal/parallel/pipeline/ready_actions.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

class Inspector {
 public:
  Inspector(const Schedule& schedule, const ValidationOptions& options)
      : schedule_(schedule),
        options_(options),
        at_(kActionKinds * static_cast<std::size_t>(schedule.stages()) * microbatches(), kNowhere) {
  }

  std::vector<ScheduleFault> faults() && {
    check_places();
    if (!faults_.empty()) return std::move(faults_);  // later checks would only repeat these faults
    for (int rank = 0; rank < schedule_.ranks(); ++rank) check_order(rank);
    for (int stage = 0; stage < schedule_.stages(); ++stage) check_complete(stage);
    if (options_.communication) check_messages();
    if (faults_.empty()) check_progress();
    return std::move(faults_);
  }

 private:
  static constexpr std::size_t kNowhere = static_cast<std::size_t>(-1);

  std::size_t microbatches() const {
    return static_cast<std::size_t>(std::max(schedule_.microbatches, 0));
  }
  // Index of an action of a known stage and microbatch on its rank; kNowhere: it is not there.
  std::size_t& at(const Action& a) {
    const std::size_t stage =
        static_cast<std::size_t>(a.kind) * static_cast<std::size_t>(schedule_.stages()) +
        static_cast<std::size_t>(a.stage);
    return at_[stage * microbatches() + static_cast<std::size_t>(a.microbatch)];
  }

  template <typename... Args>
  void fault(int rank, std::size_t index, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back(
        {rank, static_cast<int>(index), fmt::format(format, std::forward<Args>(args)...)});
  }
  template <typename... Args>
  void missing(int rank, fmt::format_string<Args...> format, Args&&... args) {
    faults_.push_back({rank, -1, fmt::format(format, std::forward<Args>(args)...)});
  }
  const std::vector<Action>& list(int rank) const {
    return schedule_.actions[static_cast<std::size_t>(rank)];
  }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }

  // Each stage is on its own rank, microbatches exist, and no action occurs twice.
  void check_places() {
    for (std::size_t s = 0; s < schedule_.rank_of_stage.size(); ++s)
      if (const int rank = schedule_.rank_of_stage[s]; rank < 0 || rank >= schedule_.ranks())
        missing(0, "stage {} lies on rank {} of {}", s, rank, schedule_.ranks());
    if (!faults_.empty()) return;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      for (std::size_t i = 0; i < list(rank).size(); ++i) {
        const Action& a = list(rank)[i];
        if (a.stage < 0 || a.stage >= schedule_.stages()) {
          fault(rank, i, "{}: there are {} stages", to_string(a), schedule_.stages());
          continue;
        }
        if (rank_of(a.stage) != rank)
          fault(rank, i, "{}: stage {} lies on rank {}", to_string(a), a.stage, rank_of(a.stage));
        if (a.microbatch < 0 || a.microbatch >= schedule_.microbatches) {
          fault(rank, i, "{}: there are {} microbatches", to_string(a), schedule_.microbatches);
          continue;
        }
        if (at(a) != kNowhere)
          fault(rank, i, "{} was done before, at {}", to_string(a), at(a));
        else
          at(a) = i;
      }
    }
  }

  // F before B or I, I before W, a send after its computation, a receive before its use.
  void check_order(int rank) {
    const auto before = [&](std::size_t i, const Action& a, std::initializer_list<ActionKind> kinds,
                            std::string_view why) {
      for (const ActionKind kind : kinds) {
        const std::size_t found = at({kind, a.stage, a.microbatch});
        if (found == kNowhere) continue;
        if (found > i)
          fault(rank, i, "{} comes before {}, {}", to_string(a),
                to_string({kind, a.stage, a.microbatch}), why);
        return;
      }
      fault(rank, i, "{} has no {}{}{}, {}", to_string(a), a.stage, name(*kinds.begin()),
            a.microbatch, why);
    };
    for (std::size_t i = 0; i < list(rank).size(); ++i) {
      const Action& a = list(rank)[i];
      using enum ActionKind;
      const bool gives_gradient = a.kind == backward || a.kind == input_backward;
      if (gives_gradient) before(i, a, {forward}, "whose activations it needs");
      if (a.kind == weight_backward) before(i, a, {input_backward}, "which leaves it its work");
      if (!options_.communication) continue;
      if (a.kind == forward && crosses_forward(schedule_, a.stage - 1))
        before(i, a, {recv_forward}, "its input");
      if (gives_gradient && crosses_forward(schedule_, a.stage))
        before(i, a, {recv_backward}, "the gradient of its output");
      if (a.kind == send_forward) before(i, a, {forward}, "which makes what it sends");
      if (a.kind == send_backward)
        before(i, a, {backward, input_backward}, "which makes what it sends");
    }
  }

  // Each microbatch has one F, and either one B or one I and one W.
  void check_complete(int stage) {
    const int rank = rank_of(stage);
    using enum ActionKind;
    for (int m = 0; m < schedule_.microbatches; ++m) {
      const auto done = [&](ActionKind kind) { return at({kind, stage, m}) != kNowhere; };
      if (!done(forward)) missing(rank, "{}F{} is missing", stage, m);
      const bool whole = done(backward), input = done(input_backward),
                 weight = done(weight_backward);
      if (options_.forward_only) {
        if (whole || input || weight)
          missing(rank, "stage {} walks microbatch {} back, but the schedule is forward only",
                  stage, m);
        continue;
      }
      if (whole && (input || weight))
        missing(rank, "{}B{} does what {}{}{} does again", stage, m, stage, input ? "I" : "W", m);
      else if (!whole && !input)
        missing(rank, "{}B{} is missing", stage, m);
      else if (input && !weight)
        missing(rank, "{}I{} has no {}W{}", stage, m, stage, m);
      if (!options_.communication) continue;
      if (crosses_forward(schedule_, stage) && !done(send_forward))
        missing(rank, "{}SEND_F{} is missing", stage, m);
      if (crosses_forward(schedule_, stage - 1) && !done(send_backward))
        missing(rank, "{}SEND_B{} is missing", stage, m);
    }
  }

  // For each pair of ranks: sends and receives match in order.
  void check_messages() {
    struct End {
      Action action;  // the receive; for a send, the receive that matches it
      std::size_t index;
    };
    std::map<std::pair<int, int>, std::vector<End>> sent, received;  // (from, to)
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      for (std::size_t i = 0; i < list(rank).size(); ++i) {
        const Action& a = list(rank)[i];
        if (!sends(a.kind) && !receives(a.kind)) continue;
        const PeerStage peer = peer_of(schedule_, a);
        if (peer.stage < 0 || peer.rank == rank) {
          fault(rank, i, "{} has no rank to {}", to_string(a),
                sends(a.kind) ? "send to" : "receive from");
          continue;
        }
        if (receives(a.kind)) {
          received[{peer.rank, rank}].push_back({a, i});
          continue;
        }
        const ActionKind met = a.kind == ActionKind::send_forward ? ActionKind::recv_forward
                                                                  : ActionKind::recv_backward;
        sent[{rank, peer.rank}].push_back({{met, peer.stage, a.microbatch}, i});
      }
    for (auto& [pair, sends_of] : sent) received.try_emplace(pair);
    for (auto& [pair, receives_of] : received) {
      const auto& sends_of = sent[pair];
      const std::size_t both = std::min(sends_of.size(), receives_of.size());
      std::size_t k = 0;
      while (k < both && sends_of[k].action == receives_of[k].action) ++k;
      if (k < both)
        fault(pair.second, receives_of[k].index,
              "{} meets the send of {} from rank {}: messages between two ranks arrive in the "
              "order in which they were sent",
              to_string(receives_of[k].action), to_string(sends_of[k].action), pair.first);
      else if (k < sends_of.size())
        fault(pair.first, sends_of[k].index, "no rank receives {}: rank {} has no {}",
              to_string(list(pair.first)[sends_of[k].index]), pair.second,
              to_string(sends_of[k].action));
      else if (k < receives_of.size())
        fault(pair.second, receives_of[k].index, "{} waits for rank {}, which never sends it",
              to_string(receives_of[k].action), pair.first);
    }
  }

  void check_progress() {
    ReadyActions ready(schedule_);
    std::vector<int> in_flight(static_cast<std::size_t>(schedule_.ranks()));
    const bool ended = ready.play([&](int rank, std::size_t index) {
      const Action& a = list(rank)[index];
      int& held = in_flight[static_cast<std::size_t>(rank)];
      if (a.kind == ActionKind::backward || a.kind == ActionKind::weight_backward) --held;
      if (a.kind != ActionKind::forward || options_.forward_only) return;
      if (++held == options_.max_in_flight + 1 && options_.max_in_flight > 0)
        fault(rank, index, "{} is the {}th microbatch in flight; {} are allowed", to_string(a),
              held, options_.max_in_flight);
    });
    if (ended) return;
    for (int rank = 0; rank < schedule_.ranks(); ++rank)
      if (ready.position(rank) < list(rank).size())
        fault(rank, ready.position(rank), "deadlock: rank {} {}", rank, ready.waits_for(rank));
  }

  const Schedule& schedule_;
  const ValidationOptions& options_;
  std::vector<std::size_t> at_;  // by at()
  std::vector<ScheduleFault> faults_;
};

constexpr int kContext = 4;  // rows of the grid before and after a fault

}  // namespace

std::vector<ScheduleFault> find_faults(const Schedule& schedule, const ValidationOptions& options) {
  return Inspector(schedule, options).faults();
}

std::string grid(const Schedule& schedule, std::span<const ScheduleFault> faults) {
  std::size_t rows = 0, width = 7;
  for (const auto& actions : schedule.actions) {
    rows = std::max(rows, actions.size());
    for (const Action& action : actions) width = std::max(width, to_string(action).size() + 2);
  }
  const auto shown = [&](std::size_t row) {
    if (faults.empty()) return true;
    return std::any_of(faults.begin(), faults.end(), [&](const ScheduleFault& fault) {
      return fault.index >= 0 && std::abs(fault.index - static_cast<int>(row)) <= kContext;
    });
  };
  std::string text = fmt::format("{:>6}", "");
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    text += fmt::format(" {:<{}}", fmt::format(" rank {}", rank), width);
  text += '\n';
  bool gap = false;
  for (std::size_t row = 0; row < rows; ++row) {
    if (!shown(row)) {
      gap = true;
      continue;
    }
    if (std::exchange(gap, false)) text += "   ...\n";
    text += fmt::format("{:>6}", row);
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
      const auto& actions = schedule.actions[static_cast<std::size_t>(rank)];
      const bool faulty =
          std::any_of(faults.begin(), faults.end(), [&](const ScheduleFault& fault) {
            return fault.rank == rank && fault.index == static_cast<int>(row);
          });
      std::string cell = row < actions.size() ? to_string(actions[row]) : "";
      cell = faulty ? ">" + cell + "<" : " " + cell;
      text += fmt::format(" {:<{}}", cell, width);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  if (gap) text += "   ...\n";
  for (const ScheduleFault& fault : faults)
    text += fault.index < 0
                ? fmt::format("rank {}: {}\n", fault.rank, fault.message)
                : fmt::format("rank {}, row {}: {}\n", fault.rank, fault.index, fault.message);
  return text;
}

void validate(const Schedule& schedule, const ValidationOptions& options) {
  const auto faults = find_faults(schedule, options);
  if (faults.empty()) return;
  throw_error(ErrorCode::invalid_argument, "schedule {} cannot run: rank {}: {}\n{}", schedule.name,
              faults.front().rank, faults.front().message, grid(schedule, faults));
}

}  // namespace shoal::parallel
