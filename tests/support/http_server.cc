#include "support/http_server.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <thread>
#include <utility>

#include "support/loopback_listener.h"
#include <sys/socket.h>

namespace shoal::test {
namespace {

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Appends received bytes to `buffer`. Returns false at the end of the connection.
bool receive(int socket, std::string& buffer) {
  char block[65536];
  const ssize_t count = ::recv(socket, block, sizeof block, 0);
  if (count <= 0) return false;
  buffer.append(block, static_cast<std::size_t>(count));
  return true;
}

bool send_all(int socket, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t count = ::send(socket, data, size, MSG_NOSIGNAL);
    if (count <= 0) return false;
    data += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

// Reads the connection's next request. Bytes after it stay in `buffer`.
bool read_request(int socket, std::string& buffer, ServedRequest& request) {
  std::size_t end = 0;
  while ((end = buffer.find("\r\n\r\n")) == std::string::npos)
    if (!receive(socket, buffer)) return false;
  std::string head = buffer.substr(0, end + 2);
  buffer.erase(0, end + 4);
  request = {};
  const std::size_t line_end = head.find("\r\n");
  const std::string line = head.substr(0, line_end);
  const std::size_t first = line.find(' '), last = line.rfind(' ');
  if (first == std::string::npos || last <= first) return false;
  request.method = line.substr(0, first);
  const std::string target = line.substr(first + 1, last - first - 1);
  const std::size_t question = std::min(target.find('?'), target.size());
  request.path = target.substr(0, question);
  if (question < target.size()) request.query = target.substr(question + 1);
  for (std::size_t at = line_end + 2; at < head.size();) {
    const std::size_t stop = head.find("\r\n", at);
    const std::string field = head.substr(at, stop - at);
    at = stop + 2;
    const std::size_t colon = field.find(':');
    if (colon == std::string::npos) continue;
    const std::size_t value = field.find_first_not_of(' ', colon + 1);
    request.headers[lower(field.substr(0, colon))] =
        value == std::string::npos ? "" : field.substr(value);
  }
  const std::string length = request.header("content-length");
  const std::size_t bytes = length.empty() ? 0 : std::stoul(length);
  while (buffer.size() < bytes)
    if (!receive(socket, buffer)) return false;
  request.body = buffer.substr(0, bytes);
  buffer.erase(0, bytes);
  return true;
}

}  // namespace

std::string wire_bytes(const ServedRequest& request, const ServedReply& reply) {
  std::string text = "HTTP/1.1 " + std::to_string(reply.status) + " Reason\r\n";
  bool has_length = false;
  for (const auto& [name, value] : reply.headers) {
    text += name + ": " + value + "\r\n";
    has_length = has_length || lower(name) == "content-length";
  }
  if (!has_length && reply.status != 204)
    text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
  text += "\r\n";
  if (request.method != "HEAD") text += reply.body;
  return text;
}

struct HttpServer::State {
  explicit State(Handler given)
      : handler(std::move(given)), listener([this](int socket) { serve(socket); }) {}

  void serve(int socket) {
    std::string buffer;
    ServedRequest request;
    while (read_request(socket, buffer, request)) {
      const ServedReply reply = handler(request);
      if (reply.delay_seconds > 0)
        std::this_thread::sleep_for(std::chrono::duration<double>(reply.delay_seconds));
      const std::string text = wire_bytes(request, reply);
      const std::size_t bytes =
          reply.cut_after < 0 ? text.size()
                              : std::min(text.size(), static_cast<std::size_t>(reply.cut_after));
      if (!send_all(socket, text.data(), bytes) || reply.cut_after >= 0) break;
    }
  }

  Handler handler;
  LoopbackListener listener;  // last: its threads use the members above
};

HttpServer::HttpServer(Handler handler) : state_(std::make_unique<State>(std::move(handler))) {}
HttpServer::~HttpServer() = default;

int HttpServer::port() const { return state_->listener.port(); }
std::string HttpServer::url() const { return "http://127.0.0.1:" + std::to_string(port()); }
int HttpServer::connections() const { return state_->listener.accepted(); }

}  // namespace shoal::test
