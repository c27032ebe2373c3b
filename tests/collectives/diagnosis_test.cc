#include <fstream>

#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/collectives/diagnosis/diagnose.h"
#include "shoal/collectives/diagnosis/flight_recorder.h"
#include "shoal/runtime/base/error.h"

namespace shoal::collectives {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Signature all_reduce(std::int64_t count) {
  Signature signature;
  signature.operation = Operation::all_reduce;
  signature.dtype = DType::f32;
  signature.count = count;
  return signature;
}
const Signature kBarrier;

Signature message(Operation operation, int peer) {
  Signature signature;
  signature.operation = operation;
  signature.dtype = DType::f32;
  signature.count = 4;
  signature.root = peer;
  return signature;
}

// The flight recorders of a group, one for each rank.
class Job {
 public:
  explicit Job(int size, std::uint32_t first = 1) : next_(static_cast<std::size_t>(size), first) {
    std::vector<int> members;
    for (int rank = 0; rank < size; ++rank) members.push_back(rank);
    for (int rank = 0; rank < size; ++rank) recorders_.emplace_back("native/1", rank, members);
  }
  // The rank calls its next operation; with `done` it also finishes it.
  void call(int rank, const Signature& signature, bool done = true) {
    auto& recorder = recorders_[static_cast<std::size_t>(rank)];
    const std::uint32_t sequence = next_[static_cast<std::size_t>(rank)]++;
    recorder.submitted(sequence, signature);
    if (done) recorder.finished(sequence);
  }
  void all(const Signature& signature) {
    for (int rank = 0; rank < static_cast<int>(recorders_.size()); ++rank) call(rank, signature);
  }
  FlightRecorder& at(int rank) { return recorders_[static_cast<std::size_t>(rank)]; }
  GroupDiagnosis diagnosis(const std::vector<int>& without = {}) {
    std::vector<FlightDump> dumps;
    for (int rank = 0; rank < static_cast<int>(recorders_.size()); ++rank)
      if (std::find(without.begin(), without.end(), rank) == without.end())
        dumps.push_back(parse_flight_dump(at(rank).to_json(), "dump"));
    const auto found = diagnose(dumps);
    EXPECT_EQ(found.size(), 1U);
    return found.front();
  }

 private:
  std::vector<FlightRecorder> recorders_;
  std::vector<std::uint32_t> next_;
};

TEST(Diagnosis, NamesTheRankThatDidNotCome) {
  Job job(4);
  job.all(kBarrier);
  for (const int rank : {0, 1, 3}) job.call(rank, all_reduce(16), false);
  job.at(0).failed("all_reduce did not finish within 600.0 s");
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::desync);
  EXPECT_EQ(found.sequence, 2U);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.summary, HasSubstr("rank 2 never called #2 all_reduce of 16 f32, sum, which "
                                       "ranks 0, 1, 3 wait for; its last call was #1 barrier"));
  EXPECT_THAT(found.details, ::testing::Contains(HasSubstr("rank 0 failed")));
}

TEST(Diagnosis, BelievesReportsOfADeath) {
  Job job(3);
  job.all(kBarrier);
  job.call(0, all_reduce(16), false);  // rank 1 learned of the death before it got here
  job.at(0).failed("rank 2 died", {Blame::Kind::died, {2}});
  job.at(1).failed("rank 2 died", {Blame::Kind::died, {2}});
  const GroupDiagnosis found = job.diagnosis({2});
  EXPECT_EQ(found.verdict, Verdict::lost);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.summary,
              HasSubstr("rank 2 died, while #2 all_reduce of 16 f32, sum was open on rank 0"));
}

TEST(Diagnosis, DistinguishesACutNetworkFromADeadHost) {
  const auto play = [](const std::vector<int>& without) {
    Job job(4);
    for (int rank = 0; rank < 4; ++rank) job.call(rank, all_reduce(16), false);
    for (const int rank : {0, 1}) job.at(rank).failed("cut", {Blame::Kind::unreachable, {2, 3}});
    for (const int rank : {2, 3}) job.at(rank).failed("cut", {Blame::Kind::unreachable, {0, 1}});
    return job.diagnosis(without);
  };
  EXPECT_EQ(play({}).verdict, Verdict::cut);
  EXPECT_THAT(play({}).summary,
              HasSubstr("the network was cut: ranks 2, 3 lost ranks 0, 1; ranks 0, 1 lost ranks 2, "
                        "3, while #1 all_reduce of 16 f32, sum was open on ranks 0, 1, 2, 3"));
  EXPECT_EQ(play({2, 3}).verdict, Verdict::lost);
  EXPECT_THAT(play({2, 3}).culprits, ElementsAre(2, 3));
  EXPECT_THAT(play({2, 3}).summary, HasSubstr("ranks 2, 3 could not be reached and left no dump"));
}

TEST(Diagnosis, NamesTheProcessThatWasStopped) {
  Job job(3);
  job.call(0, all_reduce(16), false);
  job.call(2, all_reduce(16), false);
  job.at(0).failed("timeout", {Blame::Kind::silent, {1}});
  EXPECT_EQ(job.diagnosis({1}).verdict, Verdict::lost);
  EXPECT_THAT(job.diagnosis({1}).summary, HasSubstr("rank 1 did nothing until the deadline"));
  EXPECT_EQ(job.diagnosis().verdict, Verdict::stalled);
  EXPECT_THAT(job.diagnosis().culprits, ElementsAre(1));
}

TEST(Diagnosis, NamesARankThatNeverCalledAnything) {
  Job job(2);
  job.call(0, all_reduce(8), false);
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::desync);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.summary, HasSubstr("it has not called anything"));
}

TEST(Diagnosis, ShowsBothSidesOfAMismatch) {
  Job job(3);
  job.all(all_reduce(4));
  job.call(0, all_reduce(16), false);
  job.call(1, all_reduce(17), false);
  job.call(2, all_reduce(16), false);
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::mismatch);
  EXPECT_THAT(found.culprits, ElementsAre(1));
  EXPECT_THAT(found.summary, HasSubstr("rank 1 called all_reduce of 17 f32, sum"));
  EXPECT_THAT(found.summary, HasSubstr("ranks 0, 2 called all_reduce of 16 f32, sum"));
}

// A mismatch ends the group while a slower rank may not have finished an earlier call.
TEST(Diagnosis, NamesAMismatchAlthoughAnEarlierCallWasInFlight) {
  Job job(3);
  job.all(kBarrier);
  for (const int rank : {0, 1, 2}) {
    job.call(rank, all_reduce(16), false);
    job.at(rank).matched(2);
    if (rank != 1) job.at(rank).finished(2);
  }
  job.call(0, all_reduce(16), false);
  job.call(2, all_reduce(17), false);
  job.call(1, all_reduce(16), false);
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::mismatch);
  EXPECT_EQ(found.sequence, 3);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.summary, HasSubstr("rank 2 called all_reduce of 17 f32, sum"));
}

// Two ranks differ before the others made the call, so no majority shows which one is wrong.
TEST(Diagnosis, BlamesBothSidesOfAMismatchWithoutMajority) {
  Job job(4);
  job.all(kBarrier);
  job.call(2, all_reduce(16), false);
  job.call(3, all_reduce(17), false);
  EXPECT_THAT(job.diagnosis().culprits, ElementsAre(2, 3));
  job.call(0, all_reduce(16), false);
  EXPECT_THAT(job.diagnosis().culprits, ElementsAre(3));
  job.call(1, all_reduce(18), false);
  EXPECT_THAT(job.diagnosis().culprits, ElementsAre(1, 3));
}

TEST(Diagnosis, DistinguishesAKilledRankFromAStalledNetwork) {
  Job job(3);
  job.all(kBarrier);
  for (const int rank : {0, 1, 2}) job.call(rank, all_reduce(16), false);
  const GroupDiagnosis killed = job.diagnosis({1});
  EXPECT_EQ(killed.verdict, Verdict::lost);
  EXPECT_THAT(killed.without_dump, ElementsAre(1));
  EXPECT_THAT(killed.culprits, ElementsAre(1));

  job.at(0).matched(2);
  job.at(0).finished(2);
  const GroupDiagnosis stalled = job.diagnosis();
  EXPECT_EQ(stalled.verdict, Verdict::stalled);
  EXPECT_THAT(stalled.culprits, ElementsAre(1, 2));
  EXPECT_THAT(stalled.summary, HasSubstr("ranks 1, 2 did not get all of the others' data"));
}

TEST(Diagnosis, NamesTheMessageThatWasNeverSent) {
  Job job(3);
  job.all(kBarrier);
  for (const std::uint32_t number : {0U, 1U})
    job.at(0).message_finished(job.at(0).message(number, message(Operation::recv, 2)));
  job.at(2).message_finished(job.at(2).message(0, message(Operation::send, 0)));
  job.at(2).message_finished(job.at(2).message(1, message(Operation::send, 0)));
  EXPECT_EQ(job.diagnosis().verdict, Verdict::fine);
  job.at(1).message(0, message(Operation::recv, 0));  // waits for rank 0, which waits for rank 2
  job.at(0).message(0, message(Operation::send, 1));
  job.at(0).message(2, message(Operation::recv, 2));
  GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::desync);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.summary, HasSubstr("rank 2 never called the send that recv of 4 f32 from rank "
                                       "2 (message 3) of rank 0 waits for"));
  EXPECT_THAT(found.details,
              ::testing::Contains(HasSubstr("; open: recv of 4 f32 from rank 0 (message 1), ")));
  EXPECT_EQ(job.diagnosis({2}).verdict, Verdict::lost);
  job.at(2).message(2, message(Operation::send, 0));
  EXPECT_EQ(job.diagnosis().verdict, Verdict::stalled);
}

// A rank that waits in a recv cannot enter the others' barrier.
TEST(Diagnosis, NamesTheMessageThatBlocksACollective) {
  Job job(3);
  job.all(kBarrier);
  job.at(0).message(0, message(Operation::recv, 2));
  for (const int rank : {1, 2}) job.call(rank, kBarrier, false);
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::desync);
  EXPECT_THAT(found.culprits, ElementsAre(2));
  EXPECT_THAT(found.summary, HasSubstr("rank 2 never called the send that recv of 4 f32"));
  // The message may be in flight, so it does not explain why rank 0 is missing from the barrier.
  job.at(2).message(0, message(Operation::send, 0));
  EXPECT_THAT(job.diagnosis().culprits, ElementsAre(0));
}

TEST(Diagnosis, SaysWhenNothingIsOpen) {
  Job job(2);
  job.all(kBarrier);
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::fine);
  EXPECT_FALSE(found.sequence);
  EXPECT_THAT(found.culprits, IsEmpty());
}

TEST(Diagnosis, FollowsSequencesOverTheWrap) {
  Job job(2, 0xfffffffeU);
  job.all(kBarrier);                  // 0xfffffffe
  job.all(kBarrier);                  // 0xffffffff
  job.all(kBarrier);                  // 0
  job.call(1, all_reduce(5), false);  // 1
  const GroupDiagnosis found = job.diagnosis();
  EXPECT_EQ(found.verdict, Verdict::desync);
  EXPECT_EQ(found.sequence, 1U);
  EXPECT_THAT(found.culprits, ElementsAre(0));
}

TEST(FlightRecorder, RemembersOnlyTheLastOperations) {
  FlightRecorder recorder("native/1", 0, {0, 1});
  for (std::uint32_t sequence = 1; sequence <= 2 * FlightRecorder::kCapacity + 3; ++sequence) {
    recorder.submitted(sequence, kBarrier);
    recorder.finished(sequence);
  }
  const auto json = recorder.to_json();
  ASSERT_EQ(json["operations"].size(), FlightRecorder::kCapacity);
  EXPECT_EQ(json["operations"].front()["sequence"], FlightRecorder::kCapacity + 4);
  EXPECT_EQ(json["operations"].back()["sequence"], 2 * FlightRecorder::kCapacity + 3);
  EXPECT_TRUE(json["failure"].is_null());

  const auto oldest = recorder.message(0, message(Operation::send, 1));
  for (std::uint32_t number = 1; number <= FlightRecorder::kCapacity; ++number)
    recorder.message(number, message(Operation::send, 1));
  recorder.message_finished(oldest);  // already overwritten
  const auto messages = recorder.to_json()["messages"];
  ASSERT_EQ(messages.size(), FlightRecorder::kCapacity);
  EXPECT_EQ(messages.front()["number"], 1);
  for (const auto& one : messages) EXPECT_TRUE(one["finished_s_ago"].is_null());
}

TEST(FlightRecorder, DumpsAFileThatCanBeRead) {
  const testing::TemporaryDirectory directory;
  FlightRecorder recorder("native/1", 1, {3, 5});
  recorder.submitted(7, all_reduce(12));
  recorder.failed("first");
  recorder.failed("second");
  const std::string path = recorder.dump(directory / "made/here");
  EXPECT_THAT(path, ::testing::EndsWith("flight-native-1-rank1.json"));
  const FlightDump dump = read_flight_dump(path);
  EXPECT_EQ(dump.failure, "first");
  EXPECT_THAT(dump.members, ElementsAre(3, 5));
  ASSERT_EQ(dump.operations.size(), 1U);
  EXPECT_EQ(dump.operations[0].text, "all_reduce of 12 f32, sum");
  EXPECT_FALSE(dump.operations[0].finished_s_ago);
  // Without a writable place it neither throws nor creates a file.
  EXPECT_EQ(recorder.dump("/proc/none/such"), "");
}

// An Error may quote user input, and is cut to fit shared memory, possibly inside a UTF-8
// character.
TEST(FlightRecorder, DumpsAFailureThatIsNotValidUtf8) {
  const testing::TemporaryDirectory directory;
  FlightRecorder recorder("native/1", 0, {0, 1});
  recorder.failed("cannot read caf\xc3");
  const std::string path = recorder.dump(directory.path());
  ASSERT_NE(path, "");
  EXPECT_THAT(read_flight_dump(path).failure, HasSubstr("cannot read caf"));
}

TEST(FlightRecorder, RefusesFilesThatAreNotDumps) {
  const testing::TemporaryDirectory directory;
  const std::string path = directory / "x.json";
  for (const char* text : {"{", "[]", "{}", R"({"format": "shoal-flight-9"})",
                           R"({"format": "shoal-flight-1", "group": 3})"}) {
    std::ofstream(path) << text;
    try {
      read_flight_dump(path);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      EXPECT_THAT(error.what(), HasSubstr("x.json"));
    }
  }
}

}  // namespace
}  // namespace shoal::collectives
