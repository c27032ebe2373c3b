#include "shoal/runtime/io/safetensors.h"

#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/sharded_safetensors.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    directory = ::testing::TempDir() + "/safetensors-" + std::to_string(::getpid());
    fs::remove_all(directory);
    fs::create_directories(directory);
    path = directory + "/model.safetensors";
  }
  void TearDown() override { fs::remove_all(directory); }

  static std::string framed(const std::string& header, std::size_t data_bytes) {
    std::string text;
    for (int i = 0; i < 8; ++i) text += static_cast<char>((header.size() >> (8 * i)) & 0xff);
    return text + header + std::string(data_bytes, '\1');
  }
  // Returns why a file of these bytes is refused, or "" if it is valid.
  std::string problem_of(const std::string& bytes) const {
    std::ofstream(path, std::ios::binary) << bytes;
    try {
      (void)SafetensorsFile::open(path);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      EXPECT_THAT(error.what(), HasSubstr(path));
      return error.what();
    }
    return "";
  }
  std::string directory, path;
};

const std::string kEntry = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";

TEST_F(Safetensors, ReadsWhatItWrites) {
  std::vector<float> f(6);
  std::iota(f.begin(), f.end(), 0.5f);
  std::vector<std::int64_t> i{1, -2, 3};
  std::vector<std::uint8_t> u{7, 8, 9};
  std::vector<bfloat16> b{bfloat16(1.5f)};
  write_safetensors(path,
                    {{"bytes", {u.data(), {3}, DType::u8}},
                     {"half", {b.data(), {}, DType::bf16}},
                     {"w", {f.data(), {2, 3}, DType::f32}},
                     {"ids", {i.data(), {3}, DType::i64}},
                     {"empty", {nullptr, {0, 4}, DType::f16}}},
                    {{"note", "\"quoted\""}});
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file->metadata().at("format"), "pt");
  EXPECT_EQ(file->metadata().at("note"), "\"quoted\"");
  const Tensor w = file->tensor("w");
  EXPECT_EQ(w.shape(), (Shape{2, 3}));
  EXPECT_EQ(w.dtype(), DType::f32);
  for (std::size_t n = 0; n < f.size(); ++n) EXPECT_EQ(w.const_data<float>()[n], f[n]);
  EXPECT_EQ(file->tensor("ids").const_data<std::int64_t>()[1], -2);
  EXPECT_EQ(float(file->tensor("half").const_data<bfloat16>()[0]), 1.5f);
  EXPECT_EQ(file->tensor("half").shape().rank(), 0);
  EXPECT_EQ(file->tensor("bytes").const_data<std::uint8_t>()[2], 9);
  EXPECT_EQ(file->tensor("empty").shape(), (Shape{0, 4}));

  // The layout of the format's own library: data at a multiple of 8, wide elements first.
  const std::string raw = read_text_file(path);
  const auto header =
      static_cast<unsigned char>(raw[0]) + 256u * static_cast<unsigned char>(raw[1]);
  EXPECT_EQ(header % 8, 0u);
  EXPECT_EQ(raw[8], '{');
  EXPECT_EQ(file->entries()[0].name, "ids");
}

TEST_F(Safetensors, TensorsOutliveTheFileAndCannotBeWritten) {
  float value = 3;
  write_safetensors(path, {{"x", {&value, {1}, DType::f32}}});
  Tensor x = SafetensorsFile::open(path)->tensor("x");
  fs::remove(path);
  EXPECT_EQ(x.const_data<float>()[0], 3);
  EXPECT_THROW((void)x.view(), Error);
  EXPECT_THROW((void)x.data<float>(), Error);
}

TEST_F(Safetensors, UnalignedTensorsAreCopied) {
  // 3 bytes, then an F32 at offset 3: valid but unaligned.
  const std::string header = R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("f":{"dtype":"F32","shape":[1],"data_offsets":[3,7]}})";
  EXPECT_EQ(problem_of(framed(header, 7)), "");
  const Tensor f = SafetensorsFile::open(path)->tensor("f");
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(f.const_data<float>()) % 4, 0u);
  EXPECT_EQ(std::bit_cast<std::uint32_t>(f.const_data<float>()[0]), 0x01010101u);
}

TEST_F(Safetensors, AcceptsEverythingTheFormatAllows) {
  EXPECT_EQ(problem_of(framed("{}", 0)), "");
  EXPECT_EQ(problem_of(framed("{" + kEntry + "}     ", 8)), "")
      << "the header is padded with spaces";
  EXPECT_EQ(problem_of(framed(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8)), "");
  EXPECT_EQ(problem_of(framed(
                R"({"e":{"dtype":"F64","shape":[3,0],"data_offsets":[0,0]},)" + kEntry + "}", 8)),
            "");
  EXPECT_EQ(
      problem_of(framed(
          R"({"e":{"dtype":"F32","shape":[4611686018427387904,8,0],"data_offsets":[0,0]}})", 0)),
      "");
  EXPECT_EQ(problem_of(framed(R"({"q":{"dtype":"F8_E4M3","shape":[5],"data_offsets":[0,5]}})", 5)),
            "");
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file->bytes("q").size(), 5u);
  try {
    (void)file->tensor("q");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::unavailable);
    EXPECT_THAT(error.what(), HasSubstr("tensor 'q' is of F8_E4M3"));
  }
  EXPECT_EQ(problem_of(framed(R"({"b":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2)),
            "");
  EXPECT_EQ(SafetensorsFile::open(path)->tensor("b").dtype(), DType::u8);
  EXPECT_EQ(
      problem_of(framed(R"({"d":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1)),
      "");
  EXPECT_THROW((void)SafetensorsFile::open(path)->tensor("d"), Error)
      << "the tensor has seven dimensions";
}

TEST_F(Safetensors, RefusesHostileHeaders) {
  const auto one = [](const std::string& dtype, const std::string& shape,
                      const std::string& offsets) {
    return R"({"a":{"dtype":)" + dtype + R"(,"shape":)" + shape + R"(,"data_offsets":)" + offsets +
           "}}";
  };
  const std::vector<std::pair<std::string, const char*>> bad = {
      {"", "0 bytes are too few"},
      {"1234567", "too few"},
      {std::string(8, '\xff') + "{}", "above the limit"},
      {std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "above the limit of 100000000"},
      {std::string("\x03\0\0\0\0\0\0\0{}", 10), "truncated: the header has 3 bytes"},
      {framed("", 0), "does not start with '{'"},
      {framed(" {}", 0), "does not start with '{'"},
      {framed("{", 0), "parse error"},
      {framed("{} x", 0), "parse error"},
      {framed("{" + kEntry + "}", 7), "truncated: the tensors take 8 bytes, the file holds 7"},
      {framed("{" + kEntry + "}", 9), "1 bytes follow the last tensor"},
      {framed("{" + kEntry + "," + kEntry + "}", 8), "'a' stands twice"},
      {framed(R"({"__metadata__":{},"__metadata__":{}})", 0), "stands twice"},
      {framed(R"({"__metadata__":{"n":1}})", 0), "__metadata__['n'] is not a string"},
      {framed(R"({"__metadata__":[]})", 0), "__metadata__ is not an object"},
      {framed(one(R"("F33")", "[2]", "[0,8]"), 8), "unknown dtype 'F33'"},
      {framed(one("4", "[2]", "[0,8]"), 8), "dtype that is not a word"},
      {framed(one(R"("F32")", "2", "[0,8]"), 8), "shape that is not a list"},
      {framed(one(R"("F32")", "[-2]", "[0,8]"), 8), "the size -2"},
      {framed(one(R"("F32")", "[2.0]", "[0,8]"), 8), "the size 2.0"},
      {framed(one(R"("F32")", "[18446744073709551616]", "[0,8]"), 8), "the size"},
      {framed(one(R"("F32")", "[4611686018427387904,4]", "[0,0]"), 0), "overflows"},
      {framed(one(R"("F32")", "[4611686018427387904]", "[0,0]"), 0), "overflows"},
      {framed(one(R"("F32")", "[3]", "[0,8]"), 8), "takes 12 bytes by dtype and shape"},
      {framed(one(R"("F32")", "[2]", "[8,0]"), 8), "[8, 0) by data_offsets"},
      {framed(one(R"("F32")", "[2]", "[-8,0]"), 8), "not two positions"},
      {framed(one(R"("F32")", "[2]", "[0]"), 8), "not two positions"},
      {framed(one(R"("F32")", "[2]", "[0,8,8]"), 8), "not two positions"},
      {framed(one(R"("F32")", "[2]", "[9223372036854775800,9223372036854775808]"), 8), "not two"},
      {framed(one(R"("F32")", "[2]", "[4,12]"), 12), "leaving a hole from 0"},
      {framed(R"({"a":{"dtype":"F32","shape":[2]}})", 8), "needs exactly"},
      {framed(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}})", 8),
       "needs exactly"},
      {framed(R"({"a":[]})", 0), "needs exactly"},
      {framed("{" + kEntry + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", 12),
       "inside another that ends at 8"},
      {framed("{" + kEntry + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
       "inside another"},
      {framed("{" + kEntry + R"(,"b":{"dtype":"F32","shape":[2],"data_offsets":[12,20]}})", 20),
       "leaving a hole from 8"},
      {framed(std::string(5000, '{'), 0), "parse error"},
      {framed("{\"a\":" + std::string(5000, '[') + std::string(5000, ']') + "}", 0),
       "nested deeper"},
  };
  for (const auto& [bytes, what] : bad) EXPECT_THAT(problem_of(bytes), HasSubstr(what));
}

TEST_F(Safetensors, TruncationsAndFlippedHeaderBytesAreDetectedOrHarmless) {
  std::vector<float> f(64, 1.0f);
  write_safetensors(path,
                    {{"a", {f.data(), {4, 8}, DType::f32}}, {"b", {f.data(), {32}, DType::f32}}});
  const std::string good = read_text_file(path);
  for (std::size_t size = 0; size < good.size(); size += 3)
    EXPECT_NE(problem_of(good.substr(0, size)), "") << size;
  std::mt19937 random(11);
  for (int i = 0; i < 2000; ++i) {
    std::string bad = good;
    bad[random() % (good.size() - 256)] = static_cast<char>(random());
    if (problem_of(bad).empty()) {  // a changed name or shape may still be valid
      const auto file = SafetensorsFile::open(path);
      for (const auto& entry : file->entries()) {
        volatile std::byte last = file->bytes(entry.name).back();
        (void)last;
      }
    }
  }
}

TEST_F(Safetensors, MissingTensorNamesTheNearest) {
  float value = 3;
  write_safetensors(path, {{"transformer.wte.weight", {&value, {1}, DType::f32}}});
  const auto file = SafetensorsFile::open(path);
  try {
    (void)file->tensor("transformer.wpe.weight");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("did you mean transformer.wte.weight?"));
  }
}

TEST_F(Safetensors, WriterEnforcesTheDeclaration) {
  const auto bytes = [](std::size_t count) { return std::vector<std::byte>(count); };
  const std::vector<SafetensorsEntry> entries{make_entry("a", DType::f32, {2}),
                                              make_entry("b", DType::f32, {1})};
  {
    SafetensorsWriter writer(path, entries);
    EXPECT_THROW(writer.append("b", bytes(4)), Error) << "b is written out of order";
    writer.append("a", bytes(4));
    EXPECT_THROW(writer.append("b", bytes(4)), Error) << "a is not complete";
    EXPECT_THROW(writer.append("a", bytes(5)), Error) << "too many bytes for a";
    EXPECT_THROW(writer.commit(), Error) << "the file is incomplete";
  }
  EXPECT_FALSE(fs::exists(path));
  SafetensorsWriter writer(path, entries);
  writer.append("a", bytes(3));
  writer.append("a", bytes(5));
  writer.append("b", bytes(4));
  EXPECT_THROW(writer.append("c", bytes(1)), Error);
  writer.commit();
  EXPECT_EQ(SafetensorsFile::open(path)->entries().size(), 2u);
  EXPECT_THROW(SafetensorsWriter(path, {entries[0], entries[0]}), Error) << "a name occurs twice";
  EXPECT_THROW(SafetensorsWriter(path, {make_entry("__metadata__", DType::f32, {})}), Error);
  EXPECT_THROW(SafetensorsWriter(path, {make_entry("\xff", DType::f32, {})}), Error)
      << "the name is not UTF-8";
}

std::vector<SafetensorsEntry> sized(const std::vector<std::int64_t>& sizes) {
  std::vector<SafetensorsEntry> entries;
  for (const std::int64_t bytes : sizes) {
    entries.emplace_back().bytes = bytes;
  }
  return entries;
}

TEST(Shards, PlanIsGreedyInOrder) {
  using Plan = std::vector<std::vector<std::size_t>>;
  EXPECT_EQ(plan_shards(sized({4, 4, 4}), 8), (Plan{{0, 1}, {2}}));
  EXPECT_EQ(plan_shards(sized({9, 1, 7, 1}), 8), (Plan{{0}, {1, 2}, {3}}));
  EXPECT_EQ(plan_shards(sized({0, 0}), 1), (Plan{{0, 1}}));
  EXPECT_EQ(plan_shards({}, 1), (Plan{{}}));
  EXPECT_EQ(plan_shards(sized({INT64_MAX, INT64_MAX}), INT64_MAX), (Plan{{0}, {1}}));
  EXPECT_THROW((void)plan_shards({}, 0), Error);
  EXPECT_EQ(shard_file_name("model", 1, 12), "model-00002-of-00012.safetensors");
  EXPECT_EQ(shard_file_name("model", 0, 1), "model.safetensors");
}

class Sharded : public Safetensors {
 protected:
  std::vector<NamedView> tensors() {
    return {{"a", {values.data(), {4}, DType::f32}},
            {"b", {values.data() + 4, {4}, DType::f32}},
            {"c", {values.data() + 8, {2}, DType::f32}}};
  }
  std::string problem_of_index(const std::string& text) const {
    std::ofstream(index()) << text;
    try {
      (void)ShardedSafetensors::open(directory);
    } catch (const Error& error) {
      EXPECT_THAT(error.code(), ::testing::AnyOf(ErrorCode::corrupt_data, ErrorCode::not_found));
      return error.what();
    }
    return "";
  }
  std::string index() const { return directory + "/model.safetensors.index.json"; }
  std::vector<float> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
};

TEST_F(Sharded, RoundTripsThroughDirectoryIndexOrFile) {
  const auto names = write_sharded_safetensors(directory, tensors(), 24);
  EXPECT_THAT(names,
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json"));
  const auto json = nlohmann::json::parse(read_text_file(index()));
  EXPECT_EQ(json["metadata"]["total_size"], 40);
  EXPECT_EQ(json["weight_map"]["c"], names[1]);
  for (const std::string& where : {directory, index()}) {
    const auto set = ShardedSafetensors::open(where);
    EXPECT_THAT(set.names(), ElementsAre("a", "b", "c"));
    EXPECT_EQ(set.tensor("b").const_data<float>()[1], 5);
    EXPECT_TRUE(set.contains("c"));
    EXPECT_EQ(set.files().size(), 2u);
    EXPECT_THROW((void)set.tensor("d"), Error);
  }
  const auto single = ShardedSafetensors::open(directory + "/" + names[0]);
  EXPECT_FALSE(single.contains("c"));
}

TEST_F(Sharded, OneShardNeedsNoIndex) {
  EXPECT_THAT(write_sharded_safetensors(directory, tensors()), ElementsAre("model.safetensors"));
  EXPECT_EQ(ShardedSafetensors::open(directory).tensor("c").const_data<float>()[0], 8);
}

TEST_F(Sharded, ASecondSaveInTheOtherFormReplacesTheFirst) {
  for (const std::int64_t shard : {24, 1000, 24}) {
    values[8] += 1;  // c
    write_sharded_safetensors(directory, tensors(), shard);
    const auto set = ShardedSafetensors::open(directory);
    EXPECT_EQ(set.tensor("c").const_data<float>()[0], values[8]);
    EXPECT_EQ(set.files().size(), shard == 24 ? 2u : 1u);
  }
  // Shoal never leaves both forms. If both exist, read the single file as transformers does.
  write_safetensors(directory + "/model.safetensors", {tensors()[0]});
  EXPECT_THAT(ShardedSafetensors::open(directory).names(), ElementsAre("a"));
}

TEST_F(Sharded, HostileIndexesAreRefused) {
  write_sharded_safetensors(directory, tensors(), 24);
  const std::string one = "model-00001-of-00002.safetensors",
                    two = "model-00002-of-00002.safetensors";
  const auto map = [](const std::string& a, const std::string& b, const std::string& c) {
    return R"({"weight_map":{"a":")" + a + R"(","b":")" + b + R"(","c":")" + c + "\"}}";
  };
  for (const char* name : {"../x.safetensors", "/etc/passwd", "..", ".", "", "sub/x.safetensors",
                           "a\\\\b", "x\\u0000y"})
    EXPECT_THAT(problem_of_index(map(one, two, name)), HasSubstr("not the plain name")) << name;
  EXPECT_EQ(problem_of_index(map(one, two, two)), "");
  EXPECT_THAT(problem_of_index(map(one, one, two)), HasSubstr("tensor 'b' is not in " + one));
  EXPECT_THAT(problem_of_index(map(one, two, "model-00003-of-00002.safetensors")),
              HasSubstr("cannot open"));
  EXPECT_THAT(problem_of_index(R"({"weight_map":{"a":")" + one + R"(","c":")" + two + "\"}}"),
              HasSubstr("tensor 'b' of " + two + " is not listed"));
  EXPECT_THAT(problem_of_index(R"({"weight_map":[]})"), HasSubstr("no weight_map"));
  EXPECT_THAT(problem_of_index(R"({"weight_map":{"a":1}})"), HasSubstr("not a file name"));
  EXPECT_THAT(problem_of_index("[]"), HasSubstr("no weight_map"));
  EXPECT_THAT(problem_of_index(R"({"weight_map":{"a":"x","a":"y"}})"), HasSubstr("stands twice"));
  fs::remove(index());
  EXPECT_THAT(problem_of_index("{"), HasSubstr("parse error"));
}

// A directory may mix an old index with newer files, or the reverse. transformers now computes
// these buffers.
TEST_F(Sharded, OldBuffersMayBeOnlyInTheIndexOrOnlyInTheFiles) {
  write_sharded_safetensors(directory, tensors(), 24);
  const std::string one = "model-00001-of-00002.safetensors",
                    two = "model-00002-of-00002.safetensors";
  const std::string weights =
      R"({"weight_map":{"a":")" + one + R"(","b":")" + two + R"(","c":")" + two + "\"";
  for (const char* buffer : {"model.layers.0.self_attn.rotary_emb.inv_freq", "h.0.attn.bias",
                             "transformer.h.11.attn.masked_bias", "bert.embeddings.position_ids"}) {
    EXPECT_EQ(problem_of_index(weights + ",\"" + buffer + "\":\"" + one + "\"}}"), "") << buffer;
    EXPECT_THAT(ShardedSafetensors::open(directory).names(), ElementsAre("a", "b", "c"));
  }
  EXPECT_THAT(problem_of_index(weights + ",\"h.0.attn.c_attn.bias\":\"" + one + "\"}}"),
              HasSubstr("tensor 'h.0.attn.c_attn.bias' is not in"));
  auto more = tensors();
  more.push_back({"h.0.attn.bias", more[0].view});
  write_sharded_safetensors(directory, more, 24);
  const auto both = nlohmann::json::parse(read_text_file(index()));
  auto less = both;
  less["weight_map"].erase("h.0.attn.bias");
  EXPECT_EQ(problem_of_index(less.dump()), "");
}

TEST_F(Sharded, EmptyDirectoryIsAnError) {
  try {
    (void)ShardedSafetensors::open(directory);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), HasSubstr("neither model.safetensors nor its index"));
    EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("save_pretrained")));
  }
}

TEST_F(Sharded, PicklesAreRefusedWithARemedy) {
  std::ofstream(directory + "/pytorch_model.bin") << "pickle";
  try {
    (void)ShardedSafetensors::open(directory);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("but pytorch_model.bin, which is not read; open it with"));
    EXPECT_THAT(error.what(), HasSubstr("save_pretrained() it, which writes safetensors"));
  }
}

}  // namespace
}  // namespace shoal
