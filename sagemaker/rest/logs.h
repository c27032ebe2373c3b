// Reads a training job's output from CloudWatch Logs.
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

// Follows the log streams of one job, which appear over time. Not thread-safe.
class JobLog {
 public:
  JobLog(ServiceClient logs, std::string job);
  // Passes all new events since the last call to `sink`, in pages, since a long job may have many.
  // Events of a page are sorted by time; each stream keeps its order.
  //
  // Reads until no stream has more. A stream ends with a page that returns the request's token; an
  // empty page is not the end. Before the job has written, there are no events.
  void read_new(const std::function<void(const std::vector<LogEvent>& events)>& sink);

 private:
  void find_streams();
  ServiceClient logs_;
  std::string job_;
  std::map<std::string, std::string> tokens_;  // per stream, for its next page
};

}  // namespace shoal::sagemaker
