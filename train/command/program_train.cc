// shoal::train(): for programs only, since a library that others load cannot hold signals back
// (own_signals.h).
#include "shoal/run.h"
#include "shoal/runtime/base/own_signals.h"
#include "shoal/train/command/train.h"

int shoal::train(const std::vector<std::string>& words) {
  take_back_signals();
  return command::train(words, [](SourceRegistry&) {});
}
