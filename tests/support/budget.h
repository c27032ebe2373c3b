// Checks that a parser stays within its budget (support/use.h), or other work within a time.
//
//   within_budget(text.size(), "a deep document", [&] { parse(text); });
//   within_seconds(2, "a model of many layers", [&] { model.parameters(); });
#pragma once

#include <exception>
#include <string>

#include "support/use.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

namespace shoal::testing {

// Runs `work`, which may take `allowed`, and returns the text of the exception it threw, or "" if
// it returned.
template <typename Work>
std::string within(const Use& allowed, const std::string& name, const Work& work) {
  std::string problem;
  const Use use = measured_use(allowed, [&] {
    try {
      work();
    } catch (const std::exception& thrown) {
      problem = thrown.what();
    }
  });
  EXPECT_LE(use.seconds, allowed.seconds) << name;
  EXPECT_LE(use.bytes, allowed.bytes) << name;
  return problem;
}

template <typename Parse>
std::string within_budget(std::size_t input_bytes, const std::string& name, const Parse& parse) {
  return within(allowed_use(input_bytes), fmt::format("{}: {} bytes", name, input_bytes), parse);
}

// CPU seconds of an idle processor, of an optimized build.
template <typename Work>
void within_seconds(double seconds, const std::string& name, const Work& work) {
  const Use allowed{.seconds = kSlowBuild * seconds};
  EXPECT_LE(measured_use(allowed, work).seconds, allowed.seconds) << name;
}

}  // namespace shoal::testing
