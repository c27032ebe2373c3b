#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/collectives/select/algorithm_selector.h"
#include "shoal/collectives/select/choices.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using testing::HasSubstr;

Selection choose(const AlgorithmSelector& selector, Operation operation, std::int64_t bytes,
                 int ranks = 8, int nodes = 4, MemoryKind memory = MemoryKind::host) {
  return selector.select({operation, bytes, memory, ranks, nodes}, candidates(operation));
}
Algorithm after(std::string_view rules, Operation operation, std::int64_t bytes, int ranks = 8,
                int nodes = 4, MemoryKind memory = MemoryKind::host) {
  AlgorithmSelector selector;
  selector.add(rules, "test");
  return choose(selector, operation, bytes, ranks, nodes, memory).algorithm;
}

TEST(Selection, BuiltInTableAnswersForEveryOperationSizeAndRanks) {
  const AlgorithmSelector selector;
  for (int operation = 0; operation <= static_cast<int>(Operation::barrier); ++operation) {
    const auto o = static_cast<Operation>(operation);
    if (is_message(o)) continue;
    for (const std::int64_t bytes : {0L, 1L, 8L << 10, 1L << 20, 1L << 40})
      for (int ranks = 1; ranks <= 17; ++ranks)
        EXPECT_FALSE(choose(selector, o, bytes, ranks, ranks).why.empty());
  }
}

TEST(Selection, ReportsTheRuleAndItsOrigin) {
  AlgorithmSelector selector;
  EXPECT_EQ(choose(selector, Operation::all_reduce, 8).why,
            "built-in: all_reduce:0-16k:20:@recursive_doubling");
  selector.add("all_reduce:0-64k:@ring/256k", "SHOAL_COLLECTIVES");
  const Selection selection = choose(selector, Operation::all_reduce, 8);
  EXPECT_EQ(selection.algorithm, Algorithm::ring);
  EXPECT_EQ(selection.slice, 256 << 10);
  EXPECT_EQ(selection.why, "SHOAL_COLLECTIVES: all_reduce:0-64k:inf:@ring/256k");
}

TEST(Selection, RangesIncludeTheirStartAndNotTheirEnd) {
  const auto ring = [](std::int64_t bytes) {
    return after("all_reduce:4k-64k:@ring", Operation::all_reduce, bytes) == Algorithm::ring;
  };
  EXPECT_FALSE(ring(4095));
  EXPECT_TRUE(ring(4096));
  EXPECT_TRUE(ring(65535));
  EXPECT_FALSE(ring(65536));
}

TEST(Selection, RanksNodesAndMemoryRestrictARule) {
  const auto rule = "all_reduce:[2-8]:{4}:symmetric,cuda:@tree";
  EXPECT_EQ(after(rule, Operation::all_reduce, 8, 8, 4, MemoryKind::symmetric), Algorithm::tree);
  EXPECT_NE(after(rule, Operation::all_reduce, 8, 9, 4, MemoryKind::symmetric), Algorithm::tree);
  EXPECT_NE(after(rule, Operation::all_reduce, 8, 8, 5, MemoryKind::symmetric), Algorithm::tree);
  EXPECT_NE(after(rule, Operation::all_reduce, 8, 8, 4, MemoryKind::host), Algorithm::tree);
  EXPECT_EQ(after("all_gather:@ring", Operation::all_gather_v, 8), Algorithm::ring);
}

TEST(Selection, LaterRulesOverrideEarlierOnes) {
  EXPECT_EQ(after("all_reduce:@ring#all_reduce:@tree", Operation::all_reduce, 8), Algorithm::tree);
  EXPECT_EQ(after("all_reduce:@ring:5", Operation::all_reduce, 8), Algorithm::recursive_doubling);
  EXPECT_EQ(after("all_reduce:@ring:25#all_reduce:@tree:24", Operation::all_reduce, 8),
            Algorithm::ring);
}

TEST(Selection, RulesCanExcludeAlgorithms) {
  EXPECT_EQ(after("all_reduce:@recursive_doubling:0", Operation::all_reduce, 8), Algorithm::direct);
  EXPECT_EQ(after("^recursive_doubling", Operation::all_reduce, 8), Algorithm::direct);
  EXPECT_EQ(after("@^recursive_doubling", Operation::all_reduce, 8), Algorithm::direct);
  EXPECT_EQ(after("all_reduce:0#all_reduce:@ring:1", Operation::all_reduce, 8), Algorithm::ring);
  AlgorithmSelector selector;
  selector.add("barrier:0", "SHOAL_COLLECTIVES");
  try {
    choose(selector, Operation::barrier, 0);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "no algorithm is left for barrier of 0 bytes, 8 ranks, 4 nodes: barrier:0 "
                 "(SHOAL_COLLECTIVES); allow one in SHOAL_COLLECTIVES");
  }
}

TEST(Selection, PrintsTheRulesThatItReads) {
  AlgorithmSelector selector;
  selector.add(" broadcast,reduce : 1k-3m : host : [4] : {2-3} : 1.5 : @chain/64k // why\n\n^ring",
               "test");
  AlgorithmSelector again;
  const std::string text = selector.print();
  EXPECT_THAT(text, HasSubstr("// test\nbroadcast,reduce:1k-3m:host:[4]:{2-3}:1.5:@chain/64k\n"
                              "0:@ring\n"));
  EXPECT_EQ(parse_rules(text, "a").size(), parse_rules(default_table(), "b").size() + 2);
  for (const Rule& rule : parse_rules(text, "a"))
    EXPECT_EQ(parse_rules(to_string(rule), "b").at(0), rule) << to_string(rule);
}

TEST(Selection, ReadsRulesFromAFile) {
  const std::string path = testing::TempDir() + "/selection_table";
  std::ofstream(path) << "// tuned\nall_reduce:@ring\n";
  EXPECT_EQ(after("@" + path, Operation::all_reduce, 8), Algorithm::ring);
  EXPECT_EQ(after("@ring", Operation::all_reduce, 8), Algorithm::ring);  // not a file
  EXPECT_THROW(after("@/no/such/table", Operation::all_reduce, 8), Error);
}

TEST(Selection, OffersTheAlgorithmsThatAGroupSupports) {
  EXPECT_EQ(offered(Operation::all_reduce, 4, 1).front(), Algorithm::inlined);
  EXPECT_EQ(offered(Operation::all_reduce, 8, 4).front(), Algorithm::hierarchical);
  EXPECT_EQ(offered(Operation::all_reduce, 4, 4).front(), Algorithm::direct);
  EXPECT_EQ(offered(Operation::gather, 8, 4).size(), candidates(Operation::gather).size());
}

TEST(Selection, SharedMemoryHasRulesForItsNumberOfRanks) {
  for (const int ranks : {2, 3, 8, 64}) {
    const AlgorithmSelector selector = make_selector("", ranks);
    const auto choose = [&](Operation operation, std::int64_t bytes) {
      return selector
          .select({operation, bytes, MemoryKind::unknown, ranks, 1}, offered(operation, ranks, 1))
          .algorithm;
    };
    const std::int64_t most = ranks <= 4 ? 8192 : 16384 / ranks;
    EXPECT_EQ(choose(Operation::all_reduce, most), Algorithm::inlined);
    EXPECT_EQ(choose(Operation::all_reduce, most + 1), Algorithm::direct);
    EXPECT_EQ(choose(Operation::broadcast, 8192), Algorithm::inlined);
    EXPECT_EQ(choose(Operation::broadcast, 8193), Algorithm::direct);
    EXPECT_EQ(choose(Operation::all_gather, 16384), Algorithm::inlined);
    EXPECT_EQ(choose(Operation::scatter, 16384 / ranks + 1), Algorithm::direct);
    EXPECT_THAT(selector.print(), HasSubstr("all_reduce:0-"));
  }
}

TEST(Selection, LevelsAreTheDefaultOfSeveralHosts) {
  const AlgorithmSelector selector;
  const auto choose = [&](Operation operation, std::int64_t bytes) {
    return selector.select({operation, bytes, MemoryKind::unknown, 8, 4}, offered(operation, 8, 4))
        .algorithm;
  };
  EXPECT_EQ(choose(Operation::all_reduce, 8), Algorithm::hierarchical);
  EXPECT_EQ(choose(Operation::all_gather, (64 << 10) - 1), Algorithm::direct);
  EXPECT_EQ(choose(Operation::all_gather, 64 << 10), Algorithm::hierarchical);
}

TEST(Selection, RulesForAMemoryDoNotApplyIfItIsUnknown) {
  const AlgorithmSelector selector = [] {
    AlgorithmSelector made;
    made.add("all_reduce:symmetric:@ring", "test");
    return made;
  }();
  EXPECT_EQ(choose(selector, Operation::all_reduce, 1 << 20, 8, 8, MemoryKind::symmetric).algorithm,
            Algorithm::ring);
  EXPECT_EQ(choose(selector, Operation::all_reduce, 1 << 20, 8, 8, MemoryKind::unknown).algorithm,
            Algorithm::direct);
}

TEST(Choices, AreTheSelectorsAnswersAtEverySize) {
  AlgorithmSelector selector;
  selector.add("all_reduce:1k-2k:@ring/256#all_reduce:1500-1600:^ring#broadcast:100-200:0", "test");
  const Choices choices(selector, 8, 8, MemoryKind::unknown, candidates);
  for (std::int64_t bytes = 0; bytes < 40000; bytes += 50)
    for (const Operation operation : {Operation::all_reduce, Operation::all_gather})
      ASSERT_EQ(choices.at(operation, bytes),
                choose(selector, operation, bytes, 8, 8, MemoryKind::unknown))
          << bytes;
  EXPECT_EQ(choices.at(Operation::all_reduce, 1024).slice, 256);
  EXPECT_EQ(choices.at(Operation::broadcast, 150).algorithm, Algorithm::automatic);
  EXPECT_THAT(choices.at(Operation::broadcast, 150).why, HasSubstr("broadcast:100-200:0"));
  EXPECT_EQ(choices.at(Operation::broadcast, 200).algorithm, Algorithm::tree);
  EXPECT_EQ(choices.at(Operation::send, 200).algorithm, Algorithm::automatic);
}

std::string problem_of(std::string_view rules) {
  try {
    parse_rules(rules, "SHOAL_COLLECTIVES");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(SelectionErrors, PointAtThePositionAndNameTheNearestWord) {
  EXPECT_EQ(
      problem_of("^ring#all_reduc:0-4k:@ring"),
      "SHOAL_COLLECTIVES: rule 2 'all_reduc:0-4k:@ring', field 1 'all_reduc' has 'all_reduc', "
      "neither operation nor memory; did you mean all_reduce? There are all_reduce, "
      "reduce_scatter, all_gather, broadcast, reduce, gather, scatter, all_to_all, barrier, "
      "host, symmetric, cuda");
  EXPECT_THAT(problem_of("all_reduce:@rign"),
              HasSubstr("field 2 '@rign' is not an algorithm; did you mean @ring?"));
  EXPECT_THAT(problem_of("all_reduce:ring"), HasSubstr("did you mean @ring?"));
  EXPECT_THAT(problem_of("all_reduce:4k-0:@ring"), HasSubstr("'4k-0' is an empty range"));
  EXPECT_THAT(problem_of("all_reduce:0-4x:@ring"), HasSubstr("has no number '4x'"));
  EXPECT_THAT(problem_of("all_reduce:0-9999999999g:@ring"), HasSubstr("has no number"));
  EXPECT_THAT(problem_of("all_reduce:[2-8:@ring"), HasSubstr("does not end with ']'"));
  EXPECT_THAT(problem_of("all_reduce:[8-2]:@ring"), HasSubstr("empty range"));
  EXPECT_THAT(problem_of("all_reduce:[-2]:@ring"), HasSubstr("has no number ''"));
  EXPECT_THAT(problem_of("all_reduce:4k:@ring"), HasSubstr("is no score"));
  EXPECT_THAT(problem_of("all_reduce"), HasSubstr("says neither algorithm nor score"));
  EXPECT_THAT(problem_of("all_reduce::@ring"), HasSubstr("field 2 '' is empty"));
  EXPECT_THAT(problem_of("@ring:@tree"), HasSubstr("second algorithm"));
  EXPECT_THAT(problem_of("@ring:1:2"), HasSubstr("second score"));
  EXPECT_THAT(problem_of("@ring/0"), HasSubstr("message size"));
  EXPECT_THAT(problem_of("@"), HasSubstr("is not an algorithm"));
  EXPECT_EQ(problem_of(""), "");
  EXPECT_EQ(problem_of("##\n// nothing\n"), "");
}

TEST(Selection, AnOverlongTableIsRefused) {
  const std::string path = ::testing::TempDir() + "/long-table.txt";
  std::ofstream(path) << std::string(300 << 10, '#');
  AlgorithmSelector selector;
  try {
    selector.add("@" + path, "test");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 262144 are read at once"));
  }
  EXPECT_THROW(selector.add("@/dev/zero", "test"), Error);
}

}  // namespace
}  // namespace shoal::collectives
