#include "shoal/sagemaker/job/secrets.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "shoal/runtime/io/json_fields.h"

namespace shoal::sagemaker {
namespace {

// True if a word NAME=VALUE has a secret's name: "-x HF_TOKEN=..." in mpirun's options, nested
// (--env=HF_TOKEN=...), or in a URL's query.
bool assigns_secret(std::string_view text) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find_first_of(" \t\n,;\"'&?"));
    text.remove_prefix(std::min(text.size(), word.size() + 1));
    for (auto equals = word.find('='); equals != word.npos; equals = word.find('=', equals + 1))
      if (is_name_of_secret(word.substr(0, equals))) return true;
  }
  return false;
}

}  // namespace

bool is_name_of_secret(std::string_view name) {
  std::string upper(name);
  for (char& c : upper)
    c = c == '-' || c == '.' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return std::ranges::any_of(
      std::array{"PASSWORD", "PASSWD", "PASSPHRASE", "_PWD", "_PASS", "SECRET", "TOKEN", "API_KEY",
                 "APIKEY", "ACCESS_KEY", "ACCESSKEY", "SECRET_KEY", "SECRETKEY", "PRIVATE_KEY",
                 "PRIVATEKEY", "CREDENTIAL", "CREDENTIALS"},
      [&](const char* end) { return upper.ends_with(end); });
}

bool has_password(std::string_view url) {
  for (auto at = url.find("://"); at != url.npos; at = url.find("://", at)) {
    at += 3;
    const std::string_view authority =
        url.substr(at, std::min(url.size(), url.find_first_of("/?# \"", at)) - at);
    const auto user = authority.rfind('@');
    if (user != authority.npos && authority.substr(0, user).find(':') != authority.npos)
      return true;
  }
  return false;
}

bool holds_secret(std::string_view name, std::string_view text) {
  return is_name_of_secret(name) || has_password(text) || assigns_secret(text);
}

bool is_aws_key(std::string_view variable) {
  return variable == "AWS_ACCESS_KEY_ID" || variable == "AWS_SECRET_ACCESS_KEY" ||
         variable == "AWS_SESSION_TOKEN" || variable == "AWS_SECURITY_TOKEN";
}

Json without_secrets(Json request) {
  for (const char* group : {"Environment", "HyperParameters"})
    if (const auto found = request.find(group); found != request.end())
      for (auto& [name, value] : found->items())
        if (holds_secret(name, value.get_ref<const std::string&>())) value = "***";
  if (const auto tags = request.find("Tags"); tags != request.end())
    for (Json& tag : *tags)
      if (is_name_of_secret(field_or(tag, "Key", std::string(), "the job's tags")))
        tag["Value"] = "***";
  return request;
}

}  // namespace shoal::sagemaker
