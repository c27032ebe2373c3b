#include "shoal/sagemaker/rest/http.h"

#include <algorithm>

#include "shoal/runtime/base/numbers.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::sagemaker {
namespace {

int default_port(std::string_view scheme) { return scheme == "http" ? 80 : 443; }

bool same_name(std::string_view a, std::string_view b) {
  return a.size() == b.size() && lower(a) == lower(b);
}

}  // namespace

std::string Url::authority() const {
  return port == 0 || port == default_port(scheme) ? host : fmt::format("{}:{}", host, port);
}

std::string Url::text() const {
  return fmt::format("{}://{}{}{}{}", scheme, authority(), path.empty() ? "/" : path,
                     query.empty() ? "" : "?", query);
}

Url parse_url(std::string_view text, std::string_view what) {
  const auto refuse = [&](std::string_view why) {
    throw Error(ErrorCode::invalid_argument, fmt::format("{}: '{}' {}", what, shortened(text), why),
                "write it as https://HOST[:PORT][/PATH]");
  };
  Url url;
  std::string_view rest = text;
  const std::size_t colon = rest.find("://");
  url.scheme = lower(rest.substr(0, colon == rest.npos ? 0 : colon));
  if (url.scheme != "http" && url.scheme != "https") refuse("is no http or https URL");
  rest.remove_prefix(colon + 3);
  for (const char c : rest)
    if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '\\')
      refuse("has a character that URLs do not have");
  if (rest.find('#') != rest.npos) refuse("has a fragment (#)");
  const std::size_t end = std::min(rest.find_first_of("/?"), rest.size());
  std::string_view authority = rest.substr(0, end);
  rest.remove_prefix(end);
  if (authority.find('@') != authority.npos) refuse("has a user name in it");
  const std::size_t bracket = authority.find(']');
  const std::size_t port = authority.find(':', bracket == authority.npos ? 0 : bracket);
  if (port != authority.npos) {
    const std::string_view digits = authority.substr(port + 1);
    const auto number = parse_number<int>(digits);
    if (!number || *number < 1 || *number > 65535) refuse("has no port from 1 to 65535 after ':'");
    url.port = *number;
  }
  url.host = lower(authority.substr(0, port));
  if (url.host.empty()) refuse("has no host");
  const std::size_t question = rest.find('?');
  if (question != 0 && !rest.empty()) url.path = rest.substr(0, question);
  if (question != rest.npos) url.query = rest.substr(question + 1);
  return url;
}

bool is_loopback(const Url& url) {
  return url.host == "localhost" || url.host == "[::1]" ||
         (url.host.starts_with("127.") &&
          url.host.find_first_not_of("0123456789.") == std::string::npos);
}

void add_query(Url& url, std::string_view name, std::string_view value) {
  if (!url.query.empty()) url.query += '&';
  url.query += percent_encode(name) + "=" + percent_encode(value);
}

const std::string* find_header(const Headers& headers, std::string_view name) {
  for (const auto& [key, value] : headers)
    if (same_name(key, name)) return &value;
  return nullptr;
}

void set_header(Headers& headers, std::string_view name, std::string value) {
  remove_header(headers, name);
  headers.emplace_back(name, std::move(value));
}

void remove_header(Headers& headers, std::string_view name) {
  std::erase_if(headers, [&](const auto& header) { return same_name(header.first, name); });
}

}  // namespace shoal::sagemaker
