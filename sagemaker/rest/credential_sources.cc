// The sources of make_credential_chain(), in AWS's order.
#include <array>
#include <cstdio>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/wait.h>

#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/rest/credentials.h"
#include "shoal/sagemaker/rest/profile.h"
#include "shoal/sagemaker/rest/sts.h"

namespace shoal::sagemaker {
namespace {

// Inputs shared by all sources.
struct Chain {
  Environment environment;
  std::shared_ptr<Transport> transport;
  ChainOptions options;

  std::optional<Credentials> from_environment() const;
  std::optional<Credentials> from_role_profile() const;
  std::optional<Credentials> from_web_identity() const;
  std::optional<Credentials> from_profile() const;
  std::optional<Credentials> from_container() const;
  std::optional<Credentials> from_metadata() const;

 private:
  Credentials role_of(const SharedConfig& shared, const std::string& profile,
                      std::set<std::string>& seen) const;
  Credentials source_of(const SharedConfig& shared, const std::string& profile,
                        std::set<std::string>& seen) const;
  std::optional<Credentials> keys_of(const SharedConfig& shared, const std::string& profile) const;
  Credentials assume(const AssumeRole& arguments, std::optional<Credentials> with) const;
  std::string session_name(const std::optional<std::string>& given) const;
  HttpResponse ask(HttpRequest request, int attempts) const;
  std::string name() const { return profile_name(options.profile, environment); }
};

// Parses the JSON of processes, containers and instances. Errors never quote the text, since it
// contains the secret even if it is malformed.
Credentials parse_keys(const std::string& text, const char* token, const std::string& source) {
  nlohmann::json object;
  try {
    object = parse_json(text, source);
  } catch (const Error&) {
    object = nullptr;
  }
  const auto text_of = [&](const char* key) -> std::string {
    const auto found = object.find(key);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  };
  if (!object.is_object())
    throw_error(ErrorCode::corrupt_data, "AWS credentials of {}: {} bytes that are no JSON object",
                source, text.size());
  Credentials credentials{.access_key = text_of("AccessKeyId"),
                          .secret_key = Secret(text_of("SecretAccessKey")),
                          .session_token = Secret(text_of(token)),
                          .expires = parse_time(text_of("Expiration")),
                          .source = source};
  if (credentials.access_key.empty() || credentials.secret_key.empty())
    throw_error(ErrorCode::corrupt_data,
                "AWS credentials of {}: no AccessKeyId and SecretAccessKey", source);
  // An unreadable expiry must be an error. Otherwise the keys would be used until a service refuses
  // them.
  if (find_field(object, "Expiration") != nullptr && !credentials.expires)
    throw_error(ErrorCode::corrupt_data,
                "AWS credentials of {}: Expiration is no time like 2030-01-31T12:00:00Z", source);
  return credentials;
}

std::string read_token(const std::string& path) {
  const std::string text = read_text_file(path, 1 << 20);
  return std::string(trim(text));
}

std::string output_of(const std::string& command, const std::string& source) {
  std::FILE* pipe = ::popen(command.c_str(), "re");
  if (pipe == nullptr)
    throw_error(ErrorCode::io, "AWS credentials of {}: the process cannot be started", source);
  std::string text;
  std::array<char, 4096> block{};
  while (const std::size_t count = std::fread(block.data(), 1, block.size(), pipe)) {
    text.append(block.data(), count);
    if (text.size() > (1U << 20U)) break;
  }
  const int status = ::pclose(pipe);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    throw Error(
        ErrorCode::io,
        fmt::format("AWS credentials of {}: credential_process ended with {}", source,
                    WIFEXITED(status) ? fmt::format("status {}", WEXITSTATUS(status)) : "a signal"),
        "run it by hand to see why");
  return text;
}

[[noreturn]] void refuse(const std::string& source, int status) {
  throw CredentialsError(ErrorCode::io,
                         fmt::format("AWS credentials of {}: HTTP {}", source, status), {},
                         /*may_pass=*/status >= 500 || status == 429);
}

std::optional<Credentials> Chain::from_environment() const {
  const auto key = environment("AWS_ACCESS_KEY_ID");
  const auto secret = environment("AWS_SECRET_ACCESS_KEY");
  if (!key && !secret) return std::nullopt;
  SHOAL_CHECK(key && secret, "of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only {} is set",
              key ? "the first" : "the second");
  return Credentials{.access_key = *key,
                     .secret_key = Secret(*secret),
                     .session_token = Secret(environment("AWS_SESSION_TOKEN").value_or("")),
                     .source = "environment"};
}

std::string Chain::session_name(const std::optional<std::string>& given) const {
  if (given) return *given;
  return fmt::format("shoal-{:.0f}", to_epoch(options.now()));
}

Credentials Chain::assume(const AssumeRole& arguments, std::optional<Credentials> with) const {
  Wire wire{.transport = transport, .credentials = nullptr, .now = options.now};
  wire.retry.sleep = options.sleep;
  if (with) wire.credentials = std::make_shared<CredentialProvider>(*std::move(with));
  const ServiceClient sts(wire, resolve_endpoint(Service::sts, {.region = options.region,
                                                                .url = options.sts_endpoint_url}));
  return assume_role(sts, arguments);
}

// Assumes a profile's role; `seen` holds the profiles visited so far.
Credentials Chain::role_of(const SharedConfig& shared, const std::string& profile,
                           std::set<std::string>& seen) const {
  if (!seen.insert(profile).second)
    throw_error(ErrorCode::invalid_argument, "profile {}: its source_profile leads back to it",
                profile);
  if (shared.get(profile, "mfa_serial"))
    throw Error(ErrorCode::unavailable,
                fmt::format("profile {}: its role wants a code of mfa_serial, which is not asked "
                            "for here",
                            profile),
                "take temporary keys (aws sts assume-role) into the environment");
  AssumeRole arguments{.role_arn = *shared.get(profile, "role_arn"),
                       .session_name = session_name(shared.get(profile, "role_session_name")),
                       .external_id = shared.get(profile, "external_id").value_or("")};
  if (const auto seconds = shared.get(profile, "duration_seconds")) {
    const auto number = parse_number<int>(*seconds);
    SHOAL_CHECK(number && *number >= 0 && *number <= 99'999,
                "profile {}: duration_seconds is '{}'; it must be 900 to 43200", profile, *seconds);
    arguments.duration_seconds = *number;
  }
  if (const auto file = shared.get(profile, "web_identity_token_file")) {
    arguments.web_identity_token = Secret(read_token(*file));
    return assume(arguments, std::nullopt);
  }
  Credentials credentials = assume(arguments, source_of(shared, profile, seen));
  credentials.source = fmt::format("profile {}, {}", profile, credentials.source);
  return credentials;
}

// The keys with which a profile's role is assumed.
Credentials Chain::source_of(const SharedConfig& shared, const std::string& profile,
                             std::set<std::string>& seen) const {
  const auto from = shared.get(profile, "source_profile");
  const auto place = shared.get(profile, "credential_source");
  SHOAL_CHECK(from.has_value() != place.has_value(),
              "profile {}: a role needs one of source_profile and credential_source", profile);
  std::optional<Credentials> found;
  if (place) {
    if (*place == "Environment") found = from_environment();
    if (*place == "EcsContainer") found = from_container();
    if (*place == "Ec2InstanceMetadata") found = from_metadata();
  } else {
    if (!shared.has_profile(*from))
      throw_error(ErrorCode::not_found, "profile {}: there is no source_profile {}", profile,
                  *from);
    // A source's own keys have priority over its role, so a profile may be its own source.
    const bool has_keys = shared.get(*from, "aws_access_key_id").has_value();
    if (*from != profile && !has_keys && shared.get(*from, "role_arn"))
      return role_of(shared, *from, seen);
    found = keys_of(shared, *from);
  }
  if (!found)
    throw_error(ErrorCode::not_found, "profile {}: {} gives no keys to assume its role with",
                profile, place ? "credential_source " + *place : "source_profile " + *from);
  return *std::move(found);
}

std::optional<Credentials> Chain::keys_of(const SharedConfig& shared,
                                          const std::string& profile) const {
  const std::string source = "profile " + profile;
  const auto key = shared.get(profile, "aws_access_key_id");
  const auto secret = shared.get(profile, "aws_secret_access_key");
  if (key || secret) {
    SHOAL_CHECK(key && secret, "{}: of aws_access_key_id and aws_secret_access_key only {} is set",
                source, key ? "the first" : "the second");
    return Credentials{
        .access_key = *key,
        .secret_key = Secret(*secret),
        .session_token = Secret(
            shared.get_beside(profile, "aws_access_key_id", "aws_session_token").value_or("")),
        .source = source};
  }
  if (const auto command = shared.get(profile, "credential_process"))
    return parse_keys(output_of(*command, source), "SessionToken", source);
  if (shared.get(profile, "sso_session") || shared.get(profile, "sso_start_url"))
    throw Error(
        ErrorCode::unavailable, source + " signs in by SSO, which is done elsewhere",
        fmt::format("run `aws sso login --profile {0}`, then let the process `aws configure "
                    "export-credentials --profile {0}` be another profile's "
                    "credential_process",
                    profile));
  return std::nullopt;
}

std::optional<Credentials> Chain::from_role_profile() const {
  const SharedConfig shared = SharedConfig::load(environment);
  const std::string profile = name();
  if (!shared.has_profile(profile)) {
    if (profile == "default") return std::nullopt;
    throw Error(ErrorCode::not_found, fmt::format("there is no AWS profile '{}'", profile),
                "~/.aws/config (AWS_CONFIG_FILE) and ~/.aws/credentials hold them");
  }
  if (!shared.get(profile, "role_arn")) return std::nullopt;
  std::set<std::string> seen;
  return role_of(shared, profile, seen);
}

std::optional<Credentials> Chain::from_web_identity() const {
  const auto file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = environment("AWS_ROLE_ARN");
  if (!file || !role || options.profile) return std::nullopt;
  return assume({.role_arn = *role,
                 .session_name = session_name(environment("AWS_ROLE_SESSION_NAME")),
                 .web_identity_token = Secret(read_token(*file))},
                std::nullopt);
}

std::optional<Credentials> Chain::from_profile() const {
  return keys_of(SharedConfig::load(environment), name());
}

// Queries metadata services: short timeouts, no proxy.
HttpResponse Chain::ask(HttpRequest request, int attempts) const {
  request.allow_plain = request.direct = true;
  RetryOptions retry{.sleep = options.sleep};
  for (int attempt = 1;; ++attempt) {
    const bool last = attempt >= attempts;
    try {
      HttpResponse response = transport->send(request);
      if (last || (response.status < 500 && response.status != 429)) return response;
    } catch (const TransportError& error) {
      if (last || !error.retriable()) throw;
    }
    retry.wait(attempt + 1, nullptr);
  }
}

std::optional<Credentials> Chain::from_container() const {
  const auto relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const auto full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (!relative && !full) return std::nullopt;
  HttpRequest request;
  request.seconds = 2;
  if (relative) {
    SHOAL_CHECK(relative->starts_with('/'),
                "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI is '{}'; it must begin with '/'",
                *relative);
    request.url =
        parse_url(options.container_host + *relative, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  } else {
    request.url = parse_url(*full, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
    const std::string& host = request.url.host;
    if (request.url.scheme != "https" && !is_loopback(request.url) && host != "169.254.170.2" &&
        host != "169.254.170.23" && host != "[fd00:ec2::23]")
      throw_error(ErrorCode::invalid_argument,
                  "AWS_CONTAINER_CREDENTIALS_FULL_URI: {} is neither https nor this machine", host);
  }
  request.headers = {{"Accept", "application/json"}};
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  if (const auto file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"))
    token = read_token(*file);
  SHOAL_CHECK(token.find_first_of("\r\n") == token.npos,
              "the container's authorization token has more than one line");
  if (!token.empty()) request.headers.emplace_back("Authorization", token);
  const HttpResponse response = ask(std::move(request), 3);
  if (response.status != 200) refuse("the container", response.status);
  return parse_keys(response.body, "Token", "container");
}

std::optional<Credentials> Chain::from_metadata() const {
  if (is_true(environment, "AWS_EC2_METADATA_DISABLED")) return std::nullopt;
  const auto mode = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE");
  const std::string host = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT")
                               .value_or(mode && lower(*mode) == "ipv6" ? "http://[fd00:ec2::254]"
                                                                        : "http://169.254.169.254");
  HttpRequest request;
  request.url = parse_url(host, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (request.url.path == "/") request.url.path.clear();
  const std::string prefix = request.url.path;
  request.method = "PUT";
  request.url.path = prefix + "/latest/api/token";
  request.headers = {{"X-aws-ec2-metadata-token-ttl-seconds", "21600"}};
  request.seconds = 1;
  HttpResponse token;
  try {
    token = ask(request, 1);
  } catch (const TransportError& error) {
    log::debug("no instance metadata: {}", error.message());
    return std::nullopt;  // this machine is not an EC2 instance
  }
  if (token.status >= 500 || token.status == 429) refuse("the instance", token.status);
  if (token.status != 200) return std::nullopt;
  request.method = "GET";
  request.headers = {{"X-aws-ec2-metadata-token", std::string(trim(token.body))}};
  const auto get = [&](const std::string& path) {
    request.url.path = prefix + path;
    return ask(request, 3);
  };
  const std::string base = "/latest/meta-data/iam/security-credentials/";
  const HttpResponse roles = get(base);
  if (roles.status == 404) return std::nullopt;  // an instance without a role
  const std::string role(trim(std::string_view(roles.body).substr(0, roles.body.find('\n'))));
  const HttpResponse keys = get(base + percent_encode(role));
  if (roles.status != 200 || keys.status != 200)
    refuse("the instance", roles.status != 200 ? roles.status : keys.status);
  return parse_keys(keys.body, "Token", "instance role " + role);
}

}  // namespace

std::shared_ptr<CredentialProvider> make_credential_chain(Environment environment,
                                                          std::shared_ptr<Transport> transport,
                                                          ChainOptions options) {
  auto chain = std::make_shared<const Chain>(
      Chain{std::move(environment), std::move(transport), std::move(options)});
  std::vector<CredentialSource> sources;
  if (!chain->options.profile) sources.emplace_back([chain] { return chain->from_environment(); });
  sources.emplace_back([chain] { return chain->from_role_profile(); });
  sources.emplace_back([chain] { return chain->from_web_identity(); });
  sources.emplace_back([chain] { return chain->from_profile(); });
  sources.emplace_back([chain] { return chain->from_container(); });
  sources.emplace_back([chain] { return chain->from_metadata(); });
  return std::make_shared<CredentialProvider>(std::move(sources), chain->options.now);
}

}  // namespace shoal::sagemaker
