// Combines the flight recorder dumps of a job's ranks: finds ranks that did not make a call or made
// another one, and where data stopped.
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
  std::uint32_t number = 0;  // counts the messages from this sender to this receiver
  bool sends = false;
  int peer = 0;      // rank in the group
  std::string text;  // "recv of 16 f32 from rank 1"
  double submitted_s_ago = 0;
  std::optional<double> finished_s_ago;
};

// Contents of one file written by FlightRecorder::dump.
struct FlightDump {
  std::string group, host, failure;
  int rank = 0;  // rank in the group
  std::vector<int> members;
  std::string blame;        // to_string(Blame::Kind), or empty
  std::vector<int> blamed;  // ranks of the job
  double written_at = 0;
  std::vector<FlightOperation> operations;  // oldest first
  std::vector<FlightMessage> messages;      // likewise
};

// Throws corrupt_data, naming `path` and the fault.
FlightDump parse_flight_dump(const nlohmann::json& json, const std::string& path);
FlightDump read_flight_dump(const std::string& path);

enum class Verdict : std::uint8_t {
  fine,      // every rank finished everything that was called
  desync,    // some ranks never made a call (or send, recv) that others wait for
  mismatch,  // ranks made different calls as the same operation
  stalled,   // all ranks made the call, but not all finished it; or a process was stopped
  lost,      // ranks died, or left no dump while others waited: killed, or stuck outside Shoal
  cut        // live ranks could not reach each other
};

struct GroupDiagnosis {
  std::string group;
  Verdict verdict = Verdict::fine;
  std::optional<std::uint32_t> sequence;  // the first operation that some rank did not finish
  std::vector<int> culprits;              // ranks of the job to look at first
  std::vector<int> without_dump;          // killed, or never asked to write one
  std::string summary;                    // one line
  std::vector<std::string> details;       // one line a rank, then the failures in order of time
};

// One diagnosis for each group, in order of first failure; nested groups follow their outer group.
std::vector<GroupDiagnosis> diagnose(std::span<const FlightDump> dumps);
std::string_view to_string(Verdict verdict);
nlohmann::ordered_json to_json(const GroupDiagnosis& diagnosis);

}  // namespace shoal::collectives
