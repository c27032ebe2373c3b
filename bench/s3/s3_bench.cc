// Measures how fast an object is read: S3Reader and bare libcurl (README.md).
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "harness/row.h"
#include <CLI/CLI.hpp>
#include <curl/curl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/s3_source.h"

namespace shoal::bench {
namespace {

using namespace sagemaker;

struct Arguments {
  std::string endpoint_url;
  int connections = 8, rounds = 9;
  std::int64_t part_mib = 8;
  bool md5 = false;
};

struct Target {
  std::byte* at = nullptr;
  std::size_t left = 0;
};

std::size_t store(char* data, std::size_t size, std::size_t count, void* user) {
  auto& target = *static_cast<Target*>(user);
  const std::size_t bytes = size * count;
  if (bytes > target.left) return 0;
  std::memcpy(target.at, data, bytes);
  target.at += bytes;
  target.left -= bytes;
  return bytes;
}

// One thread and one handle per connection; handles are kept between rounds.
class Plain {
 public:
  Plain(std::string url, const Arguments& a)
      : url_(std::move(url)), part_(static_cast<std::size_t>(a.part_mib) << 20U) {
    for (int i = 0; i < a.connections; ++i) handles_.push_back(curl_easy_init());
  }
  ~Plain() {
    for (CURL* handle : handles_) curl_easy_cleanup(handle);
  }
  Plain(const Plain&) = delete;
  Plain& operator=(const Plain&) = delete;

  void read(std::vector<std::byte>& into) {
    std::atomic<std::size_t> next{0};
    std::atomic<bool> failed{false};
    std::vector<std::thread> threads;
    for (CURL* handle : handles_)
      threads.emplace_back([&, handle] {
        for (std::size_t at; (at = next.fetch_add(part_)) < into.size();) {
          Target target{into.data() + at, std::min(part_, into.size() - at)};
          const std::string range = fmt::format("{}-{}", at, at + target.left - 1);
          curl_easy_setopt(handle, CURLOPT_URL, url_.c_str());
          curl_easy_setopt(handle, CURLOPT_RANGE, range.c_str());
          curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, &store);
          curl_easy_setopt(handle, CURLOPT_WRITEDATA, static_cast<void*>(&target));
          if (curl_easy_perform(handle) != CURLE_OK || target.left != 0) failed = true;
        }
      });
    for (std::thread& thread : threads) thread.join();
    if (failed) throw Error(ErrorCode::io, "the plain client failed");
  }

 private:
  std::string url_;
  std::size_t part_;
  std::vector<CURL*> handles_;
};

void run(const Arguments& a) {
  const S3 s3({.transport = make_curl_transport(),
               .credentials = std::make_shared<CredentialProvider>(
                   Credentials{.access_key = "AKIDEXAMPLE", .secret_key = Secret("none")})},
              {.region = "us-east-1", .url = a.endpoint_url});
  const S3Reader reader(s3, {.connections = a.connections, .part_bytes = a.part_mib << 20U});
  const auto source = reader.open("s3://bucket/object");
  Plain plain(a.endpoint_url + "/bucket/object", a);
  std::vector<std::byte> ours(static_cast<std::size_t>(source->size())), theirs(ours.size());
  std::vector<double> own_seconds, plain_seconds, ratios;
  for (int round = -1; round < a.rounds; ++round) {  // the first round warms up both
    auto start = Clock::now();
    plain.read(theirs);
    const double plain_time = seconds_since(start);
    start = Clock::now();
    source->read(0, ours);
    if (a.md5) {
      const auto sum = make_checksum("md5");
      sum->add(ours);
      (void)sum->finish();
    }
    const double own_time = seconds_since(start);
    if (ours != theirs) throw Error(ErrorCode::corrupt_data, "the two read different bytes");
    if (round < 0) continue;
    own_seconds.push_back(own_time);
    plain_seconds.push_back(plain_time);
    ratios.push_back(plain_time / own_time);
  }
  const double megabytes = static_cast<double>(ours.size()) / 1e6;
  nlohmann::ordered_json row = {{"operation", "s3_read"},
                                {"bytes", ours.size()},
                                {"connections", a.connections},
                                {"part_bytes", a.part_mib << 20U},
                                {"md5", a.md5},
                                {"MB_per_s", megabytes / percentile(own_seconds, 0.5)},
                                {"plain_MB_per_s", megabytes / percentile(plain_seconds, 0.5)},
                                {"of_plain", percentile(ratios, 0.5)},
                                {"rounds", a.rounds},
                                {"machine", machine()},
                                {"commit", commit()}};
  fmt::print("{}\n", row.dump());
}

}  // namespace
}  // namespace shoal::bench

int main(int argc, char** argv) {
  shoal::bench::Arguments a;
  CLI::App app{"An object read by S3Reader and by bare libcurl, turn by turn", "shoal_bench_s3"};
  app.add_option("--endpoint-url", a.endpoint_url, "of a server that has /bucket/object")
      ->required();
  app.add_option("--connections", a.connections, "of each")->check(CLI::Range(1, 256));
  app.add_option("--part-mib", a.part_mib, "of a request")->check(CLI::Range(1, 1024));
  app.add_option("--rounds", a.rounds, "medians of so many, turn by turn")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--md5", a.md5, "add an MD5 of the object to our side");
  CLI11_PARSE(app, argc, argv);
  try {
    shoal::bench::run(a);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "shoal_bench_s3: %s\n", problem.what());
    return 1;
  }
  return 0;
}
