// A pass-through dispatcher that can record one step. StepCapture searches the record for unfused
// chains of the catalogue (fusion_catalogue.h).
#pragma once

#include <optional>
#include <string>

#include "shoal/nn/autograd/recording_dispatcher.h"

namespace shoal::nn {

class StepRecorder final : public Dispatcher {
 public:
  explicit StepRecorder(Dispatcher& next) : next_(next) {}
  void run(const Operation& operation, const std::function<void()>& body) override {
    if (record_)
      record_->run(operation, body);
    else
      next_.run(operation, body);
  }

  // Records operations until end(). It does not keep their tensors alive.
  void begin() { record_.emplace(next_); }
  struct Operations {
    int count = 0;
    std::string left_apart;  // describe() of the unfused chains; empty: none
  };
  // Returns a summary of the record and discards the record.
  Operations end();

 private:
  Dispatcher& next_;
  std::optional<RecordingDispatcher> record_;
};

}  // namespace shoal::nn
