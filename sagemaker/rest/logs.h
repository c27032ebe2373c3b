// What a training job writes, read from CloudWatch Logs.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shoal/sagemaker/rest/client.h"

namespace shoal::sagemaker {

struct LogEvent {
  std::string stream;  // "algo-1-1700000000" of the job
  Moment time;
  std::string message;
};

// Follows the log streams of one job, which come to be one by one. Not thread-safe.
class JobLog {
 public:
  JobLog(ServiceClient logs, std::string job);
  // Everything new since the last call, of all streams, by time (of one stream, in its order).
  // Reads on until nothing more is there: a stream's end is a page whose token is the one that was
  // asked with; an empty page is not. Before the job has written, nothing. A long job can have
  // much: `sink` gets it in pages.
  void read_new(const std::function<void(const std::vector<LogEvent>& events)>& sink);

 private:
  void find_streams();
  ServiceClient logs_;
  std::string job_;
  std::map<std::string, std::string> tokens_;  // of each stream, for its next page
};

}  // namespace shoal::sagemaker
