// The last operations of one group as one rank saw them (the idea of PyTorch's flight recorder).
// They are written to a file when a collective fails and read by `shoal diagnose`.
//
// Recording takes a few nanoseconds and never allocates. Not thread-safe: the owner holds a lock
// around all calls.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "shoal/collectives/transport/operation.h"

namespace shoal::collectives {

// The ranks that a failure names, numbered as in the job.
struct Blame {
  enum class Kind : std::uint8_t {
    none,
    died,         // their processes ended
    unreachable,  // nothing came from their host
    silent        // their hosts answered, their processes did nothing: stopped or starved
  };
  Kind kind = Kind::none;
  std::vector<int> ranks;
};
std::string_view to_string(Blame::Kind kind);

class FlightRecorder {
 public:
  // Number of operations remembered, and of messages; a power of two.
  static constexpr std::size_t kCapacity = 512;

  // `group`: its name, without the leading "shoal/" of store keys. `members`: the group's ranks,
  // numbered as in the job; `rank`: this rank's index among them. `directory`: where failed()
  // writes; empty: nowhere.
  FlightRecorder(std::string group, int rank, std::vector<int> members, std::string directory = {});

  // Nanoseconds of a clock with millisecond resolution, which suffices to see which rank waited.
  // Reading it is cheaper than the exact clock, but not free.
  static std::int64_t now();
  // Sequences grow by one from call to call and may wrap. Returns now().
  std::int64_t submitted(std::uint32_t sequence, const Signature& signature);
  const Signature& newest() const { return entries_[newest_ % kCapacity].signature; }
  void matched(std::uint32_t sequence);  // every rank that this one needs has made the same call
  void finished(std::uint32_t sequence, std::int64_t when = now());
  // Records a send or recv whose peer is `signature.root`. `number` counts the messages from the
  // sender to the receiver, from 0, and may wrap. Returns the ticket for message_finished().
  std::uint64_t message(std::uint32_t number, const Signature& signature);
  void message_finished(std::uint64_t ticket);
  // Keeps the first failure, writes the dump and logs its path. Never throws.
  void failed(std::string_view what, const Blame& blame = {}) noexcept;

  // {"format": "shoal-flight-1", "group", "rank", "members", "host", "process", "written_at" (Unix
  // seconds), "failure" (text or null), "blame": {"kind", "ranks"} or null, "notices":
  // [fallbacks and choices of algorithms of this process, as text], "operations":
  // [{"sequence", "operation", "text", "submitted_s_ago", "matched", "finished_s_ago" (or null)},
  // oldest first], "messages": [{"number", "sends", "peer" (rank in the group), "text",
  // "submitted_s_ago", "finished_s_ago"}, oldest first]}
  nlohmann::ordered_json to_json() const;
  // Writes flight-GROUP-rankR.json into `directory`, creating it if needed, and returns the path.
  // Never throws, because the original failure must not be hidden. Empty if it could not be
  // written.
  std::string dump(const std::string& directory) const noexcept;

 private:
  struct Entry {
    std::uint32_t sequence = 0;
    bool used = false, matched = false;
    std::int64_t submitted_ns = 0, finished_ns = 0;  // coarse clock; 0: not yet
    Signature signature;
  };
  struct MessageEntry {
    std::uint64_t ticket = 0;  // 0: unused
    std::uint32_t number = 0;
    std::int64_t submitted_ns = 0, finished_ns = 0;  // coarse clock; 0: not yet
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
