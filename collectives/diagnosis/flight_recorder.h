// The last operations of one group as one rank saw them (the idea of PyTorch's flight recorder):
// written down when a collective fails, read by `shoal diagnose`.
//
// Recording costs a few nanoseconds and never allocates. Not thread-safe: whoever owns it holds a
// lock around all calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives {

// Whom a failure names, as the job numbers ranks.
struct Blame {
  enum class Kind : std::uint8_t {
    nobody,
    died,         // their processes ended
    unreachable,  // nothing came from their host
    silent        // their hosts answered, their processes did nothing: stopped or starved
  };
  Kind kind = Kind::nobody;
  std::vector<int> ranks;
};
std::string_view to_string(Blame::Kind kind);

class FlightRecorder {
 public:
  // Operations remembered, and messages; a power of two.
  static constexpr std::size_t kCapacity = 512;

  // `members`: the group's ranks as the job numbers them; `rank`: this one's place among them.
  // `directory`: where failed() writes; empty: nowhere.
  FlightRecorder(std::string group, int rank, std::vector<int> members, std::string directory = {});

  // Nanoseconds of a clock of milliseconds, enough to see who waited for whom: reading it costs
  // less than the exact one, but not nothing.
  static std::int64_t now();
  // Sequences grow by one from call to call and may wrap. Returns now().
  std::int64_t submitted(std::uint32_t sequence, const Signature& signature);
  void matched(std::uint32_t sequence);  // every rank this one needs has called the same
  void finished(std::uint32_t sequence, std::int64_t when = now());
  // A send or recv, `signature.root` its peer; `number` among those from its sender to its
  // receiver, from 0 on; may wrap. Returns what message_finished() takes.
  std::uint64_t message(std::uint32_t number, const Signature& signature);
  void message_finished(std::uint64_t ticket);
  // Keeps the first failure, writes everything down and logs where. Never throws.
  void failed(std::string_view what, const Blame& blame = {}) noexcept;

  // {"format": "shoal-flight-1", "group", "rank", "members", "host", "process", "written_at" (Unix
  // seconds), "failure" (text or null), "blame": {"kind", "ranks"} or null, "notices":
  // [fallbacks of this process, as text], "operations":
  // [{"sequence", "operation", "text", "submitted_s_ago", "matched", "finished_s_ago" (null: not)},
  // oldest first], "messages": [{"number", "sends", "peer" (its place in the group), "text",
  // "submitted_s_ago", "finished_s_ago"}, oldest first]}
  nlohmann::ordered_json to_json() const;
  // Writes it into `directory`, made if need be, as flight-GROUP-rankR.json; the path. Never
  // throws: a failure must not hide the one it describes. Empty when it could not be written.
  std::string dump(const std::string& directory) const noexcept;

 private:
  struct Entry {
    std::uint32_t sequence = 0;
    bool used = false, matched = false;
    std::int64_t submitted_ns = 0, finished_ns = 0;  // coarse clock; 0: not yet
    Signature signature;
  };
  struct MessageEntry {
    std::uint64_t ticket = 0;  // 0: not used
    std::uint32_t number = 0;
    std::int64_t submitted_ns = 0, finished_ns = 0;  // likewise
    Signature signature;
  };
  nlohmann::ordered_json messages_json(std::int64_t now) const;
  Entry& at(std::uint32_t sequence) { return entries_[sequence % kCapacity]; }

  std::string group_, directory_;
  int rank_;
  std::vector<int> members_;
  std::string failure_;
  Blame blame_;
  std::uint32_t newest_ = 0;
  std::vector<Entry> entries_;
  std::uint64_t newest_message_ = 0;
  std::vector<MessageEntry> messages_;
};

}  // namespace shoal::collectives
