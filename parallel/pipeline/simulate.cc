#include "shoal/parallel/pipeline/simulate.h"

#include <algorithm>
#include <cmath>

#include "shoal/parallel/pipeline/ready_actions.h"
#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// Times at which each side reached a message. ReadyActions::play() may visit the receive after the
// send.
struct Message {
  double sent = 0, posted = 0;
};

class Clockwork {
 public:
  Clockwork(const Schedule& schedule, const PipelineCosts& costs)
      : schedule_(schedule), costs_(costs), ready_(schedule) {
    const auto ranks = static_cast<std::size_t>(schedule.ranks());
    SHOAL_CHECK(costs.stages.size() == 1 ||
                    costs.stages.size() == static_cast<std::size_t>(schedule.stages()),
                "costs of {} stages for a pipeline of {}", costs.stages.size(), schedule.stages());
    now_.resize(ranks);
    result_.busy.resize(ranks);
    result_.peak_activation.resize(ranks);
    result_.peak_microbatches.resize(ranks);
    activation_.resize(ranks);
    in_flight_.resize(ranks);
    channels_.resize(ranks * ranks);
    for (auto* const times : {&computed_, &arrived_}) times->resize(2 * ready_.places());
    messages_.resize(2 * ready_.places());
    for (const auto& actions : schedule.actions) result_.actions.emplace_back(actions.size());
  }

  Simulation run() && {
    const bool ended = ready_.play([this](int rank, std::size_t index) { step(rank, index); });
    if (!ended)
      for (int rank = 0; rank < schedule_.ranks(); ++rank)
        if (ready_.position(rank) < schedule_.actions[at(rank)].size())
          throw_error(ErrorCode::invalid_argument, "schedule {} stops: rank {} {}", schedule_.name,
                      rank, ready_.waits_for(rank));
    result_.time = now_.empty() ? 0 : *std::max_element(now_.begin(), now_.end());
    return std::move(result_);
  }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  // The index of a forward or backward and its message.
  std::size_t slot(int stage, int microbatch, bool backward) const {
    return 2 * ready_.place(stage, microbatch) + (backward ? 1 : 0);
  }
  auto& channel(int from, int to) { return channels_[at(from) * now_.size() + at(to)]; }

  double duration(const Action& action) const {
    const StageCosts& stage = costs_.of(action.stage);
    switch (action.kind) {
      case ActionKind::forward:
        return stage.forward;
      case ActionKind::backward:
        return stage.input_backward + stage.weight_backward;
      case ActionKind::input_backward:
        return stage.input_backward;
      case ActionKind::weight_backward:
        return stage.weight_backward;
      default:
        return 0;
    }
  }

  // Time at which the data that `action` needs is available. Computes a message's arrival once both
  // of its sides are known; earlier messages between the same ranks come first.
  double arrival(int rank, const Action& action) {
    const ReadyActions::Need need = ready_.need_of(action);
    if (need.action.stage < 0) return 0;
    const auto slot_of = [&](bool backward) {
      return slot(need.action.stage, need.action.microbatch, backward);
    };
    if (!need.message) return computed_[slot_of(need.action.kind != ActionKind::forward)];
    const std::size_t wanted = slot_of(need.action.kind == ActionKind::send_backward);
    Channel& channel = this->channel(schedule_.rank_of_stage[at(need.action.stage)], rank);
    for (; channel.settled < channel.order.size(); ++channel.settled) {
      const std::size_t one = channel.order[channel.settled];
      const Message& message = messages_[one];
      channel.free_at = std::max({channel.free_at, message.sent, message.posted}) + costs_.message;
      arrived_[one] = channel.free_at;
      if (one == wanted) {
        ++channel.settled;
        break;
      }
    }
    return arrived_[wanted];
  }

  void step(int rank, std::size_t index) {
    const Action& action = schedule_.actions[at(rank)][index];
    SimulatedAction& times = result_.actions[at(rank)][index];
    double& now = now_[at(rank)];
    if (receives(action.kind)) {
      const bool backward = action.kind == ActionKind::recv_backward;
      const int sender = action.stage + (backward ? 1 : -1);
      messages_[slot(sender, action.microbatch, backward)].posted = now;
      times = {now, now};
      return;
    }
    if (computes(action.kind)) now = std::max(now, arrival(rank, action));
    times.begin = now;
    const double length = duration(action) + costs_.overhead;
    now += length;
    times.end = now;
    result_.busy[at(rank)] += length;
    if (sends(action.kind)) {
      const bool backward = action.kind == ActionKind::send_backward;
      const std::size_t message = slot(action.stage, action.microbatch, backward);
      messages_[message].sent = now;
      channel(rank, peer_of(schedule_, action).rank).order.push_back(message);
    } else if (computes(action.kind)) {
      if (action.kind != ActionKind::weight_backward)
        computed_[slot(action.stage, action.microbatch, action.kind != ActionKind::forward)] = now;
      count(rank, action);
    }
  }

  void count(int rank, const Action& action) {
    const StageCosts& stage = costs_.of(action.stage);
    double& activation = activation_[at(rank)];
    int& in_flight = in_flight_[at(rank)];
    if (action.kind == ActionKind::forward) {
      activation += stage.activation;
      ++in_flight;
      result_.peak_activation[at(rank)] = std::max(result_.peak_activation[at(rank)], activation);
      result_.peak_microbatches[at(rank)] =
          std::max(result_.peak_microbatches[at(rank)], in_flight);
      return;
    }
    if (action.kind == ActionKind::backward) activation -= stage.activation;
    if (action.kind == ActionKind::input_backward) {
      // If weight_activation is larger than activation, `activation` rises.
      activation -= stage.activation - stage.weight_activation;
      result_.peak_activation[at(rank)] = std::max(result_.peak_activation[at(rank)], activation);
    }
    if (action.kind == ActionKind::weight_backward) activation -= stage.weight_activation;
    if (action.kind != ActionKind::input_backward) --in_flight;
  }

  struct Channel {
    std::vector<std::size_t> order;  // slots
    std::size_t settled = 0;
    double free_at = 0;
  };
  const Schedule& schedule_;
  const PipelineCosts& costs_;
  ReadyActions ready_;
  Simulation result_;
  std::vector<double> now_, activation_;
  std::vector<int> in_flight_;
  std::vector<double> computed_, arrived_;  // by slot()
  std::vector<Message> messages_;           // by slot() of the sender's stage
  std::vector<Channel> channels_;           // by sender, then receiver
};

char symbol(const Action& action) {
  if (action.kind == ActionKind::forward) return static_cast<char>('0' + action.microbatch % 10);
  if (action.kind == ActionKind::weight_backward) return '=';
  return static_cast<char>('a' + action.microbatch % 26);
}

}  // namespace

double Simulation::bubble() const {
  const double most = busy.empty() ? 0 : *std::max_element(busy.begin(), busy.end());
  return most > 0 ? time / most - 1 : 0;
}

Simulation simulate(const Schedule& schedule, const PipelineCosts& costs) {
  return Clockwork(schedule, costs).run();
}

std::vector<int> microbatches_kept(const Schedule& schedule) {
  const auto stages = static_cast<std::size_t>(schedule.stages());
  std::vector<int> kept(stages, 1);
  for (const std::vector<Action>& actions : schedule.actions) {  // in the order of the rank's list
    std::vector<int> now(stages, 0);
    int all = 0, most = 0;
    for (const Action& action : actions) {
      if (action.kind == ActionKind::forward) {
        ++now[static_cast<std::size_t>(action.stage)];
        ++all;
      } else if (action.kind == ActionKind::backward ||
                 action.kind == ActionKind::weight_backward) {
        --now[static_cast<std::size_t>(action.stage)];
        --all;
      }
      if (all <= most) continue;
      most = all;
      for (std::size_t stage = 0; stage < stages; ++stage)
        if (now[stage] > 0) kept[stage] = now[stage];
    }
  }
  return kept;
}

std::string draw(const Schedule& schedule, const Simulation& simulation, int width) {
  const double scale = simulation.time > 0 ? width / simulation.time : 0;
  std::string text;
  for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
    std::string line(static_cast<std::size_t>(width), '.');
    for (std::size_t i = 0; i < schedule.actions[rank].size(); ++i) {
      if (!computes(schedule.actions[rank][i].kind)) continue;
      const SimulatedAction& times = simulation.actions[rank][i];
      const auto begin = static_cast<std::size_t>(std::lround(times.begin * scale));
      const auto end =
          std::min(static_cast<std::size_t>(std::lround(times.end * scale)), line.size());
      for (std::size_t at = begin; at < end; ++at) line[at] = symbol(schedule.actions[rank][i]);
    }
    text += fmt::format("rank {:>2}  {}\n", rank, line);
  }
  return text;
}

}  // namespace shoal::parallel
