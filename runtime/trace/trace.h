// Spans and counters of one rank, written as a Chrome trace (chrome://tracing, ui.perfetto.dev;
// Google's "Trace Event Format") with one process per rank and one row per thread.
//
// A Tracer is passed as a pointer that may be null; disabled tracing costs one branch. With tracing
// enabled, an event goes to the calling thread's own buffer: about 30 ns for an event, 55 to 100 ns
// for a span, which reads the clock twice.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace shoal {

struct TracerOptions {
  int rank = 0;
  std::string process_name = {};  // shown beside the rank; empty: "rank N"
  std::int64_t max_events_per_thread = std::int64_t{1} << 20;  // later ones are dropped and counted
};

// Thread-safe. Names are kept by pointer: use literals or intern().
class Tracer {
 public:
  explicit Tracer(TracerOptions options = {});
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  const char* intern(std::string_view name);  // the result lives as long as this tracer
  void name_thread(std::string_view name);    // names the calling thread's row
  // Records a span that has ended, with times from now_ns(). `detail`: a number shown with it
  // (bytes, step).
  void span(const char* category, const char* name, std::int64_t begin_ns, std::int64_t end_ns,
            std::int64_t detail = kNoDetail);
  void counter(const char* name, double value);
  void instant(const char* category, const char* name);

  std::int64_t events() const;
  std::int64_t dropped() const;
  // Writes all events so far, atomically replacing `path`. Recording may continue meanwhile.
  void write_chrome_trace(const std::string& path) const;

  static std::int64_t now_ns();  // steady; the same clock in every process of a host
  static constexpr std::int64_t kNoDetail = INT64_MIN;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Records its own lifetime: { TraceSpan span(tracer, "comm", "all_reduce", bytes); ... }
class TraceSpan {
 public:
  TraceSpan(Tracer* tracer, const char* category, const char* name,
            std::int64_t detail = Tracer::kNoDetail)
      : tracer_(tracer) {
    if (tracer_) [[unlikely]] {
      category_ = category;
      name_ = name;
      detail_ = detail;
      begin_ns_ = Tracer::now_ns();
    }
  }
  ~TraceSpan() {
    if (tracer_) [[unlikely]]
      tracer_->span(category_, name_, begin_ns_, Tracer::now_ns(), detail_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Tracer* tracer_;
  const char* category_ = nullptr;
  const char* name_ = nullptr;
  std::int64_t detail_ = 0;
  std::int64_t begin_ns_ = 0;
};

inline void trace_counter(Tracer* tracer, const char* name, double value) {
  if (tracer) [[unlikely]]
    tracer->counter(name, value);
}

}  // namespace shoal
