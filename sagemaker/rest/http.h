// Requests and responses, and the seam behind which they travel.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shoal/runtime/base/error.h"

namespace shoal::sagemaker {

// A URL in parts, each as it goes over the wire (percent-encoded).
struct Url {
  std::string scheme = "https";
  std::string host = {};  // lower case; an IPv6 address in brackets
  int port = 0;           // 0: the scheme's
  std::string path = "/";
  std::string query = {};  // without '?'

  std::string authority() const;  // what the Host header says: no port where it is the scheme's
  std::string text() const;
};
// http and https; invalid_argument with `what` ("AWS_ENDPOINT_URL") where it is none, has a user or
// a fragment.
Url parse_url(std::string_view text, std::string_view what);
bool is_loopback(const Url& url);  // localhost, 127.*, [::1]
// Name and value percent-encoded, with '&' or '=' between.
void add_query(Url& url, std::string_view name, std::string_view value);

using Headers = std::vector<std::pair<std::string, std::string>>;
// The first of that name, in any case; null without one.
const std::string* find_header(const Headers& headers, std::string_view name);
void set_header(Headers& headers, std::string_view name, std::string value);
void remove_header(Headers& headers, std::string_view name);

struct HttpRequest {
  std::string method = "GET";
  Url url = {};
  Headers headers = {};
  std::string_view body = {};  // owned by the caller until send() returns
  // Where the body of a 206 goes, instead of into the response. One that is longer is an error.
  std::span<std::byte> into = {};
  bool allow_plain = false;  // http:// is an error without it
  bool direct = false;       // by no proxy: metadata services
  bool once = false;         // never sent again by the transport itself, on another connection
  double seconds = 0;        // for all of it; 0: only the transport's own limits
};

struct HttpResponse {
  int status = 0;
  Headers headers = {};
  std::string body = {};
  std::size_t filled = 0;  // bytes written to `into`
};

// No whole response arrived.
class TransportError : public Error {
 public:
  // may_have_arrived: the service may have done what was asked. retriable: another try may succeed
  // (not so for a certificate that does not verify).
  TransportError(std::string message, std::string remedy, bool may_have_arrived, bool retriable)
      : Error(ErrorCode::io, std::move(message), std::move(remedy)),
        may_have_arrived_(may_have_arrived),
        retriable_(retriable) {}
  bool may_have_arrived() const { return may_have_arrived_; }
  bool retriable() const { return retriable_; }

 private:
  bool may_have_arrived_, retriable_;
};

// Sends exactly the headers and the path it is given, follows no redirect, blocks. Calls may be
// made from any thread at once. Any status is a response; throws TransportError.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual HttpResponse send(const HttpRequest& request) = 0;
};

struct CurlOptions {
  double connect_seconds = 10;
  double stall_seconds = 60;           // no byte for so long ends a request; whole seconds
  std::string ca_bundle = {};          // a file of certificates; empty: the system's
  std::size_t max_body = 64UL << 20U;  // bytes of a body that is not `into`
};
// libcurl, with connections kept for later requests. Proxies come from the variables that every
// program reads (https_proxy, no_proxy). Logs each request at debug level: method, URL without
// its query, status, milliseconds; never a header or a body.
std::shared_ptr<Transport> make_curl_transport(CurlOptions options = {});

}  // namespace shoal::sagemaker
