#include "shoal/collectives/diagnosis/diagnose.h"

#include <algorithm>
#include <map>
#include <tuple>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/transport/sequence.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"

namespace shoal::collectives {
namespace {

using transport::before;

std::string ranks_text(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

const FlightOperation* find(const FlightDump& dump, std::uint32_t sequence) {
  for (const FlightOperation& operation : dump.operations)
    if (operation.sequence == sequence) return &operation;
  return nullptr;
}

// The first operation that this rank did not finish or has not called yet; nullopt if it called
// none.
std::optional<std::uint32_t> first_unfinished(const FlightDump& dump) {
  if (dump.operations.empty()) return std::nullopt;
  for (const FlightOperation& operation : dump.operations)
    if (!operation.finished_s_ago) return operation.sequence;
  return dump.operations.back().sequence + 1;
}

int job_rank(const FlightDump& dump) { return dump.members[static_cast<std::size_t>(dump.rank)]; }

std::string last_call(const FlightDump& dump) {
  if (dump.operations.empty()) return "it has not called anything";
  const FlightOperation& last = dump.operations.back();
  std::string text = fmt::format("its last call was #{} {}, {:.1f} s before its dump",
                                 last.sequence, last.text, last.submitted_s_ago);
  if (last.finished_s_ago) text += fmt::format(", finished {:.1f} s before", *last.finished_s_ago);
  return text;
}

std::string named(const FlightMessage& message) {
  return fmt::format("{} (message {})", message.text, std::uint64_t{message.number} + 1);
}

// Whether the rank of `dump` called the counterpart of `message`, or a later one, with the group's
// rank `place`.
bool called_by(const FlightDump& dump, const FlightMessage& message, int place) {
  return std::any_of(dump.messages.begin(), dump.messages.end(), [&](const FlightMessage& other) {
    return other.sends != message.sends && other.peer == place &&
           !before(other.number, message.number);
  });
}

std::string open_messages(const FlightDump& dump) {
  constexpr int kMost = 4;
  std::string text;
  int count = 0;
  for (const FlightMessage& message : dump.messages)
    if (!message.finished_s_ago && ++count <= kMost)
      text += fmt::format("{} {}, {:.1f} s before its dump", count == 1 ? "; open:" : ";",
                          named(message), message.submitted_s_ago);
  return count > kMost ? text + fmt::format("; and {} more", count - kMost) : text;
}

class Examination {
 public:
  explicit Examination(std::vector<const FlightDump*> dumps) : dumps_(std::move(dumps)) {
    std::sort(dumps_.begin(), dumps_.end(),
              [](const auto* a, const auto* b) { return a->rank < b->rank; });
    result_.group = dumps_.front()->group;
    for (const FlightDump* dump : dumps_)
      if (!dump->blame.empty()) blames_[dump->blame][dump->blamed].push_back(job_rank(*dump));
  }

  GroupDiagnosis run() {
    find_missing();
    find_first_unfinished();
    if (const auto differing = find_differing()) result_.sequence = differing;
    if (result_.sequence)
      judge(*result_.sequence);
    else if (!judge_messages() && !judge_blame("nothing was open"))
      result_.summary = "nothing is open: every rank finished every call";
    for (const FlightDump* dump : dumps_)
      result_.details.push_back(fmt::format("rank {} on {}: {}{}", job_rank(*dump), dump->host,
                                            last_call(*dump), open_messages(*dump)));
    tell_failures();
    return std::move(result_);
  }

 private:
  void find_missing() {
    for (std::size_t rank = 0; rank < dumps_.front()->members.size(); ++rank)
      if (std::none_of(dumps_.begin(), dumps_.end(), [&](const FlightDump* dump) {
            return dump->rank == static_cast<int>(rank);
          }))
        result_.without_dump.push_back(dumps_.front()->members[rank]);
  }

  // Finds the earliest operation that some rank called and some rank with a dump did not finish.
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
    // A rank that never called anything misses the first operation that any dump remembers.
    if (nothing_called_)
      for (const FlightDump* dump : dumps_)
        if (!dump->operations.empty() && before(dump->operations.front().sequence, *earliest))
          earliest = dump->operations.front().sequence;
    if (earliest && !before(*newest, *earliest)) result_.sequence = earliest;
  }

  // The first call that ranks made differently, from the earliest unfinished one on. A mismatch
  // aborts everything in flight, so it also leaves correct earlier operations unfinished.
  std::optional<std::uint32_t> find_differing() const {
    std::optional<std::uint32_t> first;
    std::map<std::uint32_t, const std::string*> calls;
    for (const FlightDump* dump : dumps_)
      for (const FlightOperation& operation : dump->operations) {
        if (!result_.sequence || before(operation.sequence, *result_.sequence)) continue;
        const auto [known, added] = calls.emplace(operation.sequence, &operation.text);
        if (!added && *known->second != operation.text &&
            (!first || before(operation.sequence, *first)))
          first = operation.sequence;
      }
    return first;
  }

  void judge(std::uint32_t sequence) {
    std::vector<int> absent, open;
    std::map<std::string, std::vector<int>> calls;  // text -> ranks that called it
    for (const FlightDump* dump : dumps_) {
      const FlightOperation* operation = find(*dump, sequence);
      if (!operation) {
        absent.push_back(job_rank(*dump));
        continue;
      }
      calls[operation->text].push_back(job_rank(*dump));
      if (!operation->finished_s_ago) open.push_back(job_rank(*dump));
    }
    if (calls.size() > 1) return different(sequence, calls);
    const std::string text = calls.empty() ? "an operation" : calls.begin()->first;
    // A rank that lost a peer may never have reached the call in which the others wait.
    if (judge_blame(open.empty()
                        ? fmt::format("#{} {} was not called by every rank", sequence, text)
                        : fmt::format("#{} {} was open on {}", sequence, text, ranks_text(open))))
      return;
    if (calls.empty())
      result_.summary = fmt::format("no rank called #{}", sequence);
    else if (!absent.empty() && held_up_by_messages(absent))
      judge_messages();
    else if (!absent.empty())
      desynchronised(sequence, calls, absent);
    else
      stalled(sequence, calls.begin()->first, open);
  }

  const FlightDump* dump_of(int place) const {
    for (const FlightDump* dump : dumps_)
      if (dump->rank == place) return dump;
    return nullptr;
  }

  // Whether all `absent` ranks of a collective wait for a message whose peer never called the
  // counterpart. That message is then the first fault.
  bool held_up_by_messages(const std::vector<int>& absent) const {
    return std::ranges::all_of(absent, [this](int rank) {
      return std::ranges::any_of(dumps_, [&](const FlightDump* dump) {
        return job_rank(*dump) == rank && std::ranges::any_of(dump->messages, [&](const auto& m) {
                 const FlightDump* peer = dump_of(m.peer);
                 return !m.finished_s_ago && !(peer && called_by(*peer, m, dump->rank));
               });
      });
    });
  }

  // Used when no collective is to blame. Judges the send or recv that has waited longest for a call
  // that was never made, else for the data.
  bool judge_messages() {
    const FlightDump* waits = nullptr;
    const FlightMessage* longest = nullptr;
    bool longest_called = true;
    for (const FlightDump* dump : dumps_)
      for (const FlightMessage& message : dump->messages) {
        if (message.finished_s_ago) continue;
        const FlightDump* peer = dump_of(message.peer);
        const bool called = peer && called_by(*peer, message, dump->rank);
        if (longest &&
            (called > longest_called ||
             (called == longest_called && message.submitted_s_ago <= longest->submitted_s_ago)))
          continue;
        waits = dump;
        longest = &message;
        longest_called = called;
      }
    if (!longest) return false;
    const int culprit = waits->members[static_cast<std::size_t>(longest->peer)];
    const std::string open =
        fmt::format("{} was open on rank {}", named(*longest), job_rank(*waits));
    if (judge_blame(open)) return true;
    result_.culprits = {culprit};
    if (!dump_of(longest->peer)) {
      result_.verdict = Verdict::lost;
      result_.summary = fmt::format(
          "rank {} left no dump (killed, or stuck outside Shoal), while {}", culprit, open);
    } else if (!longest_called) {
      result_.verdict = Verdict::desync;
      result_.summary =
          fmt::format("rank {} never called the {} that {} of rank {} waits for", culprit,
                      longest->sends ? "recv" : "send", named(*longest), job_rank(*waits));
    } else {
      result_.verdict = Verdict::stalled;
      result_.summary = fmt::format("both sides called it, but {}", open);
    }
    return true;
  }

  // Judges by the ranks named in the failures, if any. `open`: the operation that was held up.
  bool judge_blame(const std::string& open) {
    for (const char* kind : {"died", "unreachable", "silent"}) {
      const auto found = blames_.find(kind);
      if (found == blames_.end()) continue;
      const auto& most = *std::max_element(
          found->second.begin(), found->second.end(),
          [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
      result_.culprits = most.first;
      if (found->first == "died")
        died(open);
      else if (found->first == "unreachable")
        unreachable(found->second, open);
      else
        silent(open);
      return true;
    }
    return false;
  }

  bool left_a_dump(int rank) const {
    return std::any_of(dumps_.begin(), dumps_.end(),
                       [&](const FlightDump* dump) { return job_rank(*dump) == rank; });
  }
  bool any_left_a_dump() const {
    return std::any_of(result_.culprits.begin(), result_.culprits.end(),
                       [this](int rank) { return left_a_dump(rank); });
  }

  void died(const std::string& open) {
    result_.verdict = Verdict::lost;
    result_.summary = fmt::format("{} died, while {}", ranks_text(result_.culprits), open);
  }

  // `losses`: lost ranks -> ranks that report them lost.
  void unreachable(const std::map<std::vector<int>, std::vector<int>>& losses,
                   const std::string& open) {
    if (!any_left_a_dump()) {
      result_.verdict = Verdict::lost;
      result_.summary = fmt::format(
          "{} could not be reached and left no dump (the host is down, or its link is cut), while "
          "{}",
          ranks_text(result_.culprits), open);
      return;
    }
    result_.verdict = Verdict::cut;
    std::vector<std::string> parts;
    for (const auto& [lost, by] : losses)
      parts.push_back(fmt::format("{} lost {}", ranks_text(by), ranks_text(lost)));
    result_.summary =
        fmt::format("the network was cut: {}, while {}", fmt::join(parts, "; "), open);
  }

  void silent(const std::string& open) {
    result_.verdict = any_left_a_dump() ? Verdict::stalled : Verdict::lost;
    result_.summary = fmt::format(
        "{} did nothing until the deadline, though the host answered (stopped, or starved), while "
        "{}",
        ranks_text(result_.culprits), open);
  }

  // The ranks outside the majority are to blame. Without a majority (two ranks differ before the
  // others made the call), all callers are named.
  void different(std::uint32_t sequence, const std::map<std::string, std::vector<int>>& calls) {
    result_.verdict = Verdict::mismatch;
    std::size_t most = 0,
                camps = 0;  // ranks that made the most common call; number of calls tied for it
    for (const auto& [text, ranks] : calls) {
      camps = ranks.size() > most ? 1 : camps + (ranks.size() == most);
      most = std::max(most, ranks.size());
    }
    std::vector<std::string> parts;
    for (const auto& [text, ranks] : calls) {
      parts.push_back(fmt::format("{} called {}", ranks_text(ranks), text));
      if (camps > 1 || ranks.size() < most)
        result_.culprits.insert(result_.culprits.end(), ranks.begin(), ranks.end());
    }
    std::ranges::sort(result_.culprits);
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
        if (job_rank(*dump) == absent.front()) result_.summary += "; " + last_call(*dump);
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
      if (operation && !operation->matched) unmatched.push_back(job_rank(*dump));
    }
    result_.culprits = open;
    result_.summary = fmt::format("every rank called #{} {}, but {} did not finish it", sequence,
                                  text, ranks_text(open));
    if (!unmatched.empty())
      result_.summary += fmt::format(
          " ({} did not get all of the others' data: look at the network)", ranks_text(unmatched));
  }

  void tell_failures() {
    std::vector<const FlightDump*> failed;
    for (const FlightDump* dump : dumps_)
      if (!dump->failure.empty()) failed.push_back(dump);
    std::sort(failed.begin(), failed.end(),
              [](const auto* a, const auto* b) { return a->written_at < b->written_at; });
    for (const FlightDump* dump : failed)
      result_.details.push_back(
          fmt::format("rank {} failed {:.2f} s after the first: {}", job_rank(*dump),
                      dump->written_at - failed.front()->written_at, dump->failure));
  }

  std::vector<const FlightDump*> dumps_;
  // Kind of blame -> blamed ranks -> ranks that blame them.
  std::map<std::string, std::map<std::vector<int>, std::vector<int>>> blames_;
  bool nothing_called_ = false;
  GroupDiagnosis result_;
};

std::optional<double> finished_in(const nlohmann::json& entry, const std::string& path) {
  if (find_field(entry, "finished_s_ago") == nullptr) return std::nullopt;
  return need_field<double>(entry, "finished_s_ago", path);
}

FlightOperation operation_of(const nlohmann::json& entry, const std::string& path) {
  return {.sequence = need_field<std::uint32_t>(entry, "sequence", path),
          .text = shortened(need_field<std::string>(entry, "text", path)),
          .submitted_s_ago = need_field<double>(entry, "submitted_s_ago", path),
          .matched = need_field<bool>(entry, "matched", path),
          .finished_s_ago = finished_in(entry, path)};
}

FlightMessage message_of(const nlohmann::json& entry, const std::string& path) {
  return {.number = need_field<std::uint32_t>(entry, "number", path),
          .sends = need_field<bool>(entry, "sends", path),
          .peer = need_field<int>(entry, "peer", path),
          .text = shortened(need_field<std::string>(entry, "text", path)),
          .submitted_s_ago = need_field<double>(entry, "submitted_s_ago", path),
          .finished_s_ago = finished_in(entry, path)};
}

}  // namespace

FlightDump parse_flight_dump(const nlohmann::json& json, const std::string& path) {
  // A dump is a file of a run, so every error in it is corrupt data.
  try {
    if (need_field<std::string>(json, "format", path) != "shoal-flight-1")
      throw_error(ErrorCode::corrupt_data, "{}: its format is {}, not shoal-flight-1", path,
                  shortened(json["format"].dump()));
    FlightDump dump;
    dump.group = need_field<std::string>(json, "group", path);
    dump.host = shortened(need_field<std::string>(json, "host", path));
    dump.rank = need_field<int>(json, "rank", path);
    dump.members = need_field<std::vector<int>>(json, "members", path);
    dump.written_at = need_field<double>(json, "written_at", path);
    dump.failure = shortened(field_or(json, "failure", std::string(), path), 4000);
    if (const auto* blame = find_field(json, "blame")) {
      dump.blame = need_field<std::string>(*blame, "kind", path);
      dump.blamed = need_field<std::vector<int>>(*blame, "ranks", path);
    }
    for (const auto& entry : need_field<nlohmann::json>(json, "operations", path))
      dump.operations.push_back(operation_of(entry, path));
    for (const auto& entry :
         field_or(json, "messages", nlohmann::json(nlohmann::json::array()), path)) {
      FlightMessage message = message_of(entry, path);
      if (message.peer < 0 || static_cast<std::size_t>(message.peer) >= dump.members.size())
        throw_error(ErrorCode::corrupt_data, "{}: {} in a group of {}", path,
                    shortened(message.text), dump.members.size());
      dump.messages.push_back(std::move(message));
    }
    if (dump.members.empty() || dump.rank < 0 ||
        static_cast<std::size_t>(dump.rank) >= dump.members.size())
      throw_error(ErrorCode::corrupt_data, "{}: rank {} in a group of {}", path, dump.rank,
                  dump.members.size());
    return dump;
  } catch (const Error& problem) {
    throw Error(ErrorCode::corrupt_data, problem.message());
  }
}

FlightDump read_flight_dump(const std::string& path) {
  return parse_flight_dump(read_json_file(path), path);
}

std::vector<GroupDiagnosis> diagnose(std::span<const FlightDump> dumps) {
  std::map<std::string, std::vector<const FlightDump*>> groups;
  for (const FlightDump& dump : dumps) groups[dump.group].push_back(&dump);
  const auto first_failure = [&](const std::string& group) {
    double first = 1e300;
    for (const FlightDump* dump : groups.at(group))
      if (!dump->failure.empty()) first = std::min(first, dump->written_at);
    return first;
  };
  // The outermost group that contains this one: "native/1" for "native/1/node/0".
  const auto outermost = [&](const std::string& group) {
    for (const auto& [other, members] : groups)  // shorter names first
      if (group.starts_with(other + "/")) return other;
    return group;
  };
  std::vector<std::tuple<double, std::string, std::string>> order;
  for (const auto& [group, members] : groups) {
    const std::string outer = outermost(group);
    order.emplace_back(first_failure(outer), outer, group);
  }
  std::sort(order.begin(), order.end());
  std::vector<GroupDiagnosis> result;
  for (const auto& [time, outer, group] : order)
    result.push_back(Examination(groups.at(group)).run());
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
    case Verdict::cut:
      return "cut";
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
