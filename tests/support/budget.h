// Checks that a parser stays within its budget (support/use.h).
//
//   within_budget(text.size(), "a deep document", [&] { parse(text); });
#pragma once

#include <exception>
#include <string>

#include "support/use.h"
#include <gtest/gtest.h>

namespace shoal::testing {

// Runs `parse` and returns the text of the exception it threw, or "" if it returned.
template <typename Parse>
std::string within_budget(std::size_t input_bytes, const std::string& name, const Parse& parse) {
  const Use allowed = allowed_use(input_bytes);
  std::string problem;
  const Use use = measured_use(allowed, [&] {
    try {
      parse();
    } catch (const std::exception& thrown) {
      problem = thrown.what();
    }
  });
  EXPECT_LE(use.seconds, allowed.seconds) << name << ": " << input_bytes << " bytes";
  EXPECT_LE(use.bytes, allowed.bytes) << name << ": " << input_bytes << " bytes";
  return problem;
}

}  // namespace shoal::testing
