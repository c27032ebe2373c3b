#include "shoal/collectives/diagnosis/diagnose.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/json.h"

namespace shoal::collectives {
namespace {

// Sequences wrap: b is later than a when the signed difference says so.
bool before(std::uint32_t a, std::uint32_t b) { return static_cast<std::int32_t>(b - a) > 0; }

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

const FlightOperation* find(const FlightDump& dump, std::uint32_t sequence) {
  for (const FlightOperation& operation : dump.operations)
    if (operation.sequence == sequence) return &operation;
  return nullptr;
}

// The operation after the newest one that this rank finished with all before it; nothing when it
// never called any.
std::optional<std::uint32_t> first_unfinished(const FlightDump& dump) {
  if (dump.operations.empty()) return std::nullopt;
  for (const FlightOperation& operation : dump.operations)
    if (!operation.finished_s_ago) return operation.sequence;
  return dump.operations.back().sequence + 1;
}

std::string last_call(const FlightDump& dump) {
  if (dump.operations.empty()) return "it has not called anything";
  const FlightOperation& last = dump.operations.back();
  std::string text = fmt::format("its last call was #{} {}, {:.1f} s before its dump",
                                 last.sequence, last.text, last.submitted_s_ago);
  if (last.finished_s_ago) text += fmt::format(", finished {:.1f} s before", *last.finished_s_ago);
  return text;
}

class Examination {
 public:
  explicit Examination(std::vector<const FlightDump*> dumps) : dumps_(std::move(dumps)) {
    std::sort(dumps_.begin(), dumps_.end(),
              [](const auto* a, const auto* b) { return a->rank < b->rank; });
    result_.group = dumps_.front()->group;
  }

  GroupDiagnosis run() {
    find_missing();
    find_first_unfinished();
    if (result_.sequence)
      judge(*result_.sequence);
    else
      result_.summary = "nothing is open: every call was finished by everybody";
    for (const FlightDump* dump : dumps_)
      result_.details.push_back(
          fmt::format("rank {} on {}: {}", dump->rank, dump->host, last_call(*dump)));
    tell_failures();
    return std::move(result_);
  }

 private:
  void find_missing() {
    for (std::size_t rank = 0; rank < dumps_.front()->members.size(); ++rank)
      if (std::none_of(dumps_.begin(), dumps_.end(), [&](const FlightDump* dump) {
            return dump->rank == static_cast<int>(rank);
          }))
        result_.without_dump.push_back(static_cast<int>(rank));
  }

  // The earliest operation that somebody called and not everybody (who wrote a dump) finished.
  void find_first_unfinished() {
    std::optional<std::uint32_t> earliest, newest;
    for (const FlightDump* dump : dumps_) {
      if (!dump->operations.empty() &&
          (!newest || before(*newest, dump->operations.back().sequence)))
        newest = dump->operations.back().sequence;
      const auto open = first_unfinished(*dump);
      if (open && (!earliest || before(*open, *earliest))) earliest = open;
      if (!open) nothing_called_ = true;
    }
    if (!newest) return;
    // A rank that never called anything misses the first operation that anybody remembers.
    if (nothing_called_)
      for (const FlightDump* dump : dumps_)
        if (!dump->operations.empty() && before(dump->operations.front().sequence, *earliest))
          earliest = dump->operations.front().sequence;
    if (earliest && !before(*newest, *earliest)) result_.sequence = earliest;
  }

  void judge(std::uint32_t sequence) {
    std::vector<int> absent, open;
    std::map<std::string, std::vector<int>> calls;  // text -> who called it
    for (const FlightDump* dump : dumps_) {
      const FlightOperation* operation = find(*dump, sequence);
      if (!operation) {
        absent.push_back(dump->rank);
        continue;
      }
      calls[operation->text].push_back(dump->rank);
      if (!operation->finished_s_ago) open.push_back(dump->rank);
    }
    if (calls.size() > 1)
      different(sequence, calls);
    else if (!absent.empty())
      desynchronised(sequence, calls, absent);
    else
      stalled(sequence, calls.begin()->first, open);
  }

  void different(std::uint32_t sequence, const std::map<std::string, std::vector<int>>& calls) {
    result_.verdict = Verdict::mismatch;
    std::vector<std::string> parts;
    const std::vector<int>* few = nullptr;
    for (const auto& [text, ranks] : calls) {
      parts.push_back(fmt::format("{} called {}", ranks_text(ranks), text));
      if (!few || ranks.size() < few->size()) few = &ranks;
    }
    result_.culprits = *few;
    result_.summary = fmt::format("as operation #{}, {}", sequence, fmt::join(parts, "; "));
  }

  void desynchronised(std::uint32_t sequence, const std::map<std::string, std::vector<int>>& calls,
                      const std::vector<int>& absent) {
    result_.verdict = Verdict::desync;
    result_.culprits = absent;
    const auto& [text, callers] = *calls.begin();
    result_.summary =
        fmt::format("{} never called #{} {}, which {} {} for", ranks_text(absent), sequence, text,
                    ranks_text(callers), callers.size() == 1 ? "waits" : "wait");
    if (absent.size() == 1)
      for (const FlightDump* dump : dumps_)
        if (dump->rank == absent.front()) result_.summary += "; " + last_call(*dump);
  }

  void stalled(std::uint32_t sequence, const std::string& text, const std::vector<int>& open) {
    if (!result_.without_dump.empty()) {
      result_.verdict = Verdict::lost;
      result_.culprits = result_.without_dump;
      result_.summary = fmt::format(
          "{} left no dump (killed, or stuck outside Shoal), while #{} {} was open on {}",
          ranks_text(result_.without_dump), sequence, text, ranks_text(open));
      return;
    }
    result_.verdict = Verdict::stalled;
    std::vector<int> unmatched;
    for (const FlightDump* dump : dumps_) {
      const FlightOperation* operation = find(*dump, sequence);
      if (operation && !operation->matched) unmatched.push_back(dump->rank);
    }
    result_.culprits = open;
    result_.summary = fmt::format("everybody called #{} {}, but {} did not finish it", sequence,
                                  text, ranks_text(open));
    if (!unmatched.empty())
      result_.summary += fmt::format(" ({} never heard from all others: look at the network)",
                                     ranks_text(unmatched));
  }

  void tell_failures() {
    std::vector<const FlightDump*> failed;
    for (const FlightDump* dump : dumps_)
      if (!dump->failure.empty()) failed.push_back(dump);
    std::sort(failed.begin(), failed.end(),
              [](const auto* a, const auto* b) { return a->written_at < b->written_at; });
    for (const FlightDump* dump : failed)
      result_.details.push_back(
          fmt::format("rank {} failed {:.2f} s after the first: {}", dump->rank,
                      dump->written_at - failed.front()->written_at, dump->failure));
  }

  std::vector<const FlightDump*> dumps_;
  bool nothing_called_ = false;
  GroupDiagnosis result_;
};

}  // namespace

FlightDump parse_flight_dump(const nlohmann::json& json, const std::string& path) {
  try {
    if (json.at("format") != "shoal-flight-1")
      throw_error(ErrorCode::corrupt_data, "{}: its format is {}, not shoal-flight-1", path,
                  json.at("format").dump());
    FlightDump dump;
    dump.group = json.at("group");
    dump.host = json.at("host");
    dump.rank = json.at("rank");
    dump.members = json.at("members").get<std::vector<int>>();
    dump.written_at = json.at("written_at");
    if (!json.at("failure").is_null()) dump.failure = json.at("failure");
    for (const auto& entry : json.at("operations")) {
      FlightOperation operation;
      operation.sequence = entry.at("sequence");
      operation.text = entry.at("text");
      operation.submitted_s_ago = entry.at("submitted_s_ago");
      operation.matched = entry.at("matched");
      if (!entry.at("finished_s_ago").is_null())
        operation.finished_s_ago = entry.at("finished_s_ago").get<double>();
      dump.operations.push_back(std::move(operation));
    }
    if (dump.members.empty() || dump.rank < 0 ||
        static_cast<std::size_t>(dump.rank) >= dump.members.size())
      throw_error(ErrorCode::corrupt_data, "{}: rank {} in a group of {}", path, dump.rank,
                  dump.members.size());
    return dump;
  } catch (const nlohmann::json::exception& problem) {
    throw_error(ErrorCode::corrupt_data, "{} is no flight recorder's dump: {}", path,
                problem.what());
  }
}

FlightDump read_flight_dump(const std::string& path) {
  return parse_flight_dump(read_json_file(path), path);
}

std::vector<GroupDiagnosis> diagnose(std::span<const FlightDump> dumps) {
  std::map<std::string, std::vector<const FlightDump*>> groups;
  for (const FlightDump& dump : dumps) groups[dump.group].push_back(&dump);
  std::vector<std::pair<double, GroupDiagnosis>> found;
  for (auto& [group, members] : groups) {
    double first = 1e300;
    for (const FlightDump* dump : members)
      if (!dump->failure.empty()) first = std::min(first, dump->written_at);
    found.emplace_back(first, Examination(members).run());
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<GroupDiagnosis> result;
  for (auto& [time, diagnosis] : found) result.push_back(std::move(diagnosis));
  return result;
}

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::fine:
      return "fine";
    case Verdict::desync:
      return "desync";
    case Verdict::mismatch:
      return "mismatch";
    case Verdict::stalled:
      return "stalled";
    case Verdict::lost:
      return "lost";
  }
  return "?";
}

nlohmann::ordered_json to_json(const GroupDiagnosis& d) {
  nlohmann::ordered_json json{{"group", d.group}, {"verdict", to_string(d.verdict)}};
  if (d.sequence) json["sequence"] = *d.sequence;
  json["culprits"] = d.culprits;
  json["without_dump"] = d.without_dump;
  json["summary"] = d.summary;
  json["details"] = d.details;
  return json;
}

}  // namespace shoal::collectives
