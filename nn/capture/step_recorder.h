// Passes operations on, and keeps one step's record when asked to: what StepCapture looks through
// for chains that the catalogue of fusions has (fusion_catalogue.h).
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

  // From here to end() operations are kept, and no tensor of theirs alive.
  void begin() { record_.emplace(next_); }
  struct Operations {
    int count = 0;
    std::string left_apart;  // describe() of the chains among them; empty: there are none
  };
  // What there was, which is forgotten.
  Operations end();

 private:
  Dispatcher& next_;
  std::optional<RecordingDispatcher> record_;
};

}  // namespace shoal::nn
