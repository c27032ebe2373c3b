#include "parallel/pipeline/schedule_csv.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "shoal/runtime/base/error.h"

namespace shoal::parallel {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

// Removes the digits at the start of `text` and returns their value; -1 if there are none.
int take_number(std::string_view& text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || text.front() == '-') return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

int number(std::string_view text, std::size_t line) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  SHOAL_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0,
              "line {}: \"{}\" is no number", line, text);
  return value;
}

// Reads the comment "# key: value".
void read_comment(std::string_view text, std::size_t line, Schedule& schedule,
                  std::optional<int>& microbatches) {
  const auto colon = text.find(':');
  if (colon == std::string_view::npos) return;
  const std::string_view key = trimmed(text.substr(0, colon));
  std::string_view value = trimmed(text.substr(colon + 1));
  if (key == "name") schedule.name = value;
  if (key == "microbatches") microbatches = number(value, line);
  if (key != "stages") return;
  while (!value.empty()) {
    const auto end = std::min(value.find(' '), value.size());
    schedule.rank_of_stage.push_back(number(value.substr(0, end), line));
    value = trimmed(value.substr(end));
  }
}

std::vector<Action> read_rank(std::string_view text, std::size_t line) {
  std::vector<Action> actions;
  for (std::size_t cell = 1;; ++cell) {
    const auto comma = text.find(',');
    const std::string_view written = trimmed(text.substr(0, comma));
    if (!written.empty()) try {
        actions.push_back(parse_action(written));
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("line {}, cell {}: {}", line, cell, error.message()),
                    error.remedy());
      }
    if (comma == std::string_view::npos) return actions;
    text.remove_prefix(comma + 1);
  }
}

// A stage is on the rank whose line contains it.
void place_stages(Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks(); ++rank)
    for (const Action& action : schedule.actions[static_cast<std::size_t>(rank)]) {
      const auto stage = static_cast<std::size_t>(action.stage);
      if (stage >= schedule.rank_of_stage.size()) schedule.rank_of_stage.resize(stage + 1, -1);
      int& at = schedule.rank_of_stage[stage];
      SHOAL_CHECK(at == -1 || at == rank,
                  "stage {} stands in the lines of rank {} and of rank {} ({})", action.stage, at,
                  rank, to_string(action));
      at = rank;
    }
  for (std::size_t stage = 0; stage < schedule.rank_of_stage.size(); ++stage)
    SHOAL_CHECK(schedule.rank_of_stage[stage] >= 0, "no rank runs stage {} of {}", stage,
                schedule.rank_of_stage.size());
}

// Each stage and each microbatch has at least one action, so larger numbers are invalid.
void check_numbers(const Schedule& schedule, const std::optional<int>& microbatches) {
  std::size_t all = 0;
  for (const auto& actions : schedule.actions) all += actions.size();
  const auto check = [all](std::string_view what, int number) {
    SHOAL_CHECK(number < 0 || static_cast<std::size_t>(number) <= all,
                "{} {} in a schedule of {} actions", what, number, all);
  };
  if (microbatches) check("microbatches:", *microbatches);
  for (const auto& actions : schedule.actions)
    for (const Action& action : actions) {
      check("stage", action.stage);
      check("microbatch", action.microbatch);
    }
}

}  // namespace

Action parse_action(std::string_view text) {
  const auto refuse = [text](std::string_view why) -> Error {
    return {ErrorCode::invalid_argument, fmt::format("\"{}\" is no action: {}", text, why),
            "write stage, kind, microbatch, as in 2F0 or 0SEND_F3; kinds are "
            "F B I W SEND_F RECV_F SEND_B RECV_B"};
  };
  std::string_view rest = text;
  Action action;
  action.stage = take_number(rest);
  if (action.stage < 0) throw refuse("it does not begin with a stage");
  std::string_view kind = rest.substr(0, rest.find_first_of("0123456789"));
  rest.remove_prefix(kind.size());
  std::size_t index = 0;
  while (index < kActionKinds && name(static_cast<ActionKind>(index)) != kind) ++index;
  if (index == kActionKinds) throw refuse(fmt::format("there is no kind \"{}\"", kind));
  action.kind = static_cast<ActionKind>(index);
  action.microbatch = take_number(rest);
  if (action.microbatch < 0 || !rest.empty()) throw refuse("it does not end with a microbatch");
  return action;
}

std::string to_csv(const Schedule& schedule) {
  std::string text = fmt::format("# name: {}\n# stages: {}\n# microbatches: {}\n", schedule.name,
                                 fmt::join(schedule.rank_of_stage, " "), schedule.microbatches);
  for (const auto& actions : schedule.actions) {
    for (std::size_t i = 0; i < actions.size(); ++i) {
      if (i > 0) text += ',';
      text += to_string(actions[i]);
    }
    text += '\n';
  }
  return text;
}

Schedule parse_csv(std::string_view text) {
  Schedule schedule;
  std::optional<int> microbatches;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view row = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.starts_with('#'))
      read_comment(row.substr(1), line, schedule, microbatches);
    else if (!row.empty() || !text.empty())
      schedule.actions.push_back(read_rank(row, line));
  }
  SHOAL_CHECK(!schedule.actions.empty(), "a schedule has a line for each rank; there is none");
  check_numbers(schedule, microbatches);
  if (schedule.rank_of_stage.empty()) place_stages(schedule);
  int most = 0;
  for (const auto& actions : schedule.actions)
    for (const Action& action : actions) most = std::max(most, action.microbatch + 1);
  schedule.microbatches = microbatches.value_or(most);
  return schedule;
}

}  // namespace shoal::parallel
