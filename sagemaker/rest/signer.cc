#include "shoal/sagemaker/rest/signer.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include <openssl/crypto.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/digest.h"

namespace shoal::sagemaker {
namespace {

// Not signed, since proxies and libcurl may change them.
constexpr std::array<std::string_view, 12> kNotSigned = {"authorization",
                                                         "connection",
                                                         "expect",
                                                         "keep-alive",
                                                         "proxy-authenticate",
                                                         "proxy-authorization",
                                                         "te",
                                                         "trailer",
                                                         "transfer-encoding",
                                                         "upgrade",
                                                         "user-agent",
                                                         "x-amzn-trace-id"};

std::string one_space(std::string_view value) {
  std::string result;
  for (const char c : trim(value)) {
    const bool blank = c == ' ' || c == '\t' || c == '\r' || c == '\n';
    if (!blank)
      result += c;
    else if (!result.ends_with(' '))
      result += ' ';
  }
  return result;
}

// Signed headers: lower-case name to value; repeated names are joined in order.
std::map<std::string, std::string> signed_headers(const HttpRequest& request) {
  std::map<std::string, std::string> headers;
  for (const auto& [key, value] : request.headers) {
    const std::string name = lower(trim(key));
    if (std::find(kNotSigned.begin(), kNotSigned.end(), name) != kNotSigned.end()) continue;
    const auto [at, is_new] = headers.emplace(name, one_space(value));
    if (!is_new) (at->second += ',') += one_space(value);
  }
  headers.emplace("host", request.url.authority());
  return headers;
}

std::string names_of(const std::map<std::string, std::string>& headers) {
  std::string names;
  for (const auto& [name, value] : headers) names += (names.empty() ? "" : ";") + name;
  return names;
}

// RFC 3986, 5.2.4; also removes empty parts.
std::string without_dots(std::string_view path) {
  std::vector<std::string_view> parts;
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t end = std::min(rest.find('/'), rest.size());
    const std::string_view part = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (!part.empty() && part != ".") {
      parts.push_back(part);
    }
  }
  std::string normal;
  for (const std::string_view part : parts) (normal += '/') += part;
  const bool is_folder = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
  if (normal.empty() || is_folder) normal += '/';
  return normal;
}

std::string canonical_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> pairs;
  while (!query.empty()) {
    const std::size_t end = std::min(query.find('&'), query.size());
    const std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    const std::size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view value = pair.substr(std::min(equals + 1, pair.size()));
    pairs.emplace_back(percent_encode(percent_decode(pair.substr(0, equals))),
                       percent_encode(percent_decode(value)));
  }
  std::sort(pairs.begin(), pairs.end());
  std::string text;
  for (const auto& [name, value] : pairs) (text += text.empty() ? "" : "&") += name + "=" + value;
  return text;
}

std::string scope_of(const Signing& signing) {
  return fmt::format("{}/{}/{}/aws4_request", basic_time(signing.time).substr(0, 8), signing.region,
                     signing.service);
}

std::string signature(const Credentials& credentials, const Signing& signing,
                      std::string_view text) {
  std::string first = "AWS4" + credentials.secret_key.reveal();
  std::string key = hmac_sha256(first, basic_time(signing.time).substr(0, 8));
  OPENSSL_cleanse(first.data(), first.size());
  for (const std::string_view part :
       {std::string_view(signing.region), std::string_view(signing.service),
        std::string_view("aws4_request")})
    key = hmac_sha256(key, part);
  return hex(hmac_sha256(key, text));
}

}  // namespace

std::string canonical_request(const HttpRequest& request, const Signing& signing,
                              std::string_view payload_hash) {
  const std::string path = request.url.path.empty() ? "/" : request.url.path;
  const auto headers = signed_headers(request);
  std::string text = request.method + "\n";
  text += signing.s3 ? path : percent_encode(without_dots(path), true);
  text += fmt::format("\n{}\n", canonical_query(request.url.query));
  for (const auto& [name, value] : headers) text += name + ":" + value + "\n";
  return text + "\n" + names_of(headers) + "\n" + std::string(payload_hash);
}

std::string string_to_sign(const Signing& signing, std::string_view canonical) {
  return fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", basic_time(signing.time), scope_of(signing),
                     sha256_hex(canonical));
}

void sign(HttpRequest& request, const Credentials& credentials, const Signing& signing) {
  const std::string payload_hash = sha256_hex(request.body);
  remove_header(request.headers, "Authorization");
  set_header(request.headers, "X-Amz-Date", basic_time(signing.time));
  remove_header(request.headers, "X-Amz-Security-Token");
  if (!credentials.session_token.empty())
    set_header(request.headers, "X-Amz-Security-Token", credentials.session_token.reveal());
  if (signing.s3) set_header(request.headers, "X-Amz-Content-Sha256", payload_hash);
  const std::string text =
      string_to_sign(signing, canonical_request(request, signing, payload_hash));
  set_header(request.headers, "Authorization",
             fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}",
                         credentials.access_key, scope_of(signing),
                         names_of(signed_headers(request)), signature(credentials, signing, text)));
}

}  // namespace shoal::sagemaker
