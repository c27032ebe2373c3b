// An HTTP/1.1 server on loopback that can misbehave at any byte: it can answer late, stop anywhere
// or close the connection early. An ordinary server library cannot do that. Link shoal_test_http.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace shoal::test {

struct ServedRequest {
  std::string method, path, query;             // as sent; query without '?'
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

struct ServedReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};  // Content-Length is added
  std::string body = {};
  double delay_seconds = 0;     // before the first byte
  std::int64_t cut_after = -1;  // closes after this many bytes, headers included; -1: never early
};

// Calls `handler` from several threads, one for each connection. The destructor closes all
// connections.
class HttpServer {
 public:
  using Handler = std::function<ServedReply(const ServedRequest& request)>;
  explicit HttpServer(Handler handler);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const;
  std::string url() const;  // http://127.0.0.1:PORT
  int connections() const;  // accepted so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The bytes of a reply as the server sends them.
std::string wire_bytes(const ServedRequest& request, const ServedReply& reply);

}  // namespace shoal::test
