#include "shoal/sagemaker/rest/s3.h"

#include "sagemaker/rest/rig.h"

#include "shoal/runtime/io/base64.h"
#include "shoal/sagemaker/rest/checksum.h"

namespace shoal::sagemaker {
namespace {

using test::ServedReply;
using test::xml_error;

std::string bytes_of(std::size_t count) {
  std::string text(count, '\0');
  unsigned x = 1;
  for (char& c : text) {
    x = x * 1664525U + 1013904223U;
    c = static_cast<char>(x >> 24U);
  }
  return text;
}

class ObjectStore : public ::testing::Test {
 protected:
  FakeAws aws_;
  const S3 s3_ = session_at(aws_).s3();
};

TEST_F(ObjectStore, PutHeadReadListRemove) {
  const S3Name name{"bucket", "a b/c+d/../é.txt"};
  const std::string etag = s3_.put(name, "0123456789", {.content_type = "text/plain"});
  EXPECT_EQ(aws_.object("bucket/a b/c+d/../é.txt"), "0123456789");
  const ObjectHead head = s3_.head(name);
  EXPECT_EQ(head.size, 10);
  EXPECT_EQ(head.etag, etag);
  EXPECT_EQ(head.checksum_name, "md5");
  EXPECT_EQ("\"" + hex(head.checksum) + "\"", etag);
  std::string part(4, ' ');
  s3_.read(name, etag, 3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "3456");
  s3_.remove(name);
  EXPECT_FALSE(aws_.has_object("bucket/a b/c+d/../é.txt"));
  EXPECT_THAT(error_text([&] { (void)s3_.head(name); }),
              AllOf(HasSubstr("HTTP 404"), HasSubstr("s3://bucket/a b/c+d")));
}

TEST_F(ObjectStore, ListsInPages) {
  for (int i = 0; i < 25; ++i) aws_.put_object(fmt::format("bucket/data/part {:02}+", i), "x");
  aws_.put_object("bucket/other", "x");
  aws_.page = 4;
  const auto objects = s3_.list({"bucket", "data/"});
  ASSERT_EQ(objects.size(), 25U);
  EXPECT_EQ(objects[7].key, "data/part 07+");
  EXPECT_EQ(objects[7].size, 1);
  EXPECT_EQ(aws_.calls("S3 ListObjectsV2"), 7);
  EXPECT_TRUE(s3_.list({"bucket", "nothing"}).empty());
}

TEST_F(ObjectStore, ChecksumsThatS3Keeps) {
  aws_.put_object("bucket/a", "123456789");
  aws_.set_object_header("bucket/a", "x-amz-checksum-crc64nvme",
                         to_base64(std::string("\xae\x8b\x14\x86\x0a\x79\x98\x88")));
  aws_.set_object_header("bucket/a", "x-amz-checksum-type", "FULL_OBJECT");
  EXPECT_EQ(s3_.head({"bucket", "a"}).checksum_name, "crc64nvme");
  EXPECT_EQ(hex(s3_.head({"bucket", "a"}).checksum), "ae8b14860a799888");
  aws_.put_object("bucket/b", "123456789");
  aws_.set_object_header("bucket/b", "x-amz-checksum-crc32", "abcdAA==-3");
  aws_.set_object_header("bucket/b", "x-amz-checksum-type", "COMPOSITE");
  EXPECT_EQ(s3_.head({"bucket", "b"}).checksum_name, "md5");
  aws_.put_object("bucket/d", "123456789");  // uploaded in parts, which only the value shows
  aws_.set_object_header("bucket/d", "x-amz-checksum-crc32", "abcdAA==-3");
  EXPECT_EQ(s3_.head({"bucket", "d"}).checksum_name, "md5");
  aws_.put_object("bucket/c", "123456789");
  aws_.set_object_header("bucket/c", "x-amz-server-side-encryption", "aws:kms");
  EXPECT_EQ(s3_.head({"bucket", "c"}).checksum_name, "");
}

TEST_F(ObjectStore, KnowsWhatItHas) {
  const std::string text = bytes_of(17 << 20);  // two parts
  for (const std::string& body : {std::string(), text.substr(0, 1000), text}) {
    const auto source = make_memory_source(body, "local");
    s3_.upload({"bucket", "data/x"}, *source);
    const ListedObject listed = s3_.list({"bucket", "data/"}).at(0);
    const int heads = aws_.calls("S3 HeadObject");
    EXPECT_TRUE(s3_.has_same("bucket", listed, *source));
    EXPECT_EQ(aws_.calls("S3 HeadObject"), heads) << "the listed ETag is enough";
    EXPECT_FALSE(s3_.has_same("bucket", listed, *make_memory_source(body + "y", "longer")));
    if (body.empty()) continue;
    std::string other = body;
    other.back() = static_cast<char>(other.back() ^ 1);
    EXPECT_FALSE(s3_.has_same("bucket", listed, *make_memory_source(other, "other")));
    // An ETag that is no MD5, as of objects encrypted with KMS.
    const ListedObject encrypted{listed.key, listed.size, "\"0123-4\""};
    EXPECT_FALSE(s3_.has_same("bucket", encrypted, *source)) << "nothing to compare";
    const auto sum = make_checksum("crc64nvme");
    sum->add(std::as_bytes(std::span(body)));
    aws_.set_object_header("bucket/data/x", "x-amz-checksum-crc64nvme", to_base64(sum->finish()));
    EXPECT_TRUE(s3_.has_same("bucket", encrypted, *source));
    EXPECT_FALSE(s3_.has_same("bucket", encrypted, *make_memory_source(other, "other")));
  }
}

TEST_F(ObjectStore, ReadsAgainAfterACut) {
  aws_.put_object("bucket/a", bytes_of(5000));
  aws_.fail_next({.operation = "S3 GetObject", .done = true, .cut_after = 3000});
  aws_.fail_next({.operation = "S3 GetObject", .reply = xml_error(503, "SlowDown", "slow down")});
  std::string all(5000, ' ');
  s3_.read({"bucket", "a"}, "", 0, std::as_writable_bytes(std::span(all)));
  EXPECT_EQ(all, bytes_of(5000));
  EXPECT_EQ(aws_.calls("S3 GetObject"), 3);
}

TEST_F(ObjectStore, RangesThatAreNotTheOnesAskedFor) {
  aws_.put_object("bucket/a", "0123456789");
  std::string part(4, ' ');
  const auto read = [&](ServedReply reply) {
    aws_.fail_next({.operation = "S3 GetObject", .reply = std::move(reply)});
    return error_text(
        [&] { s3_.read({"bucket", "a"}, "", 2, std::as_writable_bytes(std::span(part))); });
  };
  EXPECT_THAT(read({.status = 200, .body = "0123456789"}), HasSubstr("asked for bytes 2 to 5"));
  EXPECT_THAT(read({.status = 206, .headers = {{"Content-Range", "bytes 0-3/10"}}, .body = "0123"}),
              HasSubstr("got 'bytes 0-3/10'"));
  EXPECT_THAT(error_text([&] {
                s3_.read({"bucket", "a"}, "", 12, std::as_writable_bytes(std::span(part)));
              }),
              HasSubstr("s3://bucket/a has no bytes 12 to 15"));
  EXPECT_THAT(error_text([&] {
                s3_.read({"bucket", "a"}, "\"old\"", 2, std::as_writable_bytes(std::span(part)));
              }),
              HasSubstr("s3://bucket/a changed while it was read"));
}

TEST_F(ObjectStore, PartSizes) {
  constexpr std::int64_t mib = 1 << 20;
  EXPECT_EQ(part_size(0), 16 * mib);
  EXPECT_EQ(part_size(10'000 * 16 * mib), 16 * mib);
  EXPECT_EQ(part_size(10'000 * 16 * mib + 1), 17 * mib);
  EXPECT_LE(part_size(5 * mib * mib), 5 * 1024 * mib);
  EXPECT_EQ(part_size(100 * mib, 5 * mib), 5 * mib);
  EXPECT_THROW((void)part_size(5 * mib * mib + 1), Error);
  EXPECT_THROW((void)part_size(100, 5 * mib - 1), Error);
  EXPECT_THROW((void)part_size(100'000 * mib, 5 * mib), Error);
}

class Upload : public ObjectStore {
 protected:
  std::string upload() {
    return s3_.upload({"bucket", "big"}, *make_memory_source(body_, "body"),
                      {.part_bytes = 5 << 20, .connections = 2});
  }
  const std::string body_ = bytes_of((10 << 20) + 12345);
};

TEST_F(Upload, InParts) {
  EXPECT_THAT(upload(), HasSubstr("-3\""));
  EXPECT_TRUE(aws_.object("bucket/big") == body_);
  EXPECT_EQ(aws_.calls("S3 UploadPart"), 3);
  EXPECT_EQ(s3_.head({"bucket", "big"}).checksum_name, "") << "its ETag is no MD5";
  s3_.upload({"bucket", "small"}, *make_memory_source("few", "body"));
  EXPECT_EQ(aws_.object("bucket/small"), "few");
}

TEST_F(Upload, PartsThatFailAreSentAgain) {
  aws_.fail_next({.operation = "S3 UploadPart", .reply = xml_error(500, "InternalError", "oops")});
  aws_.fail_next({.operation = "S3 UploadPart", .done = true, .cut_after = 9});
  // The status is 200, but the body is an error.
  ServedReply odd = xml_error(200, "InternalError", "We encountered an internal error");
  aws_.fail_next({.operation = "S3 CompleteMultipartUpload", .reply = odd});
  upload();
  EXPECT_TRUE(aws_.object("bucket/big") == body_);
  EXPECT_EQ(aws_.calls("S3 CompleteMultipartUpload"), 2);
}

TEST_F(Upload, AnEndWhoseAnswerIsLost) {
  aws_.fail_next({.operation = "S3 CompleteMultipartUpload", .done = true, .cut_after = 40});
  EXPECT_THAT(upload(), HasSubstr("-3\""));
  EXPECT_TRUE(aws_.object("bucket/big") == body_);
}

// The upload is gone, and an object of the same number of parts exists from an earlier time.
TEST(UploadOfParts, TakesNoOtherObjectForItsOwn) {
  std::int64_t size_there = 5;
  const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
    if (request.method == "HEAD")
      return HttpResponse{
          .status = 200,
          .headers = {{"content-length", std::to_string(size_there)}, {"etag", "\"x-3\""}}};
    if (request.method == "PUT") return HttpResponse{.status = 200, .headers = {{"etag", "\"p\""}}};
    if (request.url.query == "uploads")
      return HttpResponse{.status = 200,
                          .body =
                              "<InitiateMultipartUploadResult><UploadId>u</UploadId>"
                              "</InitiateMultipartUploadResult>"};
    return HttpResponse{.status = 404, .body = "<Error><Code>NoSuchUpload</Code></Error>"};
  });
  const S3 s3({.transport = transport, .credentials = example_keys(), .retry = no_waiting()},
              {.region = "us-east-1"});
  const std::string body((10 << 20) + 1, 'x');
  const auto upload = [&] {
    return s3.upload({"bucket", "big"}, *make_memory_source(body, "body"), {.part_bytes = 5 << 20});
  };
  EXPECT_THAT(error_text([&] { upload(); }), HasSubstr("NoSuchUpload"));
  size_there = std::ssize(body);
  EXPECT_EQ(upload(), "\"x-3\"") << "the answer to its completion was lost";
}

TEST_F(Upload, FailureLeavesNothing) {
  aws_.fail_next({.operation = "S3 UploadPart", .reply = xml_error(403, "AccessDenied", "no")});
  EXPECT_THAT(error_text([&] { upload(); }), HasSubstr("AccessDenied"));
  EXPECT_EQ(aws_.open_uploads(), 0);
  EXPECT_FALSE(aws_.has_object("bucket/big"));
}

// Two regions redirect to each other.
TEST(S3Regions, AreNotChasedForEver) {
  int asked = 0;
  const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
    if (++asked > 9) throw Error(ErrorCode::internal, "asked ten times");
    const bool east = request.url.host == "bucket.s3.us-east-1.amazonaws.com";
    return HttpResponse{.status = 301,
                        .headers = {{"x-amz-bucket-region", east ? "eu-west-1" : "us-east-1"}}};
  });
  const S3 s3({.transport = transport, .credentials = example_keys(), .retry = no_waiting()},
              {.region = "us-east-1"});
  EXPECT_THAT(error_text([&] { (void)s3.head({"bucket", "a"}); }), HasSubstr("HTTP 301"));
  EXPECT_EQ(asked, 2);
}

// A machine has one clock: later calls use the offset that an earlier call learnt.
TEST(S3Clock, IsLearntOnce) {
  int skewed = 0;
  const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
    if (*find_header(request.headers, "X-Amz-Date") < "20990101T000000Z") {
      ++skewed;
      return HttpResponse{.status = 403, .headers = {{"date", "Thu, 01 Jan 2099 00:00:00 GMT"}}};
    }
    return HttpResponse{.status = 200, .headers = {{"content-length", "5"}, {"etag", "\"x\""}}};
  });
  const S3 s3({.transport = transport,
               .credentials = example_keys(),
               .retry = no_waiting(),
               .now = [] { return from_epoch(1'700'000'000); }},
              {.region = "us-east-1"});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(s3.head({"bucket", "a"}).size, 5);
  EXPECT_EQ(skewed, 1);
}

// The bucket is in another region, and S3 answers with its name.
TEST(S3Regions, AreLearnt) {
  std::vector<std::string> hosts;
  const auto transport = std::make_shared<FunctionTransport>([&](const HttpRequest& request) {
    hosts.push_back(request.url.host);
    if (request.url.host.starts_with("other.s3.us-east-1"))  // without the region's header
      return HttpResponse{.status = 400,
                          .body =
                              "<Error><Code>AuthorizationHeaderMalformed</Code><Message>the "
                              "region 'us-east-1' is wrong</Message><Region>eu-west-1</Region>"
                              "</Error>"};
    if (!request.url.host.ends_with(".s3.eu-west-1.amazonaws.com"))
      return HttpResponse{.status = 301, .headers = {{"x-amz-bucket-region", "eu-west-1"}}};
    return HttpResponse{.status = 200, .headers = {{"content-length", "5"}, {"etag", "\"x\""}}};
  });
  const S3 s3({.transport = transport, .credentials = example_keys(), .retry = no_waiting()},
              {.region = "us-east-1"});
  EXPECT_EQ(s3.head({"bucket", "a"}).size, 5);
  EXPECT_EQ(s3.head({"bucket", "b"}).size, 5);
  EXPECT_THAT(hosts,
              ElementsAre("bucket.s3.us-east-1.amazonaws.com", "bucket.s3.eu-west-1.amazonaws.com",
                          "bucket.s3.eu-west-1.amazonaws.com"));
  EXPECT_EQ(s3.head({"other", "c"}).size, 5);
  EXPECT_EQ(hosts.size(), 5U);
}

}  // namespace
}  // namespace shoal::sagemaker
