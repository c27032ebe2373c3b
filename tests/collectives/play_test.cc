// Tests the simulator: each test breaks one guarantee of a program.
#include "play.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "shoal/collectives/algorithm/programs.h"

namespace shoal::collectives {
namespace {

class Broken : public testing::Test {
 protected:
  Broken() : ranks_(2) {
    for (int rank = 0; rank < 2; ++rank) {
      PlayedRank& played = ranks_[static_cast<std::size_t>(rank)];
      played.program = algorithm::programs::all_reduce(Algorithm::direct, {rank, 2}, 4, {});
      played.inputs = played.outputs = played.output_at = 4;
      played.memory.assign(8, 1);
    }
  }
  std::string problem(PlayOrder order = {}) const {
    try {
      play(ranks_, Arithmetic::integers, order);
    } catch (const std::logic_error& error) {
      return error.what();
    }
    return "";
  }
  algorithm::Instruction& find(std::size_t rank, algorithm::Verb verb) {
    auto& all = ranks_[rank].program.instructions;
    return *std::ranges::find(all, verb, &algorithm::Instruction::verb);
  }
  std::vector<PlayedRank> ranks_;
};

TEST_F(Broken, NothingIsReportedForACorrectProgram) { EXPECT_EQ(problem(), ""); }
TEST_F(Broken, RaceIsFound) {
  find(0, algorithm::Verb::reduce).after.clear();
  EXPECT_EQ(problem(), "rank 0: instructions 1 and 2 race for elements from 0");
}
TEST_F(Broken, RaceInPlaceIsFound) {
  ranks_[0].output_at = 0;
  EXPECT_EQ(problem(), "");
  // Receives the result into elements that it still has to send.
  for (auto& instruction : ranks_[0].program.instructions)
    if (instruction.target.space == algorithm::Space::output &&
        instruction.verb == algorithm::Verb::receive)
      instruction.after.clear();
  EXPECT_EQ(problem(), "rank 0: instructions 0 and 4 race for elements from 2");
}
TEST_F(Broken, LostMessageIsFound) {
  ranks_[1].program.instructions.erase(ranks_[1].program.instructions.end() - 1);
  EXPECT_EQ(problem(), "message 1 from rank 0 to 1 is never received");
}
TEST_F(Broken, WrongLengthIsFound) {
  find(1, algorithm::Verb::send).sources[0].count = 1;
  EXPECT_NE(problem().find("1 elements are sent, 2 received"), std::string::npos) << problem();
}
TEST_F(Broken, WrongTypeIsFound) {
  find(1, algorithm::Verb::receive).target.space = algorithm::Space::partial;
  ranks_[1].program.partial = 2;
  EXPECT_NE(problem().find("of another type"), std::string::npos) << problem();
}
TEST_F(Broken, WriteBeyondTheEndIsFound) {
  ranks_[0].program.scratch = 1;
  EXPECT_EQ(problem(), "rank 0: instruction 1 reaches [0, 2) of 1 elements");
}
TEST_F(Broken, UnwrittenElementIsFound) {
  auto& reduce = find(0, algorithm::Verb::reduce);
  reduce.sources[0] = {algorithm::Space::scratch, 2, 2};
  ranks_[0].program.scratch = 4;
  EXPECT_EQ(problem(), "rank 0: element 2 of space 1 is read before it is written");
}
TEST_F(Broken, DeadlockIsFound) {
  for (std::size_t rank : {0U, 1U}) {
    auto& all = ranks_[rank].program.instructions;
    std::swap(all[0], all[1]);  // both receive before they send
    all[1].after = {0};
    all[2].after = {0, 1};
  }
  EXPECT_NE(problem().find("deadlock"), std::string::npos);
  EXPECT_NE(problem({5, true}).find("deadlock"), std::string::npos);
}
TEST_F(Broken, OrdinalUsedTwiceIsFound) {
  for (auto& instruction : ranks_[0].program.instructions) instruction.ordinal = 0;
  EXPECT_NE(problem().find("uses ordinal 0 again"), std::string::npos) << problem();
}

}  // namespace
}  // namespace shoal::collectives
