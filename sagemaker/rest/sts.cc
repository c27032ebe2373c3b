#include "shoal/sagemaker/rest/sts.h"

#include <pugixml.hpp>

namespace shoal::sagemaker {
namespace {

using Form = std::vector<std::pair<std::string_view, std::string>>;

// Calls an operation of the query protocol: form in, XML out. Returns <OperationResult>.
pugi::xml_node call(const ServiceClient& sts, const std::string& operation, const Form& form,
                    pugi::xml_document& document) {
  std::string body = "Action=" + operation + "&Version=2011-06-15";
  for (const auto& [name, value] : form) body += fmt::format("&{}={}", name, percent_encode(value));
  HttpRequest request;
  request.method = "POST";
  request.url = sts.endpoint().url;
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded; charset=utf-8"}};
  request.body = body;
  const HttpResponse response = sts.send(std::move(request), {.operation = operation});
  const auto parsed = document.load_buffer(response.body.data(), response.body.size());
  const pugi::xml_node result = document.document_element().child((operation + "Result").c_str());
  if (!parsed || !result)
    throw_error(ErrorCode::corrupt_data, "STS {}: the answer has no {}Result ({} bytes)", operation,
                operation, response.body.size());
  return result;
}

}  // namespace

Credentials assume_role(const ServiceClient& sts, const AssumeRole& arguments) {
  SHOAL_CHECK(arguments.duration_seconds >= 900 && arguments.duration_seconds <= 43200,
              "duration_seconds of the role {} is {}; it must be 900 to 43200", arguments.role_arn,
              arguments.duration_seconds);
  const bool web = !arguments.web_identity_token.empty();
  Form form = {{"RoleArn", arguments.role_arn},
               {"RoleSessionName", arguments.session_name},
               {"DurationSeconds", fmt::format("{}", arguments.duration_seconds)}};
  if (!arguments.external_id.empty()) form.emplace_back("ExternalId", arguments.external_id);
  if (web) form.emplace_back("WebIdentityToken", arguments.web_identity_token.reveal());
  pugi::xml_document document;
  const std::string operation = web ? "AssumeRoleWithWebIdentity" : "AssumeRole";
  const pugi::xml_node keys = call(sts, operation, form, document).child("Credentials");
  Credentials credentials{.access_key = keys.child_value("AccessKeyId"),
                          .secret_key = Secret(keys.child_value("SecretAccessKey")),
                          .session_token = Secret(keys.child_value("SessionToken")),
                          .expires = parse_time(keys.child_value("Expiration")),
                          .source = "role " + arguments.role_arn};
  if (credentials.access_key.empty() || credentials.secret_key.empty() || !credentials.expires)
    throw_error(ErrorCode::corrupt_data, "STS {}: the answer has no keys with an expiry",
                operation);
  return credentials;
}

}  // namespace shoal::sagemaker
