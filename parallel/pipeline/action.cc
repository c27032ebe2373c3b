#include "shoal/parallel/pipeline/action.h"

#include <array>
#include <charconv>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

// In the order of ActionKind.
constexpr std::array<std::string_view, 11> kNames = {"F",       "B",       "I",          "W",
                                                     "SEND_F",  "RECV_F",  "SEND_B",     "RECV_B",
                                                     "UNSHARD", "RESHARD", "REDUCE_GRAD"};

// Removes the digits at the start of `text` and returns their value; -1 if there are none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

bool computes(ActionKind kind) { return kind <= ActionKind::weight_backward; }
bool sends(ActionKind kind) {
  return kind == ActionKind::send_forward || kind == ActionKind::send_backward;
}
bool receives(ActionKind kind) {
  return kind == ActionKind::recv_forward || kind == ActionKind::recv_backward;
}
bool concerns_stage(ActionKind kind) { return kind >= ActionKind::unshard; }

std::string_view name(ActionKind kind) { return kNames[static_cast<std::size_t>(kind)]; }

std::string to_string(const Action& action) {
  if (concerns_stage(action.kind)) return fmt::format("{}{}", action.stage, name(action.kind));
  return fmt::format("{}{}{}", action.stage, name(action.kind), action.microbatch);
}

Action parse_action(std::string_view text) {
  const auto refuse = [text](std::string_view why) -> Error {
    return {ErrorCode::invalid_argument, fmt::format("\"{}\" is no action: {}", text, why),
            "write stage, kind, microbatch, as in 2F0, 0SEND_F3 or 1UNSHARD; kinds are "
            "F B I W SEND_F RECV_F SEND_B RECV_B UNSHARD RESHARD REDUCE_GRAD"};
  };
  std::string_view rest = text;
  Action action;
  action.stage = take_number(rest);
  if (action.stage < 0) throw refuse("it does not begin with a stage");
  std::string_view kind = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(kind.size());
  std::size_t index = 0;
  while (index < kNames.size() && kNames[index] != kind) ++index;
  if (index == kNames.size()) throw refuse(fmt::format("there is no kind \"{}\"", kind));
  action.kind = static_cast<ActionKind>(index);
  if (concerns_stage(action.kind)) {
    if (!rest.empty()) throw refuse(fmt::format("{} has no microbatch", kind));
    return action;
  }
  action.microbatch = take_number(rest);
  if (action.microbatch < 0 || !rest.empty()) throw refuse("it does not end with a microbatch");
  return action;
}

}  // namespace shoal::parallel
