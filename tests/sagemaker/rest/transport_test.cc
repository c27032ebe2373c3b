// libcurl against a server that misbehaves.
#include <atomic>
#include <future>

#include "sagemaker/rest/rig.h"

namespace shoal::sagemaker {
namespace {

using test::HttpServer;
using test::ServedReply;
using test::ServedRequest;

HttpRequest request_to(const HttpServer& server, const std::string& rest = "/") {
  HttpRequest request;
  request.url = parse_url(server.url() + rest, "a test");
  request.allow_plain = true;
  return request;
}

TEST(Transport, SendsExactlyWhatItIsGiven) {
  ServedRequest seen;
  HttpServer server([&](const ServedRequest& request) -> ServedReply {
    seen = request;
    return {.status = 201, .headers = {{"X-Answer", "a: b"}}, .body = "done"};
  });
  const auto transport = make_curl_transport();
  HttpRequest request = request_to(server, "/a/../b%2Fc/./d%20e?x=1&b&c=%2B");
  request.method = "POST";
  request.headers = {{"X-One", "1"}, {"X-Empty", ""}};
  const std::string body("a\0b", 3);
  request.body = body;
  const HttpResponse response = transport->send(request);
  EXPECT_EQ(response.status, 201);
  EXPECT_EQ(response.body, "done");
  EXPECT_EQ(*find_header(response.headers, "x-answer"), "a: b");
  EXPECT_EQ(seen.path, "/a/../b%2Fc/./d%20e");
  EXPECT_EQ(seen.query, "x=1&b&c=%2B");
  EXPECT_EQ(seen.body, body);
  EXPECT_EQ(seen.header("x-one"), "1");
  EXPECT_TRUE(seen.headers.contains("x-empty"));
  EXPECT_EQ(seen.header("host"), request.url.authority());
  for (const char* own : {"expect", "accept", "content-type"})
    EXPECT_FALSE(seen.headers.contains(own)) << own;
  request.method = "PUT";
  request.body = {};
  transport->send(request);
  EXPECT_EQ(seen.method, "PUT");
  EXPECT_EQ(seen.header("content-length"), "0");
  for (const char* method : {"HEAD", "DELETE", "GET"}) {
    request.method = method;
    EXPECT_EQ(transport->send(request).status, 201);
    EXPECT_EQ(seen.method, method);
  }
  EXPECT_EQ(server.connections(), 1) << "connections are kept";
  request.once = true;
  transport->send(request);
  EXPECT_EQ(server.connections(), 2);
}

TEST(Transport, PartsGoWhereTheyBelong) {
  HttpServer server([](const ServedRequest& request) -> ServedReply {
    return {.status = request.path == "/all" ? 200 : 206, .body = "0123456789"};
  });
  const auto transport = make_curl_transport();
  std::vector<std::byte> into(10);
  HttpRequest request = request_to(server);
  request.into = into;
  const HttpResponse response = transport->send(request);
  EXPECT_EQ(response.filled, 10U);
  EXPECT_TRUE(response.body.empty());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(into.data()), 10), "0123456789");
  request.into = std::span(into).first(9);
  EXPECT_THAT(error_text([&] { transport->send(request); }), HasSubstr("longer than the 9 bytes"));
  request.url.path = "/all";
  EXPECT_EQ(transport->send(request).body, "0123456789");
}

TEST(Transport, WantsTls) {
  const auto transport = make_curl_transport();
  HttpRequest request;
  request.url = parse_url("http://127.0.0.1:1/", "a test");
  EXPECT_THAT(error_text([&] { transport->send(request); }),
              AllOf(HasSubstr("http://127.0.0.1:1 is not encrypted"), HasSubstr("--endpoint-url")));
  // This server does not speak TLS.
  HttpServer server([](const ServedRequest&) { return ServedReply{}; });
  request.url = parse_url("https://127.0.0.1:" + std::to_string(server.port()), "a test");
  request.seconds = 0.2;
  EXPECT_THROW(transport->send(request), TransportError);
}

TEST(Transport, ConnectionsCutAtEveryByte) {
  const ServedReply whole{.status = 200, .headers = {{"X-Id", "7"}}, .body = "{\"a\": 1}"};
  std::atomic<std::int64_t> cut{0};
  HttpServer server([&](const ServedRequest&) {
    ServedReply reply = whole;
    reply.cut_after = cut;
    return reply;
  });
  const auto transport = make_curl_transport();
  const auto length = static_cast<std::int64_t>(test::wire_bytes({}, whole).size());
  for (cut = 0; cut < length; ++cut) {
    try {
      transport->send(request_to(server));
      ADD_FAILURE() << "whole after " << cut << " of " << length << " bytes";
    } catch (const TransportError& error) {
      EXPECT_TRUE(error.retriable()) << error.what();
      EXPECT_TRUE(error.may_have_arrived()) << error.what();
    }
  }
  EXPECT_EQ(transport->send(request_to(server)).body, whole.body);
}

TEST(Transport, NamesAnAddressThatDoesNotAnswer) {
  const auto transport = make_curl_transport();
  HttpRequest request;
  request.allow_plain = true;
  request.url = parse_url("http://127.0.0.1:1/", "a test");
  try {
    transport->send(request);
    ADD_FAILURE();
  } catch (const TransportError& error) {
    EXPECT_TRUE(error.retriable());
    EXPECT_FALSE(error.may_have_arrived());
    EXPECT_THAT(error.what(), HasSubstr("GET http://127.0.0.1:1"));
  }
}

TEST(Transport, ServersThatAnswerLate) {
  HttpServer server([](const ServedRequest&) { return ServedReply{.delay_seconds = 0.6}; });
  const auto transport = make_curl_transport();
  HttpRequest request = request_to(server);
  request.seconds = 0.1;
  try {
    transport->send(request);
    ADD_FAILURE();
  } catch (const TransportError& error) {
    EXPECT_TRUE(error.retriable());
    EXPECT_TRUE(error.may_have_arrived());
  }
  request.seconds = 0;
  EXPECT_EQ(transport->send(request).status, 200);
}

TEST(Transport, ManyThreads) {
  HttpServer server([](const ServedRequest& request) { return ServedReply{.body = request.path}; });
  const auto transport = make_curl_transport();
  std::vector<std::future<void>> threads;
  for (int t = 0; t < 4; ++t)
    threads.push_back(std::async(std::launch::async, [&, t] {
      for (int i = 0; i < 20; ++i) {
        const std::string path = fmt::format("/{}/{}", t, i);
        EXPECT_EQ(transport->send(request_to(server, path)).body, path);
      }
    }));
  for (auto& thread : threads) thread.get();
  EXPECT_LE(server.connections(), 4);
}

TEST(Transport, BodiesWithoutEnd) {
  HttpServer server(
      [](const ServedRequest&) { return ServedReply{.body = std::string(2000, 'x')}; });
  const auto transport = make_curl_transport({.max_body = 1000});
  EXPECT_THAT(error_text([&] { transport->send(request_to(server)); }),
              HasSubstr("longer than the 1000 bytes"));
}

}  // namespace
}  // namespace shoal::sagemaker
