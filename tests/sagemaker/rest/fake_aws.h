// The parts of S3, SageMaker, CloudWatch Logs and STS that Shoal uses, on loopback. It checks every
// signature, enforces the documented limits that matter here, and fails on request.
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/http_server.h"
#include <nlohmann/json.hpp>

namespace shoal::test {

// A fault that happens at the next call of its operation.
struct Fault {
  std::string operation;   // "S3 GetObject", "SageMaker CreateTrainingJob", "Logs GetLogEvents" ...
  ServedReply reply = {};  // instead of the answer, if not `done`
  bool done = false;       // the operation is carried out, and its answer ...
  std::int64_t cut_after = -1;  // ... ends after this many bytes; -1: no limit
  double delay_seconds = 0;
};
ServedReply json_error(int status, const std::string& type, const std::string& message);
ServedReply xml_error(int status, const std::string& code, const std::string& message);

class FakeAws {
 public:
  static constexpr const char* kKey = "AKIDEXAMPLE";
  static constexpr const char* kSecret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

  FakeAws();
  std::string url() const { return server_->url(); }
  void fail_next(const Fault& fault, int times = 1);
  int calls(const std::string& operation) const;  // so far, including failed ones

  // The environment with which a program finds this server, with keys and a region.
  std::vector<std::string> environment() const;

  struct Object {
    std::string body, etag;
    std::vector<std::pair<std::string, std::string>> headers;  // additional ones of HEAD and GET
  };
  void put_object(const std::string& bucket_and_key, std::string body);
  std::string object(const std::string& bucket_and_key) const;
  bool has_object(const std::string& bucket_and_key) const;
  void set_object_header(const std::string& bucket_and_key, const std::string& name,
                         const std::string& value);
  int open_uploads() const;

  // Adds a job. Each DescribeTrainingJob advances it by one status.
  void add_job(const std::string& name, nlohmann::json description,
               std::vector<std::pair<std::string, std::string>> statuses = {});
  int created() const { return created_; }
  // Each job that is created leaves this archive as its model.
  void set_output(std::string archive);
  void add_log(const std::string& stream, std::int64_t milliseconds, const std::string& message);
  void add_log_at(const std::string& job, const std::string& secondary_status,
                  const std::string& message);  // written when the job reaches the status

  std::atomic<int> page{1000};           // entries in a page of any list
  std::atomic<bool> empty_pages{false};  // log events have an empty page before each full one
  std::string account = "123456789012";

 private:
  struct Job {
    nlohmann::json description;
    std::vector<std::pair<std::string, std::string>> statuses;
    std::size_t at = 0;
    std::vector<std::pair<std::string, std::string>> log_at;
  };
  struct Upload {
    std::string name;
    std::map<int, std::string> parts;
  };
  ServedReply handle(const ServedRequest& request);
  std::optional<ServedReply> refuse(const ServedRequest& request) const;
  static std::string operation_of(const ServedRequest& request);
  ServedReply answer(const std::string& operation, const ServedRequest& request);
  ServedReply s3(const std::string& operation, const ServedRequest& request);
  ServedReply list_objects(const ServedRequest& request);
  ServedReply complete_upload(const ServedRequest& request, const std::string& name);
  ServedReply sage_maker(const std::string& operation, const nlohmann::json& arguments);
  ServedReply logs(const std::string& operation, const nlohmann::json& arguments);
  static ServedReply sts(const std::string& operation, const ServedRequest& request);

  mutable std::mutex mutex_;
  std::deque<Fault> faults_;
  std::map<std::string, int> calls_;
  std::map<std::string, Object> objects_;
  std::map<std::string, Upload> uploads_;
  int next_upload_ = 1;
  std::map<std::string, Job> jobs_;
  std::string output_;
  std::map<std::string, std::vector<std::pair<std::int64_t, std::string>>> streams_;
  std::atomic<int> created_{0};
  std::unique_ptr<HttpServer> server_;  // declared last: its threads use the other members
};

}  // namespace shoal::test
