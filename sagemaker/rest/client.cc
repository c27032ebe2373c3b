#include "shoal/sagemaker/rest/client.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include <nlohmann/json.hpp>

#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/io/json.h"
#include "shoal/sagemaker/rest/signer.h"

namespace shoal::sagemaker {
namespace {

// Services refuse signatures that are off by 5 minutes; S3 tolerates 15.
constexpr std::chrono::minutes kBearableSkew{4};

std::string_view display_name(Service service) {
  switch (service) {
    case Service::sagemaker:
      return "SageMaker";
    case Service::logs:
      return "CloudWatch Logs";
    case Service::s3:
      return "S3";
    case Service::sts:
      return "STS";
  }
  return "";
}

std::optional<double> seconds_in(const HttpResponse* response, std::string_view header,
                                 double unit) {
  const std::string* text = response != nullptr ? find_header(response->headers, header) : nullptr;
  if (text == nullptr) return std::nullopt;
  const auto value = parse_number<double>(*text);
  if (!value || !(*value >= 0)) return std::nullopt;
  return *value * unit;
}

}  // namespace

double RetryOptions::delay(int next, const HttpResponse* response) const {
  double drawn = 0;
  if (random) {
    drawn = random();
  } else {
    std::random_device device;
    drawn = std::uniform_real_distribution<double>(0, 1)(device);
  }
  const double own = drawn * std::min(std::ldexp(1.0, std::clamp(next - 2, 0, 30)), longest_delay);
  auto asked = seconds_in(response, "x-amz-retry-after", 1e-3);
  if (!asked) asked = seconds_in(response, "retry-after", 1);
  return std::max(own, std::min(asked.value_or(0), longest_delay));
}

void RetryOptions::wait(int next, const HttpResponse* response) const {
  const double seconds = delay(next, response);
  if (sleep)
    sleep(seconds);
  else
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

bool may_have_been_done(const Error& error) {
  if (const auto* broken = dynamic_cast<const TransportError*>(&error))
    return broken->may_have_arrived();
  if (const auto* refused = dynamic_cast<const ServiceError*>(&error))
    return refused->is_transient() && !refused->is_throttling();
  return false;
}

ServiceClient::ServiceClient(Wire wire, Endpoint endpoint)
    : wire_(std::move(wire)), endpoint_(std::move(endpoint)) {}

Moment ServiceClient::now() const {
  return wire_.now() + std::chrono::duration_cast<Moment::duration>(
                           std::chrono::duration<double>(wire_.skew->load()));
}

std::string ServiceClient::name(std::string_view operation) const {
  return fmt::format("{} {}", display_name(endpoint_.service), operation);
}

HttpResponse ServiceClient::send(HttpRequest request, const Call& call) const {
  request.allow_plain = endpoint_.given;
  request.once = !call.repeatable;
  const int attempts = std::max(call.attempts > 0 ? call.attempts : wire_.retry.attempts, 1);
  bool renewed = false, corrected = false;  // at most once per call
  for (int attempt = 1;; ++attempt) {
    std::optional<Credentials> credentials;
    if (wire_.credentials) {
      credentials = wire_.credentials->get();
      sign(request, *credentials,
           {.region = endpoint_.region,
            .service = std::string(signing_name(endpoint_.service)),
            .time = now(),
            .s3 = endpoint_.service == Service::s3});
    }
    HttpResponse response;
    try {
      response = wire_.transport->send(request);
    } catch (const TransportError& error) {
      const bool again = error.retriable() && (call.repeatable || !error.may_have_arrived());
      if (!again || attempt >= attempts)
        throw TransportError(name(call.operation) + ": " + error.message(), error.remedy(),
                             error.may_have_arrived(), error.retriable());
      log::debug("{}: {}; attempt {} of {} follows", name(call.operation), error.message(),
                 attempt + 1, attempts);
      wire_.retry.wait(attempt + 1, nullptr);
      continue;
    }
    const bool good = response.status >= 200 && response.status < 300;
    if (good && !(call.is_error && call.is_error(response))) return response;
    const ServiceError error = service_error(response, name(call.operation),
                                             credentials ? credentials->source : std::string());
    // Refusals of a HEAD have no body: S3 sends 400 for an expired token, 403 for a wrong time.
    if (!renewed && credentials &&
        (error.is_expired_token() || (error.is_silent() && response.status == 400))) {
      renewed = true;
      if (wire_.credentials->renew(*credentials)) continue;
    }
    const std::string* date = find_header(response.headers, "date");
    if (const auto theirs = date != nullptr ? parse_http_date(*date) : std::nullopt;
        !corrected && theirs &&
        (error.is_clock_skew() || (error.is_silent() && response.status == 403 &&
                                   std::chrono::abs(*theirs - now()) > kBearableSkew))) {
      corrected = true;
      const double skew = std::chrono::duration<double>(*theirs - wire_.now()).count();
      wire_.skew->store(skew);
      log::once(log::Level::warn, "clock skew",
                fmt::format("this machine's clock is {:.0f} s {} {}'s; requests are signed with "
                            "the service's time",
                            std::abs(skew), skew > 0 ? "behind" : "ahead of",
                            display_name(endpoint_.service)));
      continue;
    }
    const bool again = error.is_throttling() || (call.repeatable && (good || error.is_transient()));
    if (!again || attempt >= attempts) throw error;
    log::debug("{}; attempt {} of {} follows", error.message(), attempt + 1, attempts);
    wire_.retry.wait(attempt + 1, &response);
  }
}

nlohmann::json ServiceClient::call_json(std::string_view target, std::string_view operation,
                                        const nlohmann::json& arguments, bool repeatable) const {
  const std::string body = arguments.dump();
  HttpRequest request;
  request.method = "POST";
  request.url = endpoint_.url;
  request.headers = {{"Content-Type", "application/x-amz-json-1.1"},
                     {"X-Amz-Target", fmt::format("{}.{}", target, operation)}};
  request.body = body;
  const Call call{.operation = std::string(operation), .repeatable = repeatable};
  const HttpResponse response = send(std::move(request), call);
  if (response.body.empty()) return nlohmann::json::object();
  nlohmann::json answer = parse_json(response.body, name(operation) + "'s answer");
  if (!answer.is_object())
    throw_error(ErrorCode::corrupt_data, "{}: the answer is no JSON object", name(operation));
  return answer;
}

std::string text_at(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace shoal::sagemaker
