#include "shoal/runtime/trace/trace.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/trace/json_lines.h"

namespace shoal {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string temporary(const std::string& name) {
  return ::testing::TempDir() + "/" + name + std::to_string(::getpid());
}

std::string slurp(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Tracer, ChromeTraceContainsRankThreadsSpansAndCounters) {
  Tracer tracer({.rank = 3, .process_name = "gpt2 \"small\""});
  tracer.name_thread("compute");
  {
    TraceSpan outer(&tracer, "step", "forward", 512);
    TraceSpan inner(&tracer, "kernel", tracer.intern(std::string("line\nbreak")));
  }
  trace_counter(&tracer, "bytes", 1.5);
  trace_counter(&tracer, "loss", std::nan(""));
  std::thread([&tracer] {
    tracer.name_thread("progress");
    tracer.instant("comm", "abort");
  }).join();
  EXPECT_EQ(tracer.events(), 5);

  const std::string path = temporary("trace.json");
  tracer.write_chrome_trace(path);
  const json trace = json::parse(slurp(path));
  std::set<std::string> thread_names;
  int spans = 0;
  for (const json& event : trace["traceEvents"]) {
    EXPECT_EQ(event["pid"], 3);
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "rank 3: gpt2 \"small\"");
    }
    if (event["name"] == "thread_name") thread_names.insert(event["args"]["name"]);
    if (event["ph"] == "X") {
      ++spans;
      EXPECT_GE(event["dur"].get<double>(), 0);
      if (event["name"] == "forward") {
        EXPECT_EQ(event["args"]["detail"], 512);
      } else {
        EXPECT_EQ(event["name"], "line\nbreak");
      }
    }
    if (event["name"] == "bytes") {
      EXPECT_EQ(event["args"]["value"], 1.5);
    }
    if (event["name"] == "loss") {
      EXPECT_TRUE(event["args"]["value"].is_null());
    }
  }
  EXPECT_EQ(spans, 2);
  EXPECT_EQ(thread_names, (std::set<std::string>{"compute", "progress"}));
  EXPECT_EQ(trace["otherData"]["dropped_events"], 0);
  std::filesystem::remove(path);
}

TEST(Tracer, OffIsANullPointer) {
  TraceSpan span(nullptr, "a", "b");
  trace_counter(nullptr, "c", 1);
}

TEST(Tracer, SpansNestInTime) {
  Tracer tracer;
  const auto begin = Tracer::now_ns();
  tracer.span("a", "b", begin, begin + 1'234'567);
  const std::string path = temporary("nest.json");
  tracer.write_chrome_trace(path);
  const json trace = json::parse(slurp(path));
  int spans = 0;
  for (const json& event : trace["traceEvents"])
    if (event["ph"] == "X") {
      ++spans;
      EXPECT_DOUBLE_EQ(event["dur"].get<double>(), 1234.567);
    }
  EXPECT_EQ(spans, 1);
  std::filesystem::remove(path);
}

TEST(Tracer, BoundsItsMemoryAndCountsWhatItDropped) {
  Tracer tracer({.max_events_per_thread = 10});
  for (int i = 0; i < 25; ++i) tracer.counter("n", i);
  EXPECT_EQ(tracer.events(), 10);
  EXPECT_EQ(tracer.dropped(), 15);
}

TEST(Tracer, ThreadsRecordWhileATraceIsWritten) {
  Tracer tracer, other;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        TraceSpan a(&tracer, "x", "y"), b(&other, "x", "y");  // two tracers, one thread
      }
    });
  const std::string path = temporary("busy.json");
  for (int i = 0; i < 5; ++i) {
    tracer.write_chrome_trace(path);
    EXPECT_TRUE(json::accept(slurp(path)));
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(tracer.events(), 2000);
  EXPECT_EQ(other.events(), 2000);
  std::filesystem::remove(path);
}

TEST(Tracer, ANewTracerAtAnOldAddressIsNew) {
  for (int i = 0; i < 100; ++i) {
    auto tracer = std::make_unique<Tracer>();
    tracer->counter("n", i);
    EXPECT_EQ(tracer->events(), 1);
  }
}

TEST(Tracer, UnwritablePathIsOneClearLine) {
  Tracer tracer;
  try {
    tracer.write_chrome_trace("/nonexistent/trace.json");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("/nonexistent/trace.json"));
  }
}

TEST(JsonLines, WritesOneRecordALineAndResumesAfterACut) {
  const std::string path = temporary("metrics.jsonl");
  {
    JsonLinesWriter writer(path, JsonLinesWriter::Mode::truncate);
    writer.write({{"step", 1}, {"loss", 2.5}});
    EXPECT_EQ(slurp(path), "{\"step\":1,\"loss\":2.5}\n")
        << "records are flushed at once and keep their order";
    writer.write({{"loss", std::nan("")}, {"text", "a\nb\xff"}});
  }
  std::ofstream(path, std::ios::app) << "{\"step\":2,\"lo";  // a crash in the middle
  {
    JsonLinesWriter writer(path);
    writer.write({{"step", 3}});
  }
  std::istringstream lines(slurp(path));
  std::vector<json> records;
  for (std::string line; std::getline(lines, line);) records.push_back(json::parse(line));
  ASSERT_EQ(records.size(), 3u);
  EXPECT_TRUE(records[1]["loss"].is_null());
  EXPECT_EQ(records[2]["step"], 3);
  std::ofstream(path) << std::string(200'000, 'x');  // not a complete line
  JsonLinesWriter(path).write({{"a", 1}});
  EXPECT_EQ(slurp(path), "{\"a\":1}\n");
  std::filesystem::remove(path);
}

TEST(JsonLines, HonoursTheUmask) {
  const std::string path = temporary("umask.jsonl");
  for (const auto& [mask, mode] : {std::pair{0077, 0600}, {0002, 0664}}) {
    std::filesystem::remove(path);
    if (const pid_t child = ::fork(); child == 0) {
      ::umask(static_cast<mode_t>(mask));
      {
        JsonLinesWriter writer(path);
      }
      ::_exit(0);
    } else {
      ::waitpid(child, nullptr, 0);
    }
    struct stat made{};
    EXPECT_EQ(::stat(path.c_str(), &made), 0);
    EXPECT_EQ(made.st_mode & 0777, static_cast<mode_t>(mode));
  }
  std::filesystem::remove(path);
}

TEST(JsonLines, ThreadsDoNotMixLines) {
  const std::string path = temporary("threads.jsonl");
  JsonLinesWriter writer(path, JsonLinesWriter::Mode::truncate);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&writer, t] {
      for (int i = 0; i < 100; ++i) writer.write({{"t", t}, {"text", std::string(300, 'x')}});
    });
  for (auto& thread : threads) thread.join();
  std::istringstream lines(slurp(path));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_TRUE(json::accept(line));
  EXPECT_EQ(count, 400);
  std::filesystem::remove(path);
}

TEST(JsonLines, AFullDiskIsReported) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  JsonLinesWriter writer("/dev/full");
  try {
    writer.write({{"a", 1}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::io);
    EXPECT_THAT(error.what(), HasSubstr("No space left"));
  }
}

}  // namespace
}  // namespace shoal
