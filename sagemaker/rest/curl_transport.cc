// Transport over libcurl's easy interface. Each request in flight has a handle, which is kept
// afterwards with its connection. CURLOPT_AWS_SIGV4 is not used; signer.h explains why.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>

#include <curl/curl.h>
#include <openssl/x509_vfy.h>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/log.h"
#include "shoal/runtime/base/numbers.h"
#include "shoal/sagemaker/rest/encode.h"
#include "shoal/sagemaker/rest/http.h"

namespace shoal::sagemaker {
namespace {

struct Exchange {
  const HttpRequest* request = nullptr;
  HttpResponse response;
  std::size_t max_body = 0;
  bool headers_whole = false, too_long = false;
};

std::size_t on_header(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::string_view line(data, size * count);
  // Drops headers of earlier responses: 100 Continue, a proxy's answer.
  if (line.starts_with("HTTP/")) {
    exchange.response.headers.clear();
    exchange.headers_whole = false;
    const auto space = std::min(line.find(' '), line.size());
    const std::string_view status = trim(line.substr(space, 4));
    exchange.response.status = parse_number<int>(status.substr(0, status.find(' '))).value_or(0);
  } else if (trim(line).empty()) {
    exchange.headers_whole = line.ends_with('\n');
  } else if (const auto colon = line.find(':'); colon != line.npos) {
    exchange.response.headers.emplace_back(lower(trim(line.substr(0, colon))),
                                           trim(line.substr(colon + 1)));
  }
  return line.size();
}

std::size_t on_body(char* data, std::size_t size, std::size_t count, void* user) {
  auto& exchange = *static_cast<Exchange*>(user);
  const std::size_t bytes = size * count;
  HttpResponse& response = exchange.response;
  if (!exchange.request->into.empty() && response.status == 206) {
    exchange.too_long = bytes > exchange.request->into.size() - response.filled;
    if (exchange.too_long) return 0;
    std::memcpy(exchange.request->into.data() + response.filled, data, bytes);
    response.filled += bytes;
    return bytes;
  }
  exchange.too_long = bytes > exchange.max_body - response.body.size();
  if (exchange.too_long) return 0;
  response.body.append(data, bytes);
  return bytes;
}

// Remedy for a refused TLS connection. `verified` is the result of X509_verify_cert() (X509_V_OK
// for a wrong name, which libcurl checks itself); `bundle` is the path in AWS_CA_BUNDLE.
std::string certificate_remedy(CURLcode code, long verified, const std::string& bundle) {
  if (code == CURLE_SSL_CACERT_BADFILE && !bundle.empty())
    return fmt::format("AWS_CA_BUNDLE (ca_bundle) names {}: it must be a file of certificates, PEM",
                       bundle);
  if (verified == X509_V_ERR_CERT_HAS_EXPIRED || verified == X509_V_ERR_CERT_NOT_YET_VALID)
    return "check this machine's clock; if it is right, the server needs a new certificate, for "
           "AWS_CA_BUNDLE says who may issue one, not how long it holds";
  if (code == CURLE_PEER_FAILED_VERIFICATION &&
      (verified == X509_V_OK || verified == X509_V_ERR_UNSPECIFIED))
    return "the certificate is for another host: check --endpoint-url; AWS_CA_BUNDLE says who may "
           "issue one, not for whom";
  if (!bundle.empty())
    return fmt::format("{} (AWS_CA_BUNDLE, ca_bundle) has no certificate of its issuer", bundle);
  return "install ca-certificates, or name a file of certificates in AWS_CA_BUNDLE";
}

class CurlTransport final : public Transport {
 public:
  explicit CurlTransport(CurlOptions options) : options_(std::move(options)) {
    // Global initialisation, once per process. It is never undone, since other code may use
    // libcurl.
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  }
  ~CurlTransport() override {
    for (CURL* handle : idle_) curl_easy_cleanup(handle);
  }
  CurlTransport(const CurlTransport&) = delete;
  CurlTransport& operator=(const CurlTransport&) = delete;

  HttpResponse send(const HttpRequest& request) override {
    if (request.url.scheme != "https" && !request.allow_plain)
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("{} is not encrypted", request.url.scheme + "://" + request.url.authority()),
          "use https, or name the http:// endpoint with --endpoint-url");
    Handle handle(*this);
    const auto start = Clock::now();
    Exchange exchange;
    exchange.request = &request;
    exchange.max_body = options_.max_body;
    char reason[CURL_ERROR_SIZE] = "";
    const CURLcode code = perform(handle.get(), request, exchange, reason);
    long status = 0;
    curl_easy_getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
    exchange.response.status = static_cast<int>(status);
    log::debug("{} {}://{}{}: {} after {:.0f} ms", request.method, request.url.scheme,
               request.url.authority(), request.url.path,
               code == CURLE_OK ? fmt::format("{}", status) : curl_easy_strerror(code),
               seconds_since(start) * 1e3);
    if (code != CURLE_OK || !exchange.headers_whole || status == 0) {
      Broken broken{.code = code, .reason = reason};
      curl_easy_getinfo(handle.get(), CURLINFO_PRETRANSFER_TIME, &broken.connected_after);
      curl_easy_getinfo(handle.get(), CURLINFO_SSL_VERIFYRESULT, &broken.verified);
      handle.drop();  // its connection is in an unknown state
      fail(request, exchange, broken);
    }
    return std::move(exchange.response);
  }

 private:
  // Takes an idle handle and returns it on destruction.
  class Handle {
   public:
    explicit Handle(CurlTransport& owner) : owner_(owner) {
      {
        const std::lock_guard lock(owner.mutex_);
        if (!owner.idle_.empty()) {
          handle_ = owner.idle_.back();
          owner.idle_.pop_back();
        }
      }
      if (handle_ == nullptr) handle_ = curl_easy_init();
      if (handle_ == nullptr) throw Error(ErrorCode::out_of_memory, "libcurl gives no handle");
    }
    ~Handle() {
      if (handle_ == nullptr) return;
      curl_easy_reset(handle_);  // clears the request, keeps connections
      const std::lock_guard lock(owner_.mutex_);
      owner_.idle_.push_back(handle_);
    }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    CURL* get() const { return handle_; }
    void drop() {
      curl_easy_cleanup(handle_);
      handle_ = nullptr;
    }

   private:
    CurlTransport& owner_;
    CURL* handle_ = nullptr;
  };

  // Outcome of a failed exchange.
  struct Broken {
    CURLcode code = CURLE_OK;
    const char* reason = "";     // "": use libcurl's text for the code
    double connected_after = 0;  // seconds; 0: never connected
    long verified = 0;           // certificate verification: X509_V_...
  };
  CURLcode perform(CURL* handle, const HttpRequest& request, Exchange& exchange, char* reason);
  [[noreturn]] void fail(const HttpRequest& request, const Exchange& exchange,
                         const Broken& broken) const;

  CurlOptions options_;
  std::mutex mutex_;
  std::vector<CURL*> idle_;
};

CURLcode CurlTransport::perform(CURL* handle, const HttpRequest& request, Exchange& exchange,
                                char* reason) {
  const auto set = [&](CURLoption option, auto value) {
    const CURLcode code = curl_easy_setopt(handle, option, value);
    if (code != CURLE_OK)
      throw_error(ErrorCode::unavailable, "libcurl does not take option {}: {}",
                  static_cast<int>(option), curl_easy_strerror(code));
  };
  const std::string url = request.url.text();
  set(CURLOPT_URL, url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);  // S3 keys may contain "/../", and the signature covers it
  set(CURLOPT_PROTOCOLS_STR, request.allow_plain ? "http,https" : "https");
  set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_ERRORBUFFER, reason);
  set(CURLOPT_CONNECTTIMEOUT_MS, std::lround(options_.connect_seconds * 1e3));
  set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  set(CURLOPT_LOW_SPEED_TIME, std::max(1L, std::lround(std::ceil(options_.stall_seconds))));
  if (request.seconds > 0) {
    set(CURLOPT_TIMEOUT_MS, std::lround(request.seconds * 1e3));
    set(CURLOPT_CONNECTTIMEOUT_MS, std::lround(request.seconds * 1e3));
  }
  if (request.direct) set(CURLOPT_NOPROXY, "*");
  // On a kept connection that turns out to be dead, libcurl would resend the request.
  if (request.once) set(CURLOPT_FRESH_CONNECT, 1L);
  if (!options_.ca_bundle.empty()) {
    set(CURLOPT_CAINFO, options_.ca_bundle.c_str());
    // Use only the bundle's certificates: by default libcurl also searches the system's directory.
    set(CURLOPT_CAPATH, static_cast<const char*>(nullptr));
  }
  if (request.method == "HEAD") {
    set(CURLOPT_NOBODY, 1L);
  } else if (!request.body.empty() || request.method == "POST" || request.method == "PUT") {
    set(CURLOPT_POST, 1L);
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
  }
  set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)> list(nullptr, &curl_slist_free_all);
  const auto add = [&](const std::string& line) {
    curl_slist* longer = curl_slist_append(list.get(), line.c_str());
    if (longer == nullptr) throw Error(ErrorCode::out_of_memory, "libcurl has no room for headers");
    (void)list.release();
    list.reset(longer);
  };
  // Suppress headers that libcurl would add.
  for (const char* own : {"Expect", "Accept", "Content-Type"})
    if (find_header(request.headers, own) == nullptr) add(std::string(own) + ":");
  if (find_header(request.headers, "User-Agent") == nullptr) add("User-Agent: shoal");
  for (const auto& [name, value] : request.headers)
    add(value.empty() ? name + ";" : name + ": " + value);
  set(CURLOPT_HTTPHEADER, list.get());
  set(CURLOPT_HEADERFUNCTION, &on_header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&exchange));
  set(CURLOPT_WRITEFUNCTION, &on_body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&exchange));
  return curl_easy_perform(handle);
}

void CurlTransport::fail(const HttpRequest& request, const Exchange& exchange,
                         const Broken& broken) const {
  const std::string place = request.url.scheme + "://" + request.url.authority();
  if (exchange.too_long)
    throw TransportError(
        fmt::format("{} {}: the answer is longer than the {} bytes expected", request.method,
                    place + request.url.path,
                    request.into.empty() ? options_.max_body : request.into.size()),
        {}, true, false);
  const CURLcode code = broken.code;
  const bool connected = broken.connected_after > 0;
  const std::string why = code == CURLE_OK ? "the connection ended inside the answer's headers"
                          : broken.reason[0] != '\0' ? broken.reason
                                                     : curl_easy_strerror(code);
  std::string remedy;
  bool retriable = true, may_have_arrived = true;
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
      remedy = "check the network, the region and --endpoint-url";
      may_have_arrived = false;
      break;
    case CURLE_COULDNT_RESOLVE_PROXY:
      remedy = "check https_proxy";
      may_have_arrived = false;
      break;
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
      may_have_arrived = connected;
      break;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      remedy = certificate_remedy(code, broken.verified, options_.ca_bundle);
      retriable = may_have_arrived = false;
      break;
    case CURLE_UNSUPPORTED_PROTOCOL:  // also caused by a truncated status line
      retriable = may_have_arrived = connected;
      break;
    case CURLE_URL_MALFORMAT:
    case CURLE_BAD_FUNCTION_ARGUMENT:
    case CURLE_OUT_OF_MEMORY:
      retriable = may_have_arrived = false;
      break;
    default:
      break;
  }
  throw TransportError(fmt::format("{} {}: {}", request.method, place, why), std::move(remedy),
                       may_have_arrived, retriable);
}

}  // namespace

std::shared_ptr<Transport> make_curl_transport(CurlOptions options) {
  return std::make_shared<CurlTransport>(std::move(options));
}

}  // namespace shoal::sagemaker
