#include "shoal/sagemaker/rest/s3_source.h"

#include <future>

#include "sagemaker/rest/rig.h"

namespace shoal::sagemaker {
namespace {

using test::xml_error;

class Source : public ::testing::Test {
 protected:
  Source() {
    unsigned x = 7;
    for (char& c : body_) {
      x = x * 1664525U + 1013904223U;
      c = static_cast<char>(x >> 24U);
    }
    aws_.put_object("bucket/object", body_);
  }
  S3Reader reader(S3ReadOptions options = {.connections = 4, .part_bytes = 1000, .read_ahead = 2}) {
    return S3Reader(session_at(aws_, &waits_).s3(), options);
  }
  std::string read(const ByteSource& source, std::size_t offset, std::size_t count) {
    std::string bytes(count, ' ');
    source.read(static_cast<std::int64_t>(offset), std::as_writable_bytes(std::span(bytes)));
    return bytes;
  }
  int gets() const { return aws_.calls("S3 GetObject"); }

  std::string body_ = std::string(10'500, ' ');
  FakeAws aws_;
  std::vector<double> waits_;
};

TEST_F(Source, ReadsAWholeObjectInParts) {
  const auto source = reader().open("s3://bucket/object");
  EXPECT_EQ(source->size(), 10'500);
  EXPECT_EQ(source->name(), "s3://bucket/object");
  EXPECT_TRUE(read_all(*source) == body_);
  EXPECT_EQ(gets(), 11);
  EXPECT_THAT(error_text([&] { read(*source, 10'000, 501); }), HasSubstr("lie beyond its 10500"));
  EXPECT_EQ(read(*source, 10'500, 0), "");
}

TEST_F(Source, SmallReadsInOrderAreFetchedAhead) {
  const auto source = reader().open("s3://bucket/object");
  std::string all;
  while (all.size() < body_.size())
    all += read(*source, all.size(), std::min<std::size_t>(170, body_.size() - all.size()));
  EXPECT_TRUE(all == body_);
  EXPECT_EQ(gets(), 11) << "each part once";
  EXPECT_EQ(read(*source, 4321, 10), body_.substr(4321, 10));
  EXPECT_EQ(gets(), 12) << "elsewhere: its own range only";
}

TEST_F(Source, HoldsNoPartsThatWereRead) {
  const auto source = reader().open("s3://bucket/object");
  for (std::size_t at = 0; at < body_.size(); at += 500) read(*source, at, 500);
  EXPECT_EQ(gets(), 11);
  read(*source, 0, 100);
  EXPECT_EQ(read(*source, 100, 100), body_.substr(100, 100));
  EXPECT_GE(gets(), 12 + 1) << "the part again; later parts may be in flight";
}

// The parts write into the caller's memory, so open() must wait for all of them.
TEST_F(Source, WaitsForAllPartsIfOneFails) {
  const auto source =
      reader({.connections = 1, .part_bytes = 1000, .attempts = 1}).open("s3://bucket/object");
  aws_.fail_next({.operation = "S3 GetObject", .reply = xml_error(503, "SlowDown", "later")});
  EXPECT_THAT(error_text([&] { read_all(*source); }), HasSubstr("SlowDown"));
  EXPECT_EQ(gets(), 11);
}

TEST_F(Source, ManyReadersAtOnce) {
  const S3Reader shared = reader();
  const auto source = shared.open("s3://bucket/object");
  std::vector<std::future<void>> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.push_back(std::async(std::launch::async, [&, t] {
      for (unsigned i = 0; i < 12; ++i) {
        const std::size_t offset = (t * 977 + i * 1301) % 9000;
        const std::size_t count = (i * 389) % 1500;
        EXPECT_TRUE(read(*source, offset, count) == body_.substr(offset, count));
      }
    }));
  for (auto& thread : threads) thread.get();
}

TEST_F(Source, LosesNothing) {
  for (int i = 0; i < 6; ++i) {
    aws_.fail_next({.operation = "S3 GetObject", .reply = xml_error(503, "SlowDown", "later")});
    aws_.fail_next({.operation = "S3 GetObject", .done = true, .cut_after = 100 + 150 * i});
    aws_.fail_next({.operation = "S3 GetObject", .reply = {.status = 500}});
  }
  // All faults may hit the same part.
  const auto source =
      reader({.connections = 4, .part_bytes = 1000, .attempts = 19}).open("s3://bucket/object");
  EXPECT_TRUE(read_all(*source) == body_);
  EXPECT_EQ(gets(), 11 + 18);
}

TEST_F(Source, OpensAndListsAsPatientlyAsItReads) {
  const S3Reader patient = reader({.connections = 1, .part_bytes = 1000, .attempts = 6});
  aws_.fail_next({.operation = "S3 HeadObject", .reply = {.status = 503}}, 5);
  EXPECT_EQ(patient.open("s3://bucket/object")->size(), 10'500);
  aws_.fail_next({.operation = "S3 ListObjectsV2", .reply = {.status = 503}}, 5);
  EXPECT_EQ(patient.list("s3://bucket/").size(), 1U);
}

TEST_F(Source, GivesUpInOneLine) {
  const auto source =
      reader({.connections = 4, .part_bytes = 1000, .attempts = 3}).open("s3://bucket/object");
  aws_.fail_next({.operation = "S3 GetObject", .reply = xml_error(503, "SlowDown", "later")}, 100);
  EXPECT_THAT(error_text([&] { read_all(*source); }),
              AllOf(HasSubstr("SlowDown"), HasSubstr("s3://bucket/object")));
}

TEST_F(Source, ChangedObjectsAreNoticed) {
  const auto source = reader().open("s3://bucket/object");
  EXPECT_EQ(read(*source, 0, 100), body_.substr(0, 100));
  aws_.put_object("bucket/object", std::string(10'500, 'y'));
  EXPECT_THAT(error_text([&] { read_all(*source); }),
              HasSubstr("s3://bucket/object changed while it was read"));
  EXPECT_THAT(error_text([&] { read(*source, 9000, 10); }), HasSubstr("changed"));
}

TEST_F(Source, WrongBytesAreNoticed) {
  aws_.set_object_header("bucket/object", "x-amz-checksum-crc32c", "AAAAAA==");
  const auto source = reader().open("s3://bucket/object");
  EXPECT_THAT(error_text([&] { read_all(*source); }),
              HasSubstr("its crc32c is 00000000, but of the 10500 bytes read it is"));
  EXPECT_TRUE(read_all(*reader({.part_bytes = 4000, .verify = false}).open("s3://bucket/object")) ==
              body_);
}

TEST_F(Source, AFailedPartIsFetchedAgain) {
  const auto source = reader({.connections = 1, .part_bytes = 1000, .read_ahead = 0, .attempts = 1})
                          .open("s3://bucket/object");
  aws_.fail_next({.operation = "S3 GetObject", .reply = xml_error(503, "SlowDown", "later")});
  EXPECT_THAT(error_text([&] { read(*source, 0, 100); }), HasSubstr("SlowDown"));
  EXPECT_EQ(read(*source, 100, 100), body_.substr(100, 100)) << "from the failed part";
  EXPECT_EQ(read(*source, 0, 100), body_.substr(0, 100));
}

TEST_F(Source, ThroughTheRegistry) {
  aws_.put_object("bucket/data/a.txt", "a");
  aws_.put_object("bucket/data/b.txt", "b");
  aws_.put_object("bucket/data/b.bin", "b");
  aws_.put_object("bucket/data/", "");
  aws_.put_object("bucket/empty", "");
  SourceRegistry registry;
  int made = 0;
  register_s3(registry, [&] {
    ++made;
    return std::make_shared<const S3Reader>(session_at(aws_).s3());
  });
  EXPECT_EQ(made, 0);
  EXPECT_THAT(registry.match("s3://bucket/data/*.txt"),
              ElementsAre("s3://bucket/data/a.txt", "s3://bucket/data/b.txt"));
  EXPECT_EQ(registry.match("s3://bucket/data/").size(), 3U);
  EXPECT_EQ(read_all(*registry.open("s3://bucket/data/a.txt")), "a");
  EXPECT_EQ(read_all(*registry.open("s3://bucket/empty")), "");
  EXPECT_EQ(open_whole("s3://bucket/object", registry).bytes.size(), body_.size());
  EXPECT_EQ(made, 1);
  EXPECT_THAT(error_text([&] { (void)registry.open("s3://bucket/gone"); }),
              HasSubstr("s3://bucket/gone"));
  EXPECT_THAT(error_text([&] { (void)registry.open("s3://bucket"); }), HasSubstr("not an object"));
}

}  // namespace
}  // namespace shoal::sagemaker
