#include "failures.h"

#include <algorithm>
#include <new>
#include <vector>

#include "commands.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/json.h"

namespace shoal::app {
namespace {

struct Failure {
  int status = 0;        // 0: none
  bool noticed = false;  // others fail; why, they know
  std::string text;      // without the rank
  std::string kind;      // what needs saying once
};

Failure failure_of(const Error& error) {
  const ErrorCode code = error.code();
  const bool option = code == ErrorCode::invalid_argument || code == ErrorCode::not_found ||
                      code == ErrorCode::unavailable;
  const std::string text =
      Error(code, error.message(), error.remedy()).in_operation(error.operation()).what();
  return {
      option ? kWrongOptions : kFailed, code == ErrorCode::aborted || code == ErrorCode::peer_lost,
      text,
      error.remedy().empty() ? text : fmt::format("{} {}", static_cast<int>(code), error.remedy())};
}

std::string packed(const Failure& failure) {
  return nlohmann::json{failure.status, failure.noticed, failure.text, failure.kind}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Failure unpacked(const std::string& text) {
  const nlohmann::json json = parse_json(text, "what a rank says of its end");
  return {json.at(0).get<int>(), json.at(1).get<bool>(), json.at(2).get<std::string>(),
          json.at(3).get<std::string>()};
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

// What `own`, which speaks, says: for everybody who found it.
std::string said_by(const std::vector<Failure>& all, const Failure& mine, const Error& own,
                    int rank) {
  if (std::ranges::count(all, mine.text, &Failure::text) == std::ssize(all)) return mine.text;
  std::string text = Error(own).at_rank(rank).what();
  const auto others = std::ranges::count(all, mine.kind, &Failure::kind) - 1;
  if (others > 0 && !mine.noticed)
    text += fmt::format(" (and so {} other rank{})", others, others == 1 ? "" : "s");
  return text;
}

}  // namespace

Error error_of(const std::exception& caught) {
  if (const auto* const error = dynamic_cast<const Error*>(&caught)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&caught) != nullptr)
    return {ErrorCode::out_of_memory, "out of memory"};
  return {ErrorCode::internal, std::string("unexpected: ") + caught.what()};
}

namespace {
constexpr char kFailure = '!';
}

std::string as_text(const Error& error) {
  return kFailure +
         nlohmann::json{static_cast<int>(error.code()), error.message(), error.remedy()}.dump(
             -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Error> failure_in(const std::string& text) {
  if (text.empty() || text.front() != kFailure) return std::nullopt;
  const nlohmann::json json =
      parse_json(std::string_view(text).substr(1), "what a rank says of its failure");
  return Error(static_cast<ErrorCode>(json.at(0).get<int>()), json.at(1).get<std::string>(),
               json.at(2).get<std::string>());
}

int tell_failures(const World& world, Store& store, const std::string& label,
                  const std::optional<Error>& own, Deadline deadline) {
  const Failure mine = own ? failure_of(*own) : Failure{};
  std::vector<Failure> all;
  try {
    for (const std::string& text :
         exchange(store, label, world.rank, world.size, packed(mine), deadline))
      all.push_back(unpacked(text));
  } catch (const Error& gone) {
    if (!own) report_error("shoal train", gone.what());
    // An abort is somebody else's, who says what it was.
    if (own && own->code() != ErrorCode::aborted) report_error("shoal train", own->what());
    return own ? mine.status : kFailed;
  }
  int status = 0;
  for (const Failure& failure : all)
    if (failure.status != 0 && (status == 0 || !failure.noticed)) status = failure.status;
  if (status == 0) return 0;
  if (world.size > 1) try {
      // Everybody should have read it before anybody's exit makes the launcher end the others. That
      // is a courtesy: rank 0, which may serve the store, can be gone already.
      barrier(store, label + "-told", world.size, deadline);
    } catch (const Error& gone) {
      log::debug("not every rank waited to be told: {}", gone.what());
    }
  if (own && speaks(all, static_cast<std::size_t>(world.rank)))
    report_error("shoal train", said_by(all, mine, *own, world.rank));
  return status;
}

}  // namespace shoal::app
