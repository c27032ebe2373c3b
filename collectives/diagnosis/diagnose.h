// What the flight recorders of a job's ranks say together: who did not come, who called something
// else, where the data stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace shoal::collectives {

struct FlightOperation {
  std::uint32_t sequence = 0;
  std::string text;  // "all_reduce of 16 f32, sum"
  double submitted_s_ago = 0;
  bool matched = false;
  std::optional<double> finished_s_ago;
};

struct FlightMessage {
  std::uint32_t number = 0;  // among those of its sender to its receiver
  bool sends = false;
  int peer = 0;      // its place in the group
  std::string text;  // "recv of 16 f32 from rank 1"
  double submitted_s_ago = 0;
  std::optional<double> finished_s_ago;
};

// One file of FlightRecorder::dump.
struct FlightDump {
  std::string group, host, failure;
  int rank = 0;  // its place in the group
  std::vector<int> members;
  std::string blame;        // to_string(Blame::Kind), or empty
  std::vector<int> blamed;  // ranks of the job
  double written_at = 0;
  std::vector<FlightOperation> operations;  // oldest first
  std::vector<FlightMessage> messages;      // likewise
};

// corrupt_data naming `path` and what is wrong.
FlightDump parse_flight_dump(const nlohmann::json& json, const std::string& path);
FlightDump read_flight_dump(const std::string& path);

enum class Verdict : std::uint8_t {
  fine,      // everything that was called was finished by everybody
  desync,    // some ranks never called what others wait for, a send or recv too
  mismatch,  // ranks called different things as the same operation
  stalled,   // everybody called it, not everybody finished; or a process was stopped
  lost,      // ranks died, or left no dump while others waited: killed, or stuck outside Shoal
  cut        // ranks that live on could not reach each other
};

struct GroupDiagnosis {
  std::string group;
  Verdict verdict = Verdict::fine;
  std::optional<std::uint32_t> sequence;  // the first operation that somebody did not finish
  std::vector<int> culprits;              // ranks of the job, those to look at first
  std::vector<int> without_dump;          // killed, or never asked
  std::string summary;                    // one line
  std::vector<std::string> details;       // one line a rank, and the failures in order of time
};

// One for each group, in order of first failure; groups inside another one after it.
std::vector<GroupDiagnosis> diagnose(std::span<const FlightDump> dumps);
std::string_view to_string(Verdict verdict);
nlohmann::ordered_json to_json(const GroupDiagnosis& diagnosis);

}  // namespace shoal::collectives
