// Requests, responses, and the transport interface.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/runtime/base/deadlines.h"
#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {

// The parts of a URL, percent-encoded as sent.
struct Url {
  std::string scheme = "https";
  std::string host = {};  // lower case; an IPv6 address in brackets
  int port = 0;           // 0: the scheme's default
  std::string path = "/";
  std::string query = {};  // without '?'

  std::string authority() const;  // the Host header: without the scheme's default port
  std::string text() const;
};
// Parses an http or https URL. Throws invalid_argument, naming `what` ("AWS_ENDPOINT_URL"), if it
// is invalid, or has a user or a fragment.
Url parse_url(std::string_view text, std::string_view what);
bool is_loopback(const Url& url);  // localhost, 127.*, [::1]
// Appends NAME=VALUE, percent-encoded, after '&' if needed.
void add_query(Url& url, std::string_view name, std::string_view value);

using Headers = std::vector<std::pair<std::string, std::string>>;
// The first header of that name, ignoring case; null if none.
const std::string* find_header(const Headers& headers, std::string_view name);
void set_header(Headers& headers, std::string_view name, std::string value);
void remove_header(Headers& headers, std::string_view name);

struct HttpRequest {
  std::string method = "GET";
  Url url = {};
  Headers headers = {};
  std::string_view body = {};  // owned by the caller until send() returns
  // Buffer for the body of a 206 response. A longer body is an error.
  std::span<std::byte> into = {};
  bool allow_plain = false;  // false: http:// is an error
  bool direct = false;       // bypasses proxies, for metadata services
  bool once = false;         // the transport must not resend it on another connection
  double seconds = 0;        // total timeout; 0: only the transport's own limits
};

struct HttpResponse {
  int status = 0;
  Headers headers = {};
  std::string body = {};
  std::size_t filled = 0;  // bytes written to `into`
};

// No complete response arrived.
class TransportError : public Error {
 public:
  // may_have_arrived: the service may have executed the request. retriable: another attempt may
  // succeed (false, for example, for an invalid certificate).
  TransportError(std::string message, std::string remedy, bool may_have_arrived, bool retriable)
      : Error(ErrorCode::io, std::move(message), std::move(remedy)),
        may_have_arrived_(may_have_arrived),
        retriable_(retriable) {}
  bool may_have_arrived() const { return may_have_arrived_; }
  bool retriable() const { return retriable_; }

 private:
  bool may_have_arrived_, retriable_;
};

// Sends exactly the given headers and path, and does not follow redirects. Blocks; thread-safe.
// Returns the response for any status; without a complete response, throws TransportError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual HttpResponse send(const HttpRequest& request) = 0;
};

struct CurlOptions {
  double connect_seconds = deadlines::kAwsConnect;
  double stall_seconds = deadlines::kAwsStall;  // rounded up to whole seconds
  std::string ca_bundle = {};                   // file of certificates; empty: the system's
  std::size_t max_body = 64UL << 20U;  // limit of a body that does not go to `into`, in bytes
};
// libcurl, keeping connections for later requests. Takes proxies from https_proxy and no_proxy.
// Logs each request at debug level: method, URL without query, status, milliseconds; never headers
// or bodies.
std::shared_ptr<Transport> make_curl_transport(CurlOptions options = {});

}  // namespace shoal::sagemaker
