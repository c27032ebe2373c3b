#include "shoal/train/run/failures.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error_code.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/report_error.h"
#include "shoal/runtime/rendezvous/cards.h"
#include "shoal/train/run/json_card.h"

namespace shoal {
namespace {

struct Failure {
  int status = 0;        // 0: none
  bool noticed = false;  // failed only because other ranks failed, which know the reason
  std::string text;      // the message, without the rank's number
  std::string kind;      // failures with equal kinds are reported once
  bool gone = false;     // the rank ended, or is stopped, without a report
};

Failure failure_of(const Error& error, bool training_began) {
  const ErrorCode code = error.code();
  const int status = exit_status(code);
  const std::string text =
      Error(code, error.message(), error.remedy()).in_operation(error.operation()).what();
  return {
      training_began && status == kWrongOptions ? kFailed : status,
      code == ErrorCode::aborted || code == ErrorCode::peer_lost, text,
      error.remedy().empty() ? text : fmt::format("{} {}", static_cast<int>(code), error.remedy())};
}

std::string packed(const Failure& failure) {
  return nlohmann::json{failure.status, failure.noticed, failure.text, failure.kind}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure unpacked(std::string_view card) {
  const nlohmann::json json = json_list(card, 4);
  return {json_integer<int>(json, 0, 0, kPeersFailed), json.at(1).get<bool>(), json_text(json, 2),
          json_text(json, 3)};
}

bool speaks(const std::vector<Failure>& all, std::size_t rank) {
  const Failure& own = all[rank];
  if (own.status == 0) return false;
  for (std::size_t other = 0; other < all.size(); ++other) {
    if (all[other].status == 0 || other == rank) continue;
    if (own.noticed && (!all[other].noticed || other < rank)) return false;
    if (!own.noticed && !all[other].noticed && other < rank && all[other].kind == own.kind)
      return false;
  }
  return true;
}

// The line that the reporting rank prints for all ranks with the same failure.
std::string said_by(const std::vector<Failure>& all, const Failure& mine, const Error& own,
                    int rank) {
  if (std::ranges::count(all, mine.text, &Failure::text) == std::ssize(all)) return mine.text;
  std::string text = Error(own).at_rank(rank).what();
  const auto others = std::ranges::count(all, mine.kind, &Failure::kind) - 1;
  if (others > 0 && !mine.noticed)
    text += fmt::format(" (and so {} other rank{})", others, others == 1 ? "" : "s");
  return text;
}

// Failures by rank. Does not wait for ranks that are gone, but reads reports that they left. Once a
// rank is gone, waits at most kTellOfDeath for the others, because the launcher ends them soon.
std::vector<Failure> words_of_all(const World& world, Store& store, const std::string& label,
                                  const Failure& mine, Deadline deadline,
                                  const std::function<bool(int rank)>& is_gone) {
  if (!is_gone) {
    auto all = exchange_cards(store, label, world.rank, world.size, packed(mine), deadline,
                              "failures", unpacked);
    all[static_cast<std::size_t>(world.rank)] = mine;
    return all;
  }
  std::vector<Failure> all(static_cast<std::size_t>(world.size));
  // If rank 0 is gone, the store may be gone with it, because rank 0 may serve the store.
  if (world.rank != 0 && is_gone(0))
    throw Error(ErrorCode::peer_lost, "rank 0 has ended, or is stopped");
  store.set(fmt::format("{}/{}", label, world.rank), packed(mine));
  all[static_cast<std::size_t>(world.rank)] = mine;
  bool hurry = false;
  for (int rank = 0; rank < world.size; ++rank) {
    if (rank == world.rank) continue;
    const std::string key = fmt::format("{}/{}", label, rank);
    for (;;) {
      const bool gone = is_gone(rank);
      if (gone && !std::exchange(hurry, true))
        deadline = Deadline::in_seconds(std::min(deadline.seconds_left(), deadlines::kTellOfDeath));
      if (const auto text = store.try_get(key)) {
        all[static_cast<std::size_t>(rank)] = read_card(rank, "failures", *text, unpacked);
        break;
      }
      if (gone || deadline.passed()) {
        all[static_cast<std::size_t>(rank)].gone = true;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  return all;
}

}  // namespace

namespace {
constexpr char kFailure = '!';
}

std::string as_text(const Error& error) {
  return kFailure +
         nlohmann::json{static_cast<int>(error.code()), error.message(), error.remedy()}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string as_text(const HostAnswer& answer) {
  return fmt::format("{}\n{}\n{}", answer.node, answer.first, answer.second);
}

std::vector<HostAnswer> exchange_answers(const World& world, Store& store, const std::string& label,
                                         const std::string& own, Deadline deadline) {
  using Said = std::pair<HostAnswer, std::optional<Error>>;
  const auto read = [&](std::string_view card) -> Said {
    if (card.empty()) return {};
    if (card.front() == kFailure) {
      const nlohmann::json json = json_list(card.substr(1), 3);
      const auto code = error_code_of(json_integer<int>(json, 0, 0));
      if (!code) throw_error(ErrorCode::corrupt_data, "it fails with code {}", json.at(0).dump());
      return {{}, Error(*code, json_text(json, 1), json_text(json, 2))};
    }
    CardFields fields(card, '\n');
    HostAnswer answer;
    answer.node = fields.number<int>("host's number", 0, world.size - 1);
    answer.first = fields.next("first text");
    answer.second = fields.rest("second text");
    return {answer, std::nullopt};
  };
  std::vector<HostAnswer> answers;
  for (const auto& [answer, failure] :
       exchange_cards(store, label, world.rank, world.size, own, deadline, label, read)) {
    if (failure) throw Error(*failure);
    answers.push_back(answer);
  }
  return answers;
}

int tell_failures(const World& world, Store& store, const std::string& label,
                  const std::optional<Error>& own, Deadline deadline,
                  const std::function<bool(int rank)>& is_gone, bool training_began,
                  const std::function<void(const std::string& line)>& report) {
  const auto tell = [&](const std::string& line) {
    if (report) return report(line);
    report_error("shoal train", line);
  };
  const Failure mine = own ? failure_of(*own, training_began) : Failure{};
  std::vector<Failure> all;
  bool all_heard = true;
  try {
    all = words_of_all(world, store, label, mine, deadline, is_gone);
    all_heard = std::ranges::none_of(all, &Failure::gone);
  } catch (const Error& gone) {
    // The ranks cannot agree on one reporter, so each rank reports. This rank does so even if it
    // only noticed another's abort, because the reason may be in the log of another host.
    tell(own ? own->what() : gone.what());
    return own ? mine.status : kPeersFailed;
  }
  int status = 0;
  for (const Failure& failure : all)
    if (failure.status != 0 && (status == 0 || !failure.noticed)) status = failure.status;
  if (status == 0) return 0;
  if (own && speaks(all, static_cast<std::size_t>(world.rank)))
    tell(said_by(all, mine, *own, world.rank));
  if (world.size > 1 && all_heard) try {
      // All ranks should read the report before one of them exits, because the launcher then ends
      // the others. If rank 0 serves the store and is gone already, this fails, which is harmless.
      barrier(store, label + "-told", world.size, deadline);
    } catch (const Error& gone) {
      log::debug("not every rank waited to be told: {}", gone.what());
    }
  return status;
}

}  // namespace shoal
