// Parsers of sagemaker: answers of services, job files, and what a container finds.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/container/command.h"
#include "shoal/sagemaker/container/contract.h"
#include "shoal/sagemaker/container/environment.h"
#include "shoal/sagemaker/container/launch.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/job.h"
#include "shoal/sagemaker/job/python_text.h"
#include "shoal/sagemaker/job/secrets.h"
#include "shoal/sagemaker/rest/client.h"
#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/endpoint.h"
#include "shoal/sagemaker/rest/http.h"
#include "shoal/sagemaker/rest/logs.h"
#include "shoal/sagemaker/rest/profile.h"
#include "shoal/sagemaker/rest/s3.h"
#include "shoal/sagemaker/rest/service_error.h"
#include "shoal/sagemaker/rest/sts.h"
#include "shoal/sagemaker/rest/training_jobs.h"

namespace shoal::fuzz {
namespace {

using namespace sagemaker;

// Answers with the input's parts, one after the other: "206", headers, an empty line, the body.
class InputTransport final : public Transport {
 public:
  explicit InputTransport(Input& input) : input_(input) {}
  HttpResponse send(const HttpRequest& request) override {
    if (input_.rest().empty()) throw TransportError("no answer is left", "", false, false);
    HttpResponse response;
    std::string_view text = input_.part();
    const auto line = [&text] {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view taken = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      return taken;
    };
    response.status = parse_number<int>(line()).value_or(200);
    for (std::string_view header = line(); !header.empty(); header = line()) {
      const std::size_t colon = std::min(header.find(": "), header.size());
      response.headers.emplace_back(header.substr(0, colon),
                                    header.substr(std::min(colon + 2, header.size())));
    }
    if (response.status == 206 && !request.into.empty())
      response.filled = std::min(text.size(), request.into.size());
    else
      response.body = text;
    return response;
  }

 private:
  Input& input_;
};

Wire wire_of(Input& input) {
  return {.transport = std::make_shared<InputTransport>(input),
          .credentials = std::make_shared<CredentialProvider>(
              Credentials{.access_key = "AK", .secret_key = Secret("secret"), .source = "a test"}),
          .retry = {.attempts = 2, .sleep = [](double) {}, .random = [] { return 1.0; }},
          .now = [] { return from_epoch(1.7e9); }};
}

ServiceClient client_of(Input& input, Service service) {
  return {wire_of(input), resolve_endpoint(service, {.region = "eu-west-3"})};
}

// '0' to '4': the call.
FUZZ(s3_answers,
     "sagemaker/rest/s3.cc sagemaker/rest/s3_upload.cc sagemaker/rest/client.cc "
     "sagemaker/rest/service_error.cc") {
  const int call = input.choice(5);
  const S3 s3(wire_of(input), {.region = "eu-west-3"});
  const S3Name name{.bucket = "bucket", .key = "a/b"};
  if (call == 0) {
    for (const ListedObject& object : s3.list(name))
      expect(object.size >= 0, "an object has a size");
  } else if (call == 1) {
    expect(s3.head(name).size >= 0, "an object has a size");
  } else if (call == 2) {
    std::vector<std::byte> bytes(8);
    s3.read(name, "\"etag\"", 4, bytes);
  } else if (call == 3) {
    (void)s3.put(name, "body");
    s3.remove(name);
  } else {
    static const auto source = make_memory_source(std::string((5 << 20) + 1, 'x'), "source");
    (void)s3.upload(name, *source, {.part_bytes = 5 << 20, .connections = 1});
  }
}

FUZZ(sts_answers, "sagemaker/rest/sts.cc sagemaker/rest/service_error.cc") {
  const Secret token(input.choice(2) == 0 ? "" : "token");
  const Credentials keys = assume_role(
      client_of(input, Service::sts),
      {.role_arn = "arn:aws:iam::1:role/r", .session_name = "shoal", .web_identity_token = token});
  expect(keys.expires.has_value(), "a role's keys expire");
}

// Answers of a container's and of an instance's metadata service. The profile is never the input:
// it may name a program to run.
FUZZ(metadata_answers, "sagemaker/rest/credential_sources.cc sagemaker/rest/credentials.cc") {
  std::map<std::string, std::string, std::less<>> variables{
      {"AWS_CONFIG_FILE", Input::folder() + "/none"},
      {"AWS_SHARED_CREDENTIALS_FILE", Input::folder() + "/none"}};
  if (input.choice(2) == 0) variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/keys";
  (void)make_credential_chain(environment_of(variables), std::make_shared<InputTransport>(input),
                              {.sleep = [](double) {}, .now = [] { return from_epoch(1.7e9); }})
      ->get();
}

FUZZ(profile, "sagemaker/rest/profile.cc") {
  for (const auto& [name, section] : parse_sections(input.rest(), "config"))
    for (const auto& [key, value] : section) expect(key.size() <= 600, "a key is short");
}

// '0' to '3': the call.
FUZZ(job_answers,
     "sagemaker/rest/training_jobs.cc sagemaker/rest/logs.cc sagemaker/rest/client.cc") {
  const int call = input.choice(4);
  const TrainingJobs jobs(client_of(input, Service::sagemaker));
  if (call == 0) {
    const DescribedJob job = jobs.describe("job-1");
    (void)job.billed_instance_seconds();
    (void)job.spot_saving_percent();
  } else if (call == 1) {
    (void)jobs.list();
  } else if (call == 2) {
    (void)jobs.create({{"TrainingJobName", "job-1"}});
  } else {
    JobLog log(client_of(input, Service::logs), "job-1");
    log.read_new([](const std::vector<LogEvent>& events) {
      expect(std::ranges::is_sorted(events, {}, &LogEvent::time), "events are sorted by time");
    });
  }
}

FUZZ(http_text, "sagemaker/rest/http.cc sagemaker/rest/encode.cc sagemaker/rest/endpoint.cc") {
  const std::string text(input.rest());
  expect(percent_decode(percent_encode(text)) == text, "a round trip");
  if (const auto moment = parse_time(text)) (void)extended_time(*moment);
  if (const auto moment = parse_http_date(text)) (void)basic_time(*moment);
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { (void)partition_of(text); },
           [&] {
             const S3Name name = parse_s3_name(text);
             (void)object_url(resolve_endpoint(Service::s3, {.region = "eu-west-3"}), name).text();
           },
           [&] {
             const Url url = parse_url(text, "it");
             expect(parse_url(url.text(), "it").text() == url.text(), "a URL reads the same again");
             (void)is_loopback(url);
           }})
    try {
      read();
    } catch (const Error& error) {
      expect(error.code() == ErrorCode::invalid_argument, error.what());
    }
}

FUZZ(job_file,
     "sagemaker/job/job.cc sagemaker/job/fields.cc sagemaker/job/machines.cc "
     "sagemaker/job/inputs.cc "
     "sagemaker/job/code.cc sagemaker/job/debugger.cc sagemaker/job/distribution.cc "
     "sagemaker/job/images.cc sagemaker/job/secrets.cc sagemaker/job/python_text.cc",
     .lists_problems = true) {
  const Json job = read_job_file(input.file("job.json", input.rest()));
  (void)python_json(job);
  (void)compact_python_json(job);
  (void)python_str(job);
  const TrainingJob made = make_training_job(job, {.region = "eu-west-3", .now = {}});
  check_job_name(made.name);
  (void)without_secrets(made.request).dump();
}

// hyperparameters.json, resourceconfig.json, inputdataconfig.json.
FUZZ(contract,
     "sagemaker/container/contract.cc sagemaker/container/environment.cc "
     "sagemaker/container/command.cc sagemaker/container/launch.cc",
     .lists_problems = true) {
  for (const char* name : {"hyperparameters", "resourceconfig", "inputdataconfig"})
    input.optional_file(std::string("input/config/") + name + ".json");
  const VariableReader variables = [](std::string_view) { return std::nullopt; };
  const Contract contract = read_contract(Input::folder(), {.gpus = 8, .cpus = 4}, variables);
  expect(std::ranges::count(contract.hosts, contract.current_host) >= 1,
         "this host is one of them");
  (void)sm_variables(contract, variables);
  (void)region_for_s3(contract, variables);
  const TrainCommand command = train_command(contract, {}, Input::folder() + "/code");
  expect(!command.words.empty(), "a command has words");
  check_gpus(contract, command);
  (void)plan_launch(contract, command, {});
}

}  // namespace
}  // namespace shoal::fuzz
