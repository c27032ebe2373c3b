#include "shoal/runtime/trace/trace.h"

#include <atomic>
#include <chrono>
#include <cmath>
#include <deque>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"

namespace shoal {
namespace {

struct Event {
  enum class Kind : std::uint8_t { span, counter, instant };
  Kind kind;
  const char* category;
  const char* name;
  std::int64_t begin_ns;
  std::int64_t end_ns;
  std::int64_t detail;
  double value;
};

// One thread's events. Its lock is contended only while a trace is being written.
struct ThreadBuffer {
  std::mutex mutex;
  std::deque<Event> events;
  std::int64_t dropped = 0;
  std::string name;
  int number = 0;
};

// The calling thread's buffers. `buffer` is the one in the tracer that the thread used last. Tracer
// ids never repeat, so a buffer is never used after its tracer is destroyed.
struct LastBuffer {
  std::uint64_t tracer_id = 0;
  ThreadBuffer* buffer = nullptr;
  std::vector<std::pair<std::uint64_t, ThreadBuffer*>> others;
};
thread_local LastBuffer last_buffer;

std::string json_text(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string microseconds(std::int64_t ns) { return fmt::format("{}.{:03}", ns / 1000, ns % 1000); }

}  // namespace

struct Tracer::Impl {
  TracerOptions options;
  std::uint64_t id = 0;
  mutable std::mutex mutex;  // guards the two below; taken before a ThreadBuffer's
  std::deque<ThreadBuffer> threads;
  std::set<std::string, std::less<>> names;

  ThreadBuffer& here() {
    LastBuffer& last = last_buffer;
    if (last.tracer_id == id) [[likely]]
      return *last.buffer;
    for (const auto& [tracer, buffer] : last.others)
      if (tracer == id) {
        last.tracer_id = id;
        last.buffer = buffer;
        return *buffer;
      }
    const std::scoped_lock lock(mutex);
    ThreadBuffer& fresh = threads.emplace_back();
    fresh.number = static_cast<int>(threads.size());
    fresh.name = fmt::format("thread {}", fresh.number);
    if (last.others.size() >= 64) last.others.erase(last.others.begin());
    last.others.emplace_back(id, &fresh);
    last.tracer_id = id;
    last.buffer = &fresh;
    return fresh;
  }

  void add(const Event& event) {
    ThreadBuffer& buffer = here();
    const std::scoped_lock lock(buffer.mutex);
    if (std::ssize(buffer.events) >= options.max_events_per_thread)
      ++buffer.dropped;
    else
      buffer.events.push_back(event);
  }

  std::string line(const Event& event, int thread) const {
    std::string text = fmt::format(R"({{"pid":{},"tid":{},"ts":{},"name":{})", options.rank, thread,
                                   microseconds(event.begin_ns), json_text(event.name));
    switch (event.kind) {
      case Event::Kind::span:
        text += fmt::format(R"(,"ph":"X","cat":{},"dur":{})", json_text(event.category),
                            microseconds(event.end_ns - event.begin_ns));
        if (event.detail != kNoDetail)
          text += fmt::format(R"(,"args":{{"detail":{}}})", event.detail);
        break;
      case Event::Kind::counter:
        // JSON has no NaN; null shows as a gap in the curve.
        text += fmt::format(R"(,"ph":"C","args":{{"value":{}}})",
                            std::isfinite(event.value) ? fmt::format("{}", event.value) : "null");
        break;
      case Event::Kind::instant:
        text += fmt::format(R"(,"ph":"i","s":"t","cat":{})", json_text(event.category));
        break;
    }
    return text + "}";
  }
};

Tracer::Tracer(TracerOptions options) : impl_(std::make_unique<Impl>()) {
  static std::atomic<std::uint64_t> next_id{1};
  impl_->id = next_id.fetch_add(1);
  impl_->options = std::move(options);
}

Tracer::~Tracer() = default;

std::int64_t Tracer::now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

const char* Tracer::intern(std::string_view name) {
  const std::scoped_lock lock(impl_->mutex);
  return impl_->names.emplace(name).first->c_str();
}

void Tracer::name_thread(std::string_view name) {
  ThreadBuffer& buffer = impl_->here();
  const std::scoped_lock lock(buffer.mutex);
  buffer.name = name;
}

void Tracer::span(const char* category, const char* name, std::int64_t begin_ns,
                  std::int64_t end_ns, std::int64_t detail) {
  impl_->add({Event::Kind::span, category, name, begin_ns, std::max(begin_ns, end_ns), detail, 0});
}

void Tracer::counter(const char* name, double value) {
  impl_->add({Event::Kind::counter, "", name, now_ns(), 0, kNoDetail, value});
}

void Tracer::instant(const char* category, const char* name) {
  impl_->add({Event::Kind::instant, category, name, now_ns(), 0, kNoDetail, 0});
}

std::int64_t Tracer::events() const {
  const std::scoped_lock lock(impl_->mutex);
  std::int64_t sum = 0;
  for (ThreadBuffer& buffer : impl_->threads) {
    const std::scoped_lock buffer_lock(buffer.mutex);
    sum += std::ssize(buffer.events);
  }
  return sum;
}

std::int64_t Tracer::dropped() const {
  const std::scoped_lock lock(impl_->mutex);
  std::int64_t sum = 0;
  for (ThreadBuffer& buffer : impl_->threads) {
    const std::scoped_lock buffer_lock(buffer.mutex);
    sum += buffer.dropped;
  }
  return sum;
}

void Tracer::write_chrome_trace(const std::string& path) const {
  const int rank = impl_->options.rank;
  const std::string process = impl_->options.process_name.empty()
                                  ? fmt::format("rank {}", rank)
                                  : fmt::format("rank {}: {}", rank, impl_->options.process_name);
  AtomicFile file(path);
  file.write(fmt::format(
      "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
      R"({{"ph":"M","pid":{},"tid":0,"name":"process_name","args":{{"name":{}}}}})"
      ",\n"
      R"({{"ph":"M","pid":{},"tid":0,"name":"process_sort_index","args":{{"sort_index":{}}}}})",
      rank, json_text(process), rank, rank));
  std::int64_t lost = 0;
  const std::scoped_lock lock(impl_->mutex);
  for (ThreadBuffer& buffer : impl_->threads) {
    std::deque<Event> events;
    std::string name;
    {
      const std::scoped_lock buffer_lock(buffer.mutex);
      events = buffer.events;
      name = buffer.name;
      lost += buffer.dropped;
    }
    std::string text = fmt::format(
        ",\n"
        R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
        rank, buffer.number, json_text(name));
    for (const Event& event : events) {
      text += ",\n";
      text += impl_->line(event, buffer.number);
      if (text.size() > (std::size_t{1} << 20)) {
        file.write(text);
        text.clear();
      }
    }
    file.write(text);
  }
  file.write(fmt::format("\n],\"otherData\":{{\"dropped_events\":{}}}}}\n", lost));
  file.commit();
}

}  // namespace shoal
