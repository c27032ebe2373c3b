// Replays the corpus of each fuzz target (./dev fuzz finds its inputs).
#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include "support/use.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/runtime/base/error.h"

namespace shoal::fuzz {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Target& target : targets()) all.emplace_back(target.name);
  return all;
}

class Corpus : public ::testing::TestWithParam<std::string> {};

TEST_P(Corpus, HasNoFinding) {
  const Target& target = *std::ranges::find(targets(), GetParam(), &Target::name);
  const std::vector<std::string> inputs = corpus(target.name);
  ASSERT_FALSE(inputs.empty()) << "tests/fuzz/corpus/" << target.name << ".txt";
  EXPECT_EQ(finding(target, ""), "");
  for (const std::string& input : inputs) EXPECT_EQ(finding(target, input), "") << input;
}

INSTANTIATE_TEST_SUITE_P(Targets, Corpus, ::testing::ValuesIn(names()),
                         [](const auto& test) { return test.param; });

std::string finding_of(void (*run)(Input&), std::string_view bytes, bool lists_problems = false) {
  return finding({.name = "own", .sources = "", .run = run, .lists_problems = lists_problems},
                 bytes);
}

TEST(Frame, FindsWhatAParserMustNotDo) {
  EXPECT_EQ(finding_of([](Input&) {}, "x"), "");
  EXPECT_EQ(finding_of([](Input&) { throw_error(ErrorCode::corrupt_data, "no x"); }, "x"), "");
  EXPECT_THAT(finding_of([](Input&) { throw std::out_of_range("at"); }, "x"),
              HasSubstr("in place of an Error: at"));
  EXPECT_THAT(finding_of([](Input&) { SHOAL_ASSERT(false); }, "x"), HasSubstr("a bug"));
  EXPECT_THAT(finding_of([](Input&) { expect(false, "a = b"); }, "x"), HasSubstr("not so: a = b"));
  const auto two_lines = [](Input&) { throw_error(ErrorCode::corrupt_data, "a\nb"); };
  EXPECT_THAT(finding_of(two_lines, "x"), HasSubstr("two lines"));
  EXPECT_EQ(finding_of(two_lines, "x", true), "");
  EXPECT_THAT(
      finding_of(
          [](Input&) { throw_error(ErrorCode::corrupt_data, "{}", std::string(5'000, 'n')); }, "x"),
      HasSubstr("a line of over"));
}

TEST(Frame, FindsTimeAndMemory) {
  EXPECT_THAT(finding_of(
                  [](Input&) {
                    const double begin = testing::cpu_seconds();
                    while (testing::cpu_seconds() - begin < 0.6) {
                    }
                  },
                  "x"),
              HasSubstr("of CPU time"));
  EXPECT_THAT(finding_of([](Input&) { const std::vector<char> many(20 << 20, 'x'); }, "x"),
              HasSubstr("of memory"));
}

TEST(Frame, DividesAnInput) {
  Input input("2one\n%%\ntwo\n%%\n");
  EXPECT_EQ(input.choice(4), 2);
  EXPECT_EQ(input.part(), "one");
  EXPECT_EQ(input.rest(), "two\n%%\n");
  EXPECT_EQ(input.part(), "two");
  EXPECT_EQ(input.part(), "");
  EXPECT_EQ(input.choice(4), 0);
}

}  // namespace
}  // namespace shoal::fuzz
