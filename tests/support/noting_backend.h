// Graph capture without a device that supports it.
#pragma once

#include <functional>
#include <list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/device/device.h"

namespace shoal::test {

// The host as a device. Work queued while a stream is captured is recorded and runs at launch.
class NotingBackend final : public DeviceBackend {
 public:
  void queue(std::function<void()> work) {
    if (capturing_)
      noted_.push_back(std::move(work));
    else
      work();
  }
  void begin_capture(Stream) override {
    if (refuses || refused_begins-- == 0)
      throw Error(ErrorCode::internal, "this stream cannot be captured");
    capturing_ = true;
    noted_.clear();
  }
  void* end_capture(Stream) override {
    capturing_ = false;
    if (noted_.empty()) return nullptr;
    graphs_.emplace_back(noted_);
    return &graphs_.back();
  }
  void abandon_capture(Stream) noexcept override { capturing_ = false; }
  void launch_graph(void* graph, Stream) override {
    for (const auto& work : *static_cast<std::vector<std::function<void()>>*>(graph)) work();
    ++launched;
  }
  void destroy_graph(void*) noexcept override { ++destroyed; }
  void synchronize(Stream) override {
    EXPECT_FALSE(capturing_) << "a captured stream cannot be waited for";
  }

  int count() const override { return 1; }
  std::string describe(Device) const override { return "noting"; }
  void check_available(Device) const override {}
  void* create_stream(Device, StreamPriority) override { return nullptr; }
  void destroy_stream(Stream) noexcept override {}
  void* create_event(Device, EventKind) override { return nullptr; }
  void destroy_event(Device, void*) noexcept override {}
  void record(void*, Stream) override {}
  bool query(Device, void*) override { return true; }
  void wait(Stream, void*) override {}
  void synchronize(Device, void*) override {}
  double elapsed_ms(Device, void*, void*) override { return 0; }
  void copy(void*, const void*, std::size_t, Stream) override {}
  void fill(void*, int, std::size_t, Stream) override {}
  void* allocate(Device, std::size_t, Stream) override { return nullptr; }
  void deallocate(Device, void*, Stream) noexcept override {}
  void* allocate_pinned(std::size_t) override { return nullptr; }
  void deallocate_pinned(void*) noexcept override {}

  bool refuses = false;
  int refused_begins = -1;  // counts down to the begin_capture that is refused
  int launched = 0, destroyed = 0;

 private:
  bool capturing_ = false;
  std::vector<std::function<void()>> noted_;
  std::list<std::vector<std::function<void()>>> graphs_;
};

}  // namespace shoal::test
