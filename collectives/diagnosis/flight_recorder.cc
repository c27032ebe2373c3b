#include "shoal/collectives/diagnosis/flight_recorder.h"

#include <chrono>
#include <ctime>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/host_name.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/io/file_system.h"

namespace shoal::collectives {
namespace {

nlohmann::ordered_json ago(std::int64_t then, std::int64_t now) {  // then == 0: never
  if (then == 0) return nullptr;
  return static_cast<double>(now - then) * 1e-9;
}

std::string file_name(std::string group, int rank) {
  for (char& c : group)
    if (c == '/' || c == ' ') c = '-';
  return fmt::format("flight-{}-rank{}.json", group, rank);
}

}  // namespace

std::string_view to_string(Blame::Kind kind) {
  switch (kind) {
    case Blame::Kind::none:
      return "none";
    case Blame::Kind::died:
      return "died";
    case Blame::Kind::unreachable:
      return "unreachable";
    case Blame::Kind::silent:
      return "silent";
  }
  return "?";
}

FlightRecorder::FlightRecorder(std::string group, int rank, std::vector<int> members,
                               std::string directory)
    : group_(group.starts_with("shoal/") ? group.substr(6) : std::move(group)),
      directory_(std::move(directory)),
      rank_(rank),
      members_(std::move(members)),
      entries_(kCapacity),
      messages_(kCapacity) {}

std::int64_t FlightRecorder::now() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::int64_t FlightRecorder::submitted(std::uint32_t sequence, const Signature& signature) {
  const std::int64_t when = now();
  at(sequence) = {sequence, true, false, when, 0, signature};
  newest_ = sequence;
  return when;
}

void FlightRecorder::matched(std::uint32_t sequence) {
  Entry& entry = at(sequence);
  if (entry.used && entry.sequence == sequence) entry.matched = true;
}

void FlightRecorder::finished(std::uint32_t sequence, std::int64_t when) {
  Entry& entry = at(sequence);
  if (!entry.used || entry.sequence != sequence) return;
  entry.matched = true;
  entry.finished_ns = when;
}

std::uint64_t FlightRecorder::message(std::uint32_t number, const Signature& signature) {
  const std::uint64_t ticket = ++newest_message_;
  messages_[ticket % kCapacity] = {ticket, number, now(), 0, signature};
  return ticket;
}

void FlightRecorder::message_finished(std::uint64_t ticket) {
  MessageEntry& entry = messages_[ticket % kCapacity];
  if (entry.ticket == ticket) entry.finished_ns = now();
}

void FlightRecorder::failed(std::string_view what, const Blame& blame) noexcept {
  if (!failure_.empty()) return;
  try {
    failure_ = what;
    blame_ = blame;
    if (directory_.empty()) return;
    const std::string path = dump(directory_);
    if (path.empty())
      log::warn("the last collectives could not be written down in {}", directory_);
    else
      log::info("the last collectives are in {}; `shoal diagnose {}` says what happened", path,
                directory_);
  } catch (const std::exception&) {  // a full disk or lack of memory must not hide the failure
    return;
  }
}

nlohmann::ordered_json FlightRecorder::to_json() const {
  const std::int64_t now = FlightRecorder::now();
  nlohmann::ordered_json operations = nlohmann::ordered_json::array();
  for (std::size_t back = kCapacity; back-- > 0;) {
    const auto sequence = newest_ - static_cast<std::uint32_t>(back);
    const Entry& entry = entries_[sequence % kCapacity];
    if (!entry.used || entry.sequence != sequence) continue;
    operations.push_back({{"sequence", entry.sequence},
                          {"operation", to_string(entry.signature.operation)},
                          {"text", describe(entry.signature)},
                          {"submitted_s_ago", ago(entry.submitted_ns, now)},
                          {"matched", entry.matched},
                          {"finished_s_ago", ago(entry.finished_ns, now)}});
  }
  nlohmann::ordered_json notices = nlohmann::ordered_json::array();
  for (const log::Notice& notice : log::notices()) notices.push_back(notice.text);
  const auto unix_time =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch());
  return {{"format", "shoal-flight-1"},
          {"group", group_},
          {"rank", rank_},
          {"members", members_},
          {"host", host_name()},
          {"process", static_cast<std::int64_t>(getpid())},
          {"written_at", unix_time.count()},
          {"failure",
           failure_.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(failure_)},
          {"blame", blame_.kind == Blame::Kind::none
                        ? nlohmann::ordered_json(nullptr)
                        : nlohmann::ordered_json{{"kind", collectives::to_string(blame_.kind)},
                                                 {"ranks", blame_.ranks}}},
          {"notices", std::move(notices)},
          {"operations", std::move(operations)},
          {"messages", messages_json(now)}};
}

nlohmann::ordered_json FlightRecorder::messages_json(std::int64_t now) const {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  for (std::uint64_t i = 1; i <= kCapacity; ++i) {
    const MessageEntry& entry = messages_[(newest_message_ + i) % kCapacity];
    if (entry.ticket == 0) continue;
    Signature shown = entry.signature;  // with the peer's rank in the job
    shown.root = members_[static_cast<std::size_t>(shown.root)];
    messages.push_back({{"number", entry.number},
                        {"sends", entry.signature.operation == Operation::send},
                        {"peer", entry.signature.root},
                        {"text", describe(shown)},
                        {"submitted_s_ago", ago(entry.submitted_ns, now)},
                        {"finished_s_ago", ago(entry.finished_ns, now)}});
  }
  return messages;
}

std::string FlightRecorder::dump(const std::string& directory) const noexcept {
  std::string written;
  best_effort("write down what this rank did last", [&] {
    make_directories(directory);
    const std::string path = directory + "/" + file_name(group_, rank_);
    // A failure may quote bytes that are not text, or be cut inside a UTF-8 sequence.
    write_file(path + ".part",
               to_json().dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
    rename_path(path + ".part", path);
    written = path;
  });
  return written;
}

}  // namespace shoal::collectives
