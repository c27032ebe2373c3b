#include "sagemaker/rest/fake_aws.h"

#include <algorithm>
#include <regex>
#include <utility>

#include "sagemaker/rest/fake_limits.h"
#include <fmt/format.h>

#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/signer.h"

namespace shoal::test {

using nlohmann::json;
using namespace sagemaker;

namespace {

std::string between(const std::string& text, const std::string& before, const std::string& after) {
  const auto start = text.find(before);
  if (start == std::string::npos) return {};
  const auto from = start + before.size();
  return text.substr(from, text.find(after, from) - from);
}

std::map<std::string, std::string> query_of(const std::string& query) {
  std::map<std::string, std::string> values;
  for (std::size_t at = 0; at < query.size();) {
    const std::size_t end = std::min(query.find('&', at), query.size());
    const std::string pair = query.substr(at, end - at);
    const std::size_t equals = std::min(pair.find('='), pair.size());
    values[percent_decode(pair.substr(0, equals))] =
        percent_decode(pair.substr(std::min(equals + 1, pair.size())));
    at = end + 1;
  }
  return values;
}

std::string md5_of(const std::string& body) {
  const auto sum = make_checksum("md5");
  sum->add(std::as_bytes(std::span(body)));
  return sum->finish();
}

std::string etag_of(const std::string& body) { return fmt::format("\"{}\"", hex(md5_of(body))); }

ServedReply xml(const std::string& body) {
  return {.headers = {{"Content-Type", "application/xml"}},
          .body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + body};
}

ServedReply json_reply(const json& body) {
  return {
      .headers = {{"Content-Type", "application/x-amz-json-1.1"}, {"x-amzn-RequestId", "req-1"}},
      .body = body.dump()};
}

}  // namespace

ServedReply json_error(int status, const std::string& type, const std::string& message) {
  return {
      .status = status,
      .headers = {{"Content-Type", "application/x-amz-json-1.1"}, {"x-amzn-RequestId", "req-1"}},
      .body = json{{"__type", type}, {"message", message}}.dump()};
}

ServedReply xml_error(int status, const std::string& code, const std::string& message) {
  ServedReply reply = xml(
      fmt::format("<Error><Code>{}</Code><Message>{}</Message><RequestId>req-2</RequestId></Error>",
                  code, message));
  reply.status = status;
  return reply;
}

FakeAws::FakeAws()
    : server_(std::make_unique<HttpServer>(
          [this](const ServedRequest& request) { return handle(request); })) {}

std::vector<std::string> FakeAws::environment() const {
  return {"AWS_ENDPOINT_URL=" + url(),
          std::string("AWS_ACCESS_KEY_ID=") + kKey,
          std::string("AWS_SECRET_ACCESS_KEY=") + kSecret,
          "AWS_SESSION_TOKEN=",
          "AWS_REGION=us-east-1",
          "AWS_PROFILE=",
          "AWS_CONFIG_FILE=/nonexistent/config",
          "AWS_SHARED_CREDENTIALS_FILE=/nonexistent/credentials",
          "AWS_EC2_METADATA_DISABLED=true"};
}

void FakeAws::fail_next(const Fault& fault, int times) {
  const std::lock_guard lock(mutex_);
  for (int i = 0; i < times; ++i) faults_.push_back(fault);
}

int FakeAws::calls(const std::string& operation) const {
  const std::lock_guard lock(mutex_);
  const auto found = calls_.find(operation);
  return found == calls_.end() ? 0 : found->second;
}

std::string FakeAws::operation_of(const ServedRequest& request) {
  const std::string target = request.header("x-amz-target");
  const std::size_t dot = target.find('.');
  if (!target.empty())
    return (target.starts_with("Logs_") ? "Logs " : "SageMaker ") + target.substr(dot + 1);
  if (request.body.starts_with("Action=")) return "STS " + between(request.body, "Action=", "&");
  const auto query = query_of(request.query);
  const bool bucket = request.path.find('/', 1) == std::string::npos;
  if (query.contains("uploads")) return "S3 CreateMultipartUpload";
  if (query.contains("uploadId"))
    return request.method == "PUT"      ? "S3 UploadPart"
           : request.method == "DELETE" ? "S3 AbortMultipartUpload"
                                        : "S3 CompleteMultipartUpload";
  if (request.method == "GET") return bucket ? "S3 ListObjectsV2" : "S3 GetObject";
  return "S3 " + std::string(request.method == "PUT"    ? "PutObject"
                             : request.method == "HEAD" ? "HeadObject"
                                                        : "DeleteObject");
}

// Signs the received request again and compares the signatures.
std::optional<ServedReply> FakeAws::refuse(const ServedRequest& request) const {
  if (request.body.starts_with("Action=AssumeRoleWithWebIdentity")) return std::nullopt;
  const std::string given = request.header("authorization");
  const std::string scope = between(given, "Credential=", ",");
  const std::string names = between(given, "SignedHeaders=", ",");
  if (scope.empty()) return xml_error(403, "AccessDenied", "the request is not signed");
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= scope.size();) {
    const std::size_t end = std::min(scope.find('/', at), scope.size());
    parts.push_back(scope.substr(at, end - at));
    at = end + 1;
  }
  if (parts.size() != 5 || parts[0] != kKey)
    return json_error(400, "UnrecognizedClientException",
                      "The security token included in the request is invalid.");
  HttpRequest again;
  again.method = request.method;
  again.url = parse_url("http://" + request.header("host") + request.path +
                            (request.query.empty() ? "" : "?" + request.query),
                        "the request");
  again.body = request.body;
  for (std::size_t at = 0; at <= names.size();) {
    const std::size_t end = std::min(names.find(';', at), names.size());
    const std::string name = names.substr(at, end - at);
    if (name != "host") again.headers.emplace_back(name, request.header(name));
    at = end + 1;
  }
  const std::string date = request.header("x-amz-date");
  const auto time = parse_time(fmt::format("{}-{}-{}T{}:{}:{}Z", date.substr(0, 4),
                                           date.substr(4, 2), date.substr(6, 2), date.substr(9, 2),
                                           date.substr(11, 2), date.substr(13, 2)));
  if (!time) return json_error(400, "IncompleteSignature", "no X-Amz-Date");
  sign(again,
       {.access_key = kKey,
        .secret_key = Secret(kSecret),
        .session_token = Secret(request.header("x-amz-security-token"))},
       {.region = parts[2], .service = parts[3], .time = *time, .s3 = parts[3] == "s3"});
  if (*find_header(again.headers, "authorization") == given) return std::nullopt;
  return parts[3] == "s3" ? xml_error(403, "SignatureDoesNotMatch", "The signature does not match")
                          : json_error(400, "InvalidSignatureException", "it does not match");
}

ServedReply FakeAws::handle(const ServedRequest& request) {
  const std::string operation = operation_of(request);
  const std::lock_guard lock(mutex_);
  ++calls_[operation];
  if (auto refused = refuse(request)) return *refused;
  const auto fault = std::find_if(faults_.begin(), faults_.end(),
                                  [&](const Fault& f) { return f.operation == operation; });
  if (fault == faults_.end()) return answer(operation, request);
  const Fault now = std::move(*fault);
  faults_.erase(fault);
  ServedReply reply = now.done ? answer(operation, request) : now.reply;
  if (now.cut_after >= 0) reply.cut_after = now.cut_after;
  reply.delay_seconds = now.delay_seconds;
  return reply;
}

ServedReply FakeAws::answer(const std::string& operation, const ServedRequest& request) {
  const std::string name = operation.substr(operation.find(' ') + 1);
  if (operation.starts_with("S3 ")) return s3(name, request);
  if (operation.starts_with("STS ")) return sts(name, request);
  const json arguments = json::parse(request.body);
  return operation.starts_with("Logs ") ? logs(name, arguments) : sage_maker(name, arguments);
}

void FakeAws::put_object(const std::string& bucket_and_key, std::string body) {
  const std::lock_guard lock(mutex_);
  std::string etag = etag_of(body);
  objects_["/" + bucket_and_key] = {std::move(body), std::move(etag), {}};
}

std::string FakeAws::object(const std::string& bucket_and_key) const {
  const std::lock_guard lock(mutex_);
  return objects_.at("/" + bucket_and_key).body;
}

bool FakeAws::has_object(const std::string& bucket_and_key) const {
  const std::lock_guard lock(mutex_);
  return objects_.contains("/" + bucket_and_key);
}

void FakeAws::set_object_header(const std::string& bucket_and_key, const std::string& name,
                                const std::string& value) {
  const std::lock_guard lock(mutex_);
  objects_.at("/" + bucket_and_key).headers.emplace_back(name, value);
}

int FakeAws::open_uploads() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(uploads_.size());
}

ServedReply FakeAws::list_objects(const ServedRequest& request) {
  auto query = query_of(request.query);
  const std::string bucket = request.path + "/", from = query["continuation-token"];
  std::string body = "<ListBucketResult><EncodingType>url</EncodingType>", last;
  int count = 0;
  bool truncated = false;
  for (const auto& [name, object] : objects_) {
    if (!name.starts_with(bucket + query["prefix"]) || name <= from) continue;
    if (count == page) {
      truncated = true;
      break;
    }
    ++count;
    last = name;
    std::string key;  // as S3 encodes it: a space is '+'
    for (const char c : name.substr(bucket.size()))
      key += c == ' ' ? "+" : percent_encode(std::string_view(&c, 1), true);
    body +=
        fmt::format("<Contents><Key>{}</Key><Size>{}</Size><ETag>&quot;{}&quot;</ETag></Contents>",
                    key, object.body.size(), object.etag.substr(1, object.etag.size() - 2));
  }
  body += fmt::format("<IsTruncated>{}</IsTruncated>", truncated);
  if (truncated) body += "<NextContinuationToken>" + last + "</NextContinuationToken>";
  return xml(body + "</ListBucketResult>");
}

ServedReply FakeAws::complete_upload(const ServedRequest& request, const std::string& name) {
  const std::string id = query_of(request.query)["uploadId"];
  const auto upload = uploads_.find(id);
  if (upload == uploads_.end())
    return xml_error(404, "NoSuchUpload", "The specified upload does not exist.");
  std::string body, sums;
  int count = 0;
  const auto& parts = upload->second.parts;
  for (const auto& [number, part] : parts) {
    const std::string listed = fmt::format("<PartNumber>{}</PartNumber><ETag>&quot;{}&quot;</ETag>",
                                           number, etag_of(part).substr(1, 32));
    if (request.body.find(listed) == std::string::npos || number != ++count)
      return xml_error(400, "InvalidPart",
                       "One or more of the specified parts could not be found.");
    if (number != parts.rbegin()->first && part.size() < (5U << 20U))
      return xml_error(400, "EntityTooSmall", "a part is below 5 MiB");
    body += part;
    sums += md5_of(part);
  }
  uploads_.erase(upload);
  const std::string etag = fmt::format("\"{}-{}\"", hex(md5_of(sums)), count);
  objects_[name] = {std::move(body), etag, {}};
  return xml("<CompleteMultipartUploadResult><ETag>" + etag +
             "</ETag></CompleteMultipartUploadResult>");
}

ServedReply FakeAws::s3(const std::string& operation, const ServedRequest& request) {
  const std::string name = percent_decode(request.path);
  if (operation == "ListObjectsV2") return list_objects(request);
  if (operation == "PutObject") {
    objects_[name] = {request.body, etag_of(request.body), {}};
    return {.headers = {{"ETag", objects_[name].etag}}};
  }
  if (operation == "DeleteObject") {
    objects_.erase(name);
    return {.status = 204};
  }
  if (operation == "CreateMultipartUpload") {
    const std::string id = fmt::format("upload/{}+", next_upload_++);
    uploads_[id].name = name;
    return xml("<InitiateMultipartUploadResult><UploadId>" + id +
               "</UploadId></InitiateMultipartUploadResult>");
  }
  auto query = query_of(request.query);
  if (operation == "UploadPart") {
    const auto upload = uploads_.find(query["uploadId"]);
    if (upload == uploads_.end()) return xml_error(404, "NoSuchUpload", "no such upload");
    upload->second.parts[std::stoi(query["partNumber"])] = request.body;
    return {.headers = {{"ETag", etag_of(request.body)}}};
  }
  if (operation == "AbortMultipartUpload") {
    uploads_.erase(query["uploadId"]);
    return {.status = 204};
  }
  if (operation == "CompleteMultipartUpload") return complete_upload(request, name);
  const auto found = objects_.find(name);
  if (found == objects_.end())
    return operation == "HeadObject"
               ? ServedReply{.status = 404}
               : xml_error(404, "NoSuchKey", "The specified key does not exist.");
  const Object& object = found->second;
  if (const std::string match = request.header("if-match"); !match.empty() && match != object.etag)
    return xml_error(412, "PreconditionFailed", "At least one of the pre-conditions did not hold");
  ServedReply reply{.headers = object.headers, .body = object.body};
  reply.headers.emplace_back("ETag", object.etag);
  std::smatch range;
  const std::string wanted = request.header("range");
  if (std::regex_match(wanted, range, std::regex("bytes=(\\d+)-(\\d+)"))) {
    const std::size_t first = std::stoul(range[1]), last = std::stoul(range[2]);
    if (first >= object.body.size()) return xml_error(416, "InvalidRange", "not satisfiable");
    reply.status = 206;
    reply.body = object.body.substr(first, last - first + 1);
    reply.headers.emplace_back(
        "Content-Range",
        fmt::format("bytes {}-{}/{}", first, first + reply.body.size() - 1, object.body.size()));
  }
  return reply;
}

ServedReply FakeAws::sts(const std::string& operation, const ServedRequest& request) {
  const std::string role = percent_decode(between(request.body, "RoleArn=", "&"));
  return xml(
      fmt::format("<{0}Response><{0}Result><Credentials><AccessKeyId>{1}</AccessKeyId>"
                  "<SecretAccessKey>{2}</SecretAccessKey>"
                  "<SessionToken>token of {3}</SessionToken>"
                  "<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></{0}Result>"
                  "</{0}Response>",
                  operation, kKey, kSecret, role));
}

void FakeAws::add_job(const std::string& name, json description,
                      std::vector<std::pair<std::string, std::string>> statuses) {
  const std::lock_guard lock(mutex_);
  if (statuses.empty())
    statuses = {{"InProgress", "Starting"},
                {"InProgress", "Downloading"},
                {"InProgress", "Training"},
                {"InProgress", "Uploading"},
                {"Completed", "Completed"}};
  description["TrainingJobName"] = name;
  description["TrainingJobArn"] =
      "arn:aws:sagemaker:us-east-1:" + account + ":training-job/" + name;
  if (!description.contains("CreationTime"))
    description["CreationTime"] = to_epoch(std::chrono::system_clock::now());
  Job& job = jobs_[name];
  job.description = std::move(description);
  job.statuses = std::move(statuses);
  job.at = 0;
}

void FakeAws::set_output(std::string archive) {
  const std::lock_guard lock(mutex_);
  output_ = std::move(archive);
}

void FakeAws::add_log(const std::string& stream, std::int64_t milliseconds,
                      const std::string& message) {
  const std::lock_guard lock(mutex_);
  streams_[stream].emplace_back(milliseconds, message);
}

void FakeAws::add_log_at(const std::string& job, const std::string& secondary_status,
                         const std::string& message) {
  const std::lock_guard lock(mutex_);
  jobs_[job].log_at.emplace_back(secondary_status, message);
}

ServedReply FakeAws::sage_maker(const std::string& operation, const json& arguments) {
  const std::string name = arguments.value("TrainingJobName", "");
  if (operation == "CreateTrainingJob") {
    if (const std::string problem = beyond_limits(arguments); !problem.empty())
      return json_error(400, "ValidationException", problem);
    if (jobs_.contains(name) && !jobs_[name].description.is_null())
      return json_error(400, "ResourceInUse",
                        "Training job names must be unique within an AWS "
                        "account and region");
    ++created_;
    Job& job = jobs_[name];
    job.description = arguments;
    job.description["TrainingJobArn"] = "arn:aws:sagemaker:us-east-1:1:training-job/" + name;
    job.description["CreationTime"] = to_epoch(std::chrono::system_clock::now());
    if (!output_.empty()) {
      const std::string model = arguments["OutputDataConfig"]["S3OutputPath"].get<std::string>() +
                                name + "/output/model.tar.gz";
      objects_[model.substr(std::string("s3:/").size())] = {output_, etag_of(output_), {}};
      job.description["ModelArtifacts"] = {{"S3ModelArtifacts", model}};
      job.description["BillableTimeInSeconds"] = 50;
    }
    job.statuses = {
        {"InProgress", "Starting"}, {"InProgress", "Training"}, {"Completed", "Completed"}};
    return json_reply({{"TrainingJobArn", job.description["TrainingJobArn"]}});
  }
  if (operation == "ListTrainingJobs") {
    json summaries = json::array();
    const std::string from = arguments.value("NextToken", "");
    if (const int wanted = arguments.value("MaxResults", 10); wanted < 1 || wanted > 100)
      return json_error(400, "ValidationException", fmt::format("MaxResults is {}", wanted));
    const int most = std::min(arguments.value("MaxResults", 10), page.load());
    for (const auto& [key, job] : jobs_) {
      if (key <= from || key.find(arguments.value("NameContains", "")) == std::string::npos)
        continue;
      if (std::ssize(summaries) == most)
        return json_reply({{"TrainingJobSummaries", summaries},
                           {"NextToken", summaries.back()["TrainingJobName"]}});
      summaries.push_back({{"TrainingJobName", key},
                           {"TrainingJobStatus", job.statuses[job.at].first},
                           {"CreationTime", job.description["CreationTime"]}});
    }
    return json_reply({{"TrainingJobSummaries", summaries}});
  }
  const auto found = jobs_.find(name);
  if (found == jobs_.end() || found->second.description.is_null())
    return json_error(400, "ValidationException", "Requested resource not found.");
  Job& job = found->second;
  if (operation == "StopTrainingJob") {
    job.statuses = {{"Stopping", "Stopping"}, {"Stopped", "Stopped"}};
    job.at = 0;
    return {.headers = {{"x-amzn-RequestId", "req-1"}}};
  }
  if (operation != "DescribeTrainingJob")
    return json_error(400, "UnknownOperationException", operation);
  json description = job.description;
  description["TrainingJobStatus"] = job.statuses[job.at].first;
  description["SecondaryStatus"] = job.statuses[job.at].second;
  json transitions = json::array();
  for (std::size_t i = 0; i <= job.at; ++i)
    transitions.push_back({{"Status", job.statuses[i].second},
                           {"StatusMessage", "now " + job.statuses[i].second},
                           {"StartTime", 1.7e9 + static_cast<double>(i)}});
  description["SecondaryStatusTransitions"] = transitions;
  for (const auto& [status, message] : job.log_at)
    if (status == job.statuses[job.at].second)
      streams_[name + "/algo-1-1"].emplace_back(1'700'000'000'000, message);
  std::erase_if(job.log_at,
                [&](const auto& line) { return line.first == job.statuses[job.at].second; });
  if (job.at + 1 < job.statuses.size()) ++job.at;
  return json_reply(description);
}

ServedReply FakeAws::logs(const std::string& operation, const json& arguments) {
  if (streams_.empty())
    return json_error(400, "ResourceNotFoundException", "The specified log group does not exist.");
  const int limit = arguments.value("limit", 50);
  if (limit < 1 || limit > (operation == "DescribeLogStreams" ? 50 : 10'000))
    return json_error(400, "InvalidParameterException", fmt::format("limit is {}", limit));
  if (operation == "DescribeLogStreams") {
    const std::string prefix = arguments.value("logStreamNamePrefix", "");
    const std::string from = arguments.value("nextToken", "");
    json found = json::array();
    for (const auto& [name, events] : streams_) {
      if (!name.starts_with(prefix) || name <= from) continue;
      if (std::ssize(found) == std::min(arguments.value("limit", 50), page.load()))
        return json_reply({{"logStreams", found}, {"nextToken", found.back()["logStreamName"]}});
      found.push_back({{"logStreamName", name}});
    }
    return json_reply({{"logStreams", found}});
  }
  const auto& events = streams_.at(arguments.value("logStreamName", ""));
  // "f/INDEX", or "f/INDEX/e" before an empty page.
  const std::string token = arguments.value("nextToken", "f/0");
  const auto first = static_cast<std::size_t>(std::stoul(token.substr(2)));
  const bool was_empty = token.ends_with("/e");
  json page_events = json::array();
  std::string next = fmt::format("f/{}", first);
  if (empty_pages && !was_empty && first < events.size()) {
    next += "/e";
  } else {
    std::size_t at = first;
    for (; at < events.size() && std::ssize(page_events) < page; ++at)
      page_events.push_back({{"timestamp", events[at].first}, {"message", events[at].second}});
    next = fmt::format("f/{}", at);
    if (at == first && arguments.contains("nextToken")) next = token;
  }
  return json_reply({{"events", page_events}, {"nextForwardToken", next}});
}

}  // namespace shoal::test
