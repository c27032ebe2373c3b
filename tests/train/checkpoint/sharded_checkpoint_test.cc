// Checkpoints saved under one layout are read under every other.
#include "shoal/train/checkpoint/sharded_checkpoint.h"

#include <filesystem>
#include <fstream>

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/train/checkpoint/inspect.h"

namespace shoal {
namespace {

using test::error_text;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using testing::TemporaryDirectory;

constexpr std::int64_t kRows = 10, kColumns = 18;  // columns are three blocks of six

// The parts of a [kRows, kColumns] tensor that each rank holds.
using Layout = std::vector<std::vector<TensorShard>>;

// Columns [block·6 + r·w, ...) of each of three blocks, as a fused qkv weight is split over heads.
std::shared_ptr<nn::Parameter> qkv_part(int rank, int ranks) {
  const std::int64_t width = 6 / ranks;
  auto part = std::make_shared<nn::Parameter>("w", Shape{kRows, 3 * width}, nn::Initializer{});
  std::vector<nn::ParameterPiece> pieces;
  for (std::int64_t block = 0; block < 3; ++block)
    pieces.push_back({{kRows, width}, {0, block * width}, {0, block * 6 + rank * width}});
  part->set_part({kRows, kColumns}, pieces);
  return part;
}
std::shared_ptr<nn::Parameter> rows_part(int rank, int ranks) {
  const std::int64_t first = kRows * rank / ranks, last = kRows * (rank + 1) / ranks;
  auto part =
      std::make_shared<nn::Parameter>("w", Shape{last - first, kColumns}, nn::Initializer{});
  part->set_part({kRows, kColumns}, {{{last - first, kColumns}, {0, 0}, {first, 0}}});
  return part;
}
std::shared_ptr<nn::Parameter> all_of_it() {
  return std::make_shared<nn::Parameter>("w", Shape{kRows, kColumns}, nn::Initializer{});
}

// Divides each part's elements over `shards` ranks, in unequal ranges.
Layout sharded(const std::vector<std::shared_ptr<nn::Parameter>>& parts, int shards, DType dtype) {
  Layout layout;
  for (const auto& part : parts) {
    const std::int64_t count = part->shape().count();
    for (int shard = 0; shard < shards; ++shard) {
      const auto at = [&](int s) {
        return s == shards ? count : count * s * s / (shards * shards);
      };
      layout.push_back({shard_of(*part, at(shard), at(shard + 1), dtype)});
    }
  }
  return layout;
}

std::vector<std::pair<std::string, Layout>> layouts(DType dtype) {
  std::vector<std::pair<std::string, Layout>> all;
  const auto split = [&](const char* name, auto&& make, int ranks, int shards) {
    std::vector<std::shared_ptr<nn::Parameter>> parts;
    for (int rank = 0; rank < ranks; ++rank) parts.push_back(make(rank, ranks));
    all.emplace_back(fmt::format("{} over {}, {} shards", name, ranks, shards),
                     sharded(parts, shards, dtype));
  };
  const auto whole = [](int, int) { return all_of_it(); };
  split("whole", whole, 1, 1);
  split("whole", whole, 1, 4);
  split("rows", rows_part, 3, 1);
  split("rows", rows_part, 4, 3);
  split("qkv", qkv_part, 2, 1);
  split("qkv", qkv_part, 3, 2);
  split("qkv", qkv_part, 6, 5);
  Layout together{{}};  // one rank with all the parts, another with none
  for (int rank = 0; rank < 3; ++rank) together[0].push_back(shard_of(*qkv_part(rank, 3), dtype));
  together.emplace_back();
  all.emplace_back("qkv parts on one rank", together);
  return all;
}

// Element i of the whole tensor has the value i.
std::vector<float> numbers_of(const TensorShard& shard) {
  std::vector<float> numbers(static_cast<std::size_t>(shard.count()), -1);
  for (const TensorRun& run : runs_of(shard))
    for (std::int64_t i = 0; i < run.count; ++i)
      numbers[static_cast<std::size_t>(run.local + i)] = static_cast<float>(run.whole + i);
  return numbers;
}

void save(const Layout& layout, const std::string& directory, const std::string& name = "step 1",
          std::size_t first_rank = 0) {
  for (std::size_t rank = first_rank; rank < layout.size(); ++rank) {
    std::vector<std::vector<float>> numbers;
    std::vector<std::vector<bfloat16>> halves;
    std::vector<ShardData> tensors;
    for (const TensorShard& held : layout[rank]) {
      numbers.push_back(numbers_of(held));
      halves.emplace_back(numbers.back().begin(), numbers.back().end());
      const void* data = held.dtype == DType::f32 ? static_cast<const void*>(numbers.back().data())
                                                  : halves.back().data();
      tensors.push_back({held, ConstView(data, {held.count()}, held.dtype)});
    }
    write_shard(directory, static_cast<int>(rank), static_cast<int>(layout.size()), tensors, name);
  }
}

TEST(TensorShard, RunsAreWhatTheBoxesSay) {
  EXPECT_EQ(runs_of(whole_tensor("w", {3, 4}, DType::f32)), (std::vector<TensorRun>{{0, 0, 12}}));
  EXPECT_EQ(runs_of(shard_of(*rows_part(1, 2), DType::f32)), (std::vector<TensorRun>{{90, 0, 90}}));
  const auto runs = runs_of(shard_of(*qkv_part(1, 2), DType::f32));
  ASSERT_EQ(runs.size(), 30U);
  EXPECT_EQ(runs[0], (TensorRun{3, 0, 3}));
  EXPECT_EQ(runs[1], (TensorRun{9, 3, 3}));
  EXPECT_EQ(runs[3], (TensorRun{21, 9, 3}));
  // Elements [4, 8) of that part are the end of one run and the beginning of the next.
  EXPECT_EQ(runs_of(shard_of(*qkv_part(1, 2), 4, 8, DType::f32)),
            (std::vector<TensorRun>{{10, 0, 2}, {15, 2, 2}}));
  EXPECT_EQ(runs_of(whole_tensor("scalar", {}, DType::f32)), (std::vector<TensorRun>{{0, 0, 1}}));
}

TEST(TensorShard, TilingNamesTheFirstHoleOrOverlap) {
  std::vector<TensorShard> parts{shard_of(*rows_part(0, 2), DType::f32),
                                 shard_of(*rows_part(1, 2), DType::f32)};
  EXPECT_EQ(tiling_problem(parts), "");
  EXPECT_EQ(tiling_problem(std::span(parts).first(1)),
            "w [10, 18]: elements [90, 180) are in no part");
  EXPECT_EQ(tiling_problem(std::span(parts).last(1)),
            "w [10, 18]: elements [0, 90) are in no part");
  parts.push_back(shard_of(*all_of_it(), 85, 91, DType::f32));
  EXPECT_THAT(tiling_problem(parts), HasSubstr("elements [85, 90) are in two parts"));
  parts.back() = whole_tensor("w", {18, 10}, DType::f32);
  EXPECT_THAT(tiling_problem(parts),
              HasSubstr("f32 [10, 18] in one part, f32 [18, 10] in another"));
}

TEST(ShardedCheckpoint, EveryLayoutReadsEveryOther) {
  for (const DType saved : {DType::f32, DType::bf16})
    for (const auto& [from_name, from] : layouts(saved)) {
      const TemporaryDirectory directory;
      save(from, directory.path());
      const auto checkpoint = ShardedCheckpoint::open(directory.path());
      EXPECT_EQ(checkpoint.shards(), static_cast<int>(from.size()));
      EXPECT_EQ(checkpoint.tensors().at("w").shape, (Shape{kRows, kColumns}));
      for (const auto& [to_name, to] : layouts(DType::f32))
        for (const auto& rank : to)
          for (const TensorShard& wanted : rank) {
            std::vector<float> got(static_cast<std::size_t>(wanted.count()), -7);
            checkpoint.read(wanted, {got.data(), {wanted.count()}, DType::f32});
            EXPECT_EQ(got, numbers_of(wanted)) << from_name << " read as " << to_name;
          }
    }
}

TEST(ShardedCheckpoint, NamesWhatIsMissing) {
  const TemporaryDirectory directory;
  const std::string& path = directory.path();
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(path); }), HasSubstr("holds no shards"));
  save(layouts(DType::f32)[2].second, path);  // three shards
  const auto checkpoint = ShardedCheckpoint::open(path);
  float number = 0;
  EXPECT_THAT(error_text([&] {
                checkpoint.read(whole_tensor("v", {1}, DType::f32), {&number, {1}, DType::f32});
              }),
              AllOf(HasSubstr("has no v"), HasSubstr("there are w")));
  EXPECT_THAT(error_text([&] {
                checkpoint.read(whole_tensor("w", {1}, DType::f32), {&number, {1}, DType::f32});
              }),
              HasSubstr("w is [10, 18], the model wants [1]"));
  std::filesystem::rename(path + "/" + shard_name(1, 3), path + "/aside");
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(path); }),
              HasSubstr("lacks shard-00001-of-00003.safetensors"));
  std::filesystem::copy(path + "/" + shard_name(0, 3), path + "/" + shard_name(1, 3));
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(path); }),
              HasSubstr("elements [0, 54) are in two parts"));
  std::filesystem::rename(path + "/aside", path + "/" + shard_name(1, 4));
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(path); }), AllOf(HasSubstr("two saves")));
}

TEST(ShardedCheckpoint, AMixtureOfTwoSavesIsRefused) {
  const TemporaryDirectory directory;
  const Layout layout = layouts(DType::f32)[2].second;
  save(layout, directory.path());
  save(layout, directory.path(), "step 2", 1);  // as if rank 0 had died before it wrote
  const auto says = AllOf(HasSubstr(shard_name(1, 3) + " is of the save 'step 2'"),
                          HasSubstr(shard_name(0, 3) + " of 'step 1'"));
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(directory.path()); }), says);
  EXPECT_THAT(inspect_checkpoint(directory.path(), false).problems, Contains(says));
  save(layout, directory.path(), "step 2");
  EXPECT_EQ(ShardedCheckpoint::open(directory.path()).shards(), 3);
  EXPECT_THAT(error_text([&] { write_shard(directory.path(), 2, 2, {}, "step 3"); }),
              HasSubstr("a shard of rank 2 of 2"));
}

TEST(ShardedCheckpoint, SaysWhyADirectoryCannotBeListed) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "x";
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(directory / "file"); }),
              AllOf(HasSubstr("cannot list"), HasSubstr("Not a directory")));
  EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(directory / "none"); }),
              HasSubstr("holds no shards"));
}

TEST(ShardedCheckpoint, ATruncatedShardIsNamed) {
  const TemporaryDirectory directory;
  save(layouts(DType::f32)[2].second, directory.path());
  const std::string shard = directory.path() + "/" + shard_name(2, 3);
  for (const auto bytes : {std::filesystem::file_size(shard) - 1, std::uintmax_t{5}}) {
    std::filesystem::resize_file(shard, bytes);
    EXPECT_THAT(error_text([&] { ShardedCheckpoint::open(directory.path()); }), HasSubstr(shard));
  }
}

TEST(ShardedCheckpoint, RefusesDescriptionsThatMakeNoSense) {
  nlohmann::json json = to_json(shard_of(*qkv_part(1, 2), DType::f32));
  EXPECT_EQ(runs_of(shard_from_json(json, "x")), runs_of(shard_of(*qkv_part(1, 2), DType::f32)));
  const auto spoiled = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json copy = json;
    copy[field] = value;
    return error_text([&] { shard_from_json(copy, "shard 3"); });
  };
  EXPECT_THAT(spoiled("whole", {10, 17}), AllOf(HasSubstr("shard 3"), HasSubstr("lie within")));
  EXPECT_THAT(spoiled("pieces", nlohmann::json::array()), HasSubstr("0 elements"));
  EXPECT_THAT(spoiled("end", 1000), HasSubstr("elements [0, 1000) of w"));
  EXPECT_THAT(spoiled("dtype", "f33"), HasSubstr("f33"));
  EXPECT_THAT(spoiled("local", "x"), HasSubstr("makes no sense"));
}

}  // namespace
}  // namespace shoal
