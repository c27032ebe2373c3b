// Every store through the common interface: values, waits, counters, ranks as threads.
#include "shoal/runtime/rendezvous/store.h"

#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/rendezvous/tcp_server.h"

namespace shoal {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

Deadline soon() { return Deadline::in_seconds(20); }

std::string fresh_directory(const std::string& name) {
  static std::atomic<int> number{0};
  const std::string path = ::testing::TempDir() + "/" + name + std::to_string(::getpid()) + "-" +
                           std::to_string(number++);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}

template <typename Body>
Error error_of(Body body) {
  try {
    body();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return {ErrorCode::internal, "nothing was thrown"};
}

// Makes clients of one store. Each rank gets its own client unless the store is shared.
struct Fixture {
  virtual ~Fixture() = default;
  virtual std::shared_ptr<Store> client() = 0;
};

struct HashFixture : Fixture {
  std::shared_ptr<Store> store = make_hash_store();
  std::shared_ptr<Store> client() override { return store; }
};

struct FileFixture : Fixture {
  std::string directory = fresh_directory("file-store");
  ~FileFixture() override { fs::remove_all(directory); }
  std::shared_ptr<Store> client() override { return make_file_store(directory, "job/1"); }
};

struct TcpFixture : Fixture {
  TcpStoreServer server{0, "127.0.0.1"};
  std::shared_ptr<Store> client() override {
    return make_tcp_store("127.0.0.1", server.port(), false, 0, soon());
  }
};

struct PrefixFixture : Fixture {
  std::shared_ptr<Store> inner = make_hash_store();
  PrefixFixture() { inner->set("key", "of the other namespace"); }
  std::shared_ptr<Store> client() override { return make_prefix_store("group 1", inner); }
};

class EveryStore : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (GetParam() == "hash") fixture = std::make_unique<HashFixture>();
    if (GetParam() == "file") fixture = std::make_unique<FileFixture>();
    if (GetParam() == "tcp") fixture = std::make_unique<TcpFixture>();
    if (GetParam() == "prefix") fixture = std::make_unique<PrefixFixture>();
  }
  std::unique_ptr<Fixture> fixture;
};

INSTANTIATE_TEST_SUITE_P(Kinds, EveryStore, ::testing::Values("hash", "file", "tcp", "prefix"),
                         [](const auto& kind) { return kind.param; });

TEST_P(EveryStore, KeepsBytesOfAnyKind) {
  const auto a = fixture->client(), b = fixture->client();
  std::string all_bytes;
  for (int i = 0; i < 256; ++i) all_bytes += static_cast<char>(i);
  const std::string odd_key = std::string("a/../b %\0\xff\n", 11);
  for (const std::string& value :
       {std::string(), std::string("x"), all_bytes, std::string(3'000'001, '\x7f')}) {
    a->set(odd_key, value);
    EXPECT_TRUE(b->get(odd_key, soon()) == value) << value.size() << " bytes";
  }
  EXPECT_FALSE(b->try_get("key").has_value());
  a->set("key", "one");
  a->set("key", "two");
  EXPECT_EQ(b->try_get("key"), "two");
}

TEST_P(EveryStore, LongKeysAreDistinct) {
  const auto store = fixture->client();
  const std::string stem(kMaxStoreKey - 10, '/');
  store->set(stem + "a", "1");
  store->set(stem + "b", "2");
  EXPECT_EQ(store->get(stem + "a", soon()), "1");
  EXPECT_EQ(store->get(stem + "b", soon()), "2");
}

TEST_P(EveryStore, RefusesKeysAndValuesOverTheLimits) {
  const auto store = fixture->client();
  EXPECT_EQ(error_of([&] { store->set("", "x"); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { store->set(std::string(kMaxStoreKey + 1, 'k'), "x"); }).code(),
            ErrorCode::invalid_argument);
  const Error error = error_of([&] { store->set("big", std::string(kMaxStoreValue + 1, 'v')); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), HasSubstr("big' has 16777217 bytes"));
}

TEST_P(EveryStore, WaitTimesOutNamingTheMissingKey) {
  const auto store = fixture->client();
  store->set("here", "");
  const auto start = Clock::now();
  const Error error = error_of([&] {
    const std::vector<std::string> keys{"here", "rank 3/address"};
    store->wait(keys, Deadline::in_seconds(0.15));
  });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 3/address'"));
  EXPECT_GE(seconds_since(start), 0.14);
  EXPECT_LT(seconds_since(start), 10);
  // The store still works.
  EXPECT_EQ(store->get("here", soon()), "");
  EXPECT_EQ(error_of([&] { (void)store->get("none", Deadline::in_seconds(-1)); }).code(),
            ErrorCode::timeout);
  EXPECT_EQ(store->get("here", Deadline::in_seconds(0)), "") << "an existing key needs no wait";
}

TEST_P(EveryStore, WakesAWaiterWhileOthersUseTheStore) {
  const auto store = fixture->client();
  std::string got;
  std::thread waiter([&] { got = store->get("later", soon()); });
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  store->set("other", "x");  // the same store, during its wait
  EXPECT_EQ(store->add("n", 1), 1);
  store->set("later", "value");
  waiter.join();
  EXPECT_EQ(got, "value");
}

TEST_P(EveryStore, CountersAreAtomicOverRanks) {
  constexpr int kRanks = 6, kTimes = 40;
  std::vector<std::thread> ranks;
  std::atomic<std::int64_t> highest{0};
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&] {
      const auto store = fixture->client();
      for (int i = 0; i < kTimes; ++i) {
        const std::int64_t now = store->add("counter", 3);
        std::int64_t seen = highest;
        while (now > seen && !highest.compare_exchange_weak(seen, now)) {
        }
      }
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(highest, 3 * kRanks * kTimes);
  const auto store = fixture->client();
  EXPECT_EQ(store->get("counter", soon()), "720");
  EXPECT_EQ(store->add("counter", -721), -1);
  store->set("text", "12x");
  EXPECT_EQ(error_of([&] { store->add("text", 1); }).code(), ErrorCode::corrupt_data);
  store->set("most", std::to_string(INT64_MAX));
  EXPECT_EQ(error_of([&] { store->add("most", 1); }).code(), ErrorCode::corrupt_data);
}

TEST_P(EveryStore, CompareSetHasOneWinner) {
  constexpr int kRanks = 5;
  std::vector<std::thread> ranks;
  std::atomic<int> winners{0};
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      if (fixture->client()->compare_set("leader", std::nullopt, std::to_string(rank))) ++winners;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(winners, 1);
  const auto store = fixture->client();
  const std::string leader = store->get("leader", soon());
  EXPECT_FALSE(store->compare_set("leader", "nobody", "x"));
  EXPECT_FALSE(store->compare_set("leader", std::nullopt, "x"));
  EXPECT_TRUE(store->compare_set("leader", leader, "next"));
  EXPECT_EQ(store->get("leader", soon()), "next");
  EXPECT_FALSE(store->compare_set("absent", "", "x")) << "an empty value is not an absent one";
}

TEST_P(EveryStore, RemoveReportsWhetherTheKeyExisted) {
  const auto store = fixture->client();
  store->set("key", "v");
  EXPECT_TRUE(store->remove("key"));
  EXPECT_FALSE(store->remove("key"));
  EXPECT_FALSE(store->try_get("key").has_value());
}

TEST_P(EveryStore, ExchangeAndBarrierConnectThreadRanks) {
  constexpr int kRanks = 4;
  std::vector<std::vector<std::string>> got(kRanks);
  std::atomic<int> arrived{0}, early{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      const auto store = fixture->client();
      got[static_cast<std::size_t>(rank)] =
          exchange(*store, "hosts", rank, kRanks, "host " + std::to_string(rank), soon());
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(40));
      ++arrived;
      barrier(*store, "end", kRanks, soon());
      if (arrived != kRanks) ++early;
    });
  for (auto& rank : ranks) rank.join();
  EXPECT_EQ(early, 0);
  for (const auto& values : got)
    EXPECT_EQ(values, (std::vector<std::string>{"host 0", "host 1", "host 2", "host 3"}));
}

TEST_P(EveryStore, ExchangeNamesTheMissingRank) {
  const auto store = fixture->client();
  store->set("hosts/0", "host 0");
  const Error error =
      error_of([&] { (void)exchange(*store, "hosts", 1, 3, "host 1", Deadline::in_seconds(0.1)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("rank 2 did not come: "));
}

TEST_P(EveryStore, BarrierTimeoutCountsTheRanksThatCame) {
  const auto store = fixture->client();
  const Error error = error_of([&] { barrier(*store, "start", 3, Deadline::in_seconds(0.1)); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("1 of 3 ranks came"));
}

TEST(PrefixStore, SharesTheStoreUnderItsOwnKeys) {
  const auto inner = make_hash_store();
  const auto store = make_prefix_store("tp", inner);
  store->set("id", "7");
  EXPECT_EQ(inner->try_get("tp/id"), "7");
  EXPECT_FALSE(inner->try_get("id").has_value());
  EXPECT_THAT(error_of([&] { (void)store->get("x", Deadline::in_seconds(0)); }).what(),
              HasSubstr("'tp/x'"));
}

TEST(FileStore, JobsDoNotSeeEachOther) {
  const std::string directory = fresh_directory("jobs");
  make_file_store(directory, "old")->set("key", "stale");
  EXPECT_FALSE(make_file_store(directory, "new")->try_get("key").has_value());
  EXPECT_EQ(make_file_store(directory, "old")->try_get("key"), "stale");
}

TEST(FileStore, TheLastRankRemovesTheDirectory) {
  const std::string directory = fresh_directory("last");
  auto a = make_file_store(directory, "job", 2), b = make_file_store(directory, "job", 2);
  a->set("key", "v");
  a.reset();
  EXPECT_EQ(b->try_get("key"), "v") << "the other rank can still read";
  b.reset();
  EXPECT_TRUE(fs::is_empty(directory));
}

TEST(FileStore, ReportsWhatIsWrongWithItsDirectory) {
  const std::string directory = fresh_directory("bad");
  std::ofstream(directory + "/file") << "x";
  const Error error = error_of([&] { make_file_store(directory + "/file", "job"); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_THAT(error.what(), HasSubstr("SHOAL_STORE_DIR"));
  // A link in place of the store's directory may be another user's trap.
  fs::create_directory_symlink(directory, directory + "/shoal-job");
  EXPECT_THAT(error_of([&] { make_file_store(directory, "job"); }).what(),
              HasSubstr("not a directory of this user"));
}

TEST(FileStore, RefusesADamagedFile) {
  const std::string directory = fresh_directory("damaged");
  const auto store = make_file_store(directory, "job");
  store->set("key", "value");
  fs::resize_file(directory + "/shoal-job/k-key", 5);
  EXPECT_EQ(error_of([&] { (void)store->try_get("key"); }).code(), ErrorCode::corrupt_data);
}

}  // namespace
}  // namespace shoal
