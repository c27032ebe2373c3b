// Inspecting intact and damaged checkpoints; converting parts to whole tensors and back.
#include "shoal/train/checkpoint/convert.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <numeric>

#include "support/error_text.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/sharded_safetensors.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/inspect.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/trainer_state.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using test::error_text;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::TemporaryDirectory;

// A tensor whose values start at `first`.
struct Named {
  std::string name;
  Shape shape;
  float first = 0;
  std::vector<float> numbers() const {
    std::vector<float> values(static_cast<std::size_t>(shape.count()));
    std::iota(values.begin(), values.end(), first);
    return values;
  }
};
const std::vector<Named> kWeights = {{"transformer.wte.weight", {7, 4}, 100},
                                     {"transformer.h.0.attn.c_attn.weight", {4, 12}, 200},
                                     {"transformer.ln_f.bias", {4}, 300}};
std::vector<Named> with_state() {
  std::vector<Named> all = kWeights;
  for (const Named& weight : kWeights)
    all.push_back({"exp_avg/" + weight.name, weight.shape, weight.first + 1000});
  return all;
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_setup(const std::string& directory, bool of_a_run) {
  fs::create_directories(directory);
  write(directory + "/config.json",
        "{\n  \"model_type\": \"gpt2\",\n  \"n_embd\": 4,\n  \"torch_dtype\": \"float32\"\n}\n");
  write(directory + "/tokenizer.json", "{}");
  write(directory + "/pytorch_model.bin", "other weights");
  if (!of_a_run) return;
  TrainerState state;
  state.global_step = 12;
  write(directory + "/trainer_state.json", state.to_json().dump());
}

// Writes what `ranks` ranks would write. The first weight is split by rows and the fused one by
// three blocks of columns; rank 0 has the rest. Everything is sharded once more in two.
void write_parts(const std::string& directory, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<ShardData> parts;
    std::vector<std::vector<float>> kept;
    for (const Named& named : with_state()) {
      TensorShard held = whole_tensor(named.name, named.shape, DType::f32);
      const std::int64_t count = named.shape.count();
      if (named.name.ends_with("c_attn.weight") && ranks == 2) {
        held.local = {4, 6};
        held.end = 24;
        held.pieces.clear();
        for (std::int64_t block = 0; block < 3; ++block)
          held.pieces.push_back({{4, 2}, {0, block * 2}, {0, block * 4 + rank * 2}});
      } else {
        held.begin = count * rank / ranks;
        held.end = count * (rank + 1) / ranks;
      }
      std::vector<float> mine(static_cast<std::size_t>(held.count()));
      const auto all = named.numbers();
      for (const TensorRun& run : runs_of(held))
        std::copy_n(all.begin() + run.whole, run.count, mine.begin() + run.local);
      kept.push_back(std::move(mine));
      parts.push_back({held, ConstView(nullptr, {held.count()}, DType::f32)});
    }
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i].data.data = kept[i].data();
    write_shard(directory, rank, ranks, parts, "step 12");
  }
}

void write_whole(const std::string& directory, bool state, std::int64_t max_bytes = 5'000'000'000) {
  std::vector<std::vector<float>> kept;
  std::vector<NamedView> weights, states;
  for (const Named& named : state ? with_state() : kWeights) {
    kept.push_back(named.numbers());
    auto& into = named.name.find('/') == std::string::npos ? weights : states;
    into.push_back({named.name, ConstView(kept.back().data(), named.shape, DType::f32)});
  }
  write_sharded_safetensors(directory, weights, max_bytes);
  if (state) write_safetensors(directory + "/" + std::string(kOptimizerStateFile), states);
}

// The values of a tensor as f32, from either kind of directory.
std::vector<float> numbers_in(const std::string& directory, const Named& named) {
  const auto checkpoint = find_shards(directory).ranks > 0
                              ? ShardedCheckpoint::open(directory)
                              : ShardedCheckpoint::open_full(directory);
  std::vector<float> values(static_cast<std::size_t>(named.shape.count()));
  checkpoint.read(whole_tensor(named.name, named.shape, DType::f32),
                  {values.data(), {named.shape.count()}, DType::f32});
  return values;
}

Conversion convert(const std::string& from, const std::string& to, ConvertOptions options = {}) {
  options.from = from;
  options.to = to;
  return convert_checkpoint(options);
}

CheckpointContents inspect(const std::string& path) { return inspect_checkpoint(path, true); }

TEST(Convert, PartsBecomeWholeTensors) {
  const TemporaryDirectory directory;
  const std::string from = directory / "parts", to = directory / "whole";
  write_setup(from, false);
  write_parts(from, 2);
  write(from + "/chat_template.jinja", "{{ messages }}");
  fs::create_directories(from + "/additional_chat_templates");
  write(from + "/additional_chat_templates/tool.jinja", "{{ tools }}");
  const Conversion done = convert(from, to);
  EXPECT_EQ(done.tensors, 3);
  EXPECT_EQ(done.states, 3);
  EXPECT_EQ(done.bytes, 2 * (28 + 48 + 4) * 4);
  EXPECT_EQ(done.largest, 48 * 4) << "memory for more than the largest tensor";
  EXPECT_THAT(done.carried, ElementsAre("additional_chat_templates/tool.jinja",
                                        "chat_template.jinja", "config.json", "tokenizer.json"));
  EXPECT_EQ(text_of(to + "/additional_chat_templates/tool.jinja"), "{{ tools }}");
  EXPECT_THAT(done.notes, IsEmpty());
  for (const Named& named : with_state()) EXPECT_EQ(numbers_in(to, named), named.numbers());
  // These are the files that transformers looks for.
  EXPECT_EQ(SafetensorsFile::open(to + "/model.safetensors")->entries().size(), 3U);
  EXPECT_EQ(SafetensorsFile::open(to + "/optimizer.safetensors")->entries().size(), 3U);
  EXPECT_EQ(text_of(to + "/config.json"), text_of(from + "/config.json"));
  EXPECT_FALSE(fs::exists(to + "/pytorch_model.bin"));
  EXPECT_THAT(inspect(to).problems, IsEmpty());
  EXPECT_TRUE(inspect(to).verified);
  // No temporary file is left next to them.
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 2);
}

TEST(Convert, WholeTensorsBecomePartsOfAnyNumberOfRanks) {
  const TemporaryDirectory directory;
  const std::string from = directory / "whole";
  write_setup(from, false);
  write_whole(from, true);
  for (const int ranks : {1, 3, 5, 9}) {
    const std::string to = directory / fmt::format("parts-{}", ranks);
    convert(from, to, {.shards = ranks});
    EXPECT_EQ(ShardedCheckpoint::open(to).shards(), ranks);
    for (const Named& named : with_state())
      EXPECT_EQ(numbers_in(to, named), named.numbers()) << ranks;
    // The shards are even: none holds more than its share of each tensor, rounded up.
    for (int rank = 0; rank < ranks; ++rank) {
      std::int64_t count = 0;
      for (const ShardEntry& entry :
           entries_of_shard(*SafetensorsFile::open(to + "/" + shard_name(rank, ranks))))
        count += entry.shard.count();
      EXPECT_LE(count, 2 * (28 / ranks + 48 / ranks + 4 / ranks + 3));
    }
  }
  // Parts can be converted to another number of parts, and to whole tensors again.
  convert(directory / "parts-5", directory / "parts-2", {.shards = 2});
  convert(directory / "parts-2", directory / "again");
  for (const Named& named : with_state())
    EXPECT_EQ(numbers_in(directory / "again", named), named.numbers());
}

TEST(Convert, WeightsInAnotherDtype) {
  const TemporaryDirectory directory;
  const std::string from = directory / "parts", to = directory / "whole";
  write_setup(from, true);
  write_parts(from, 2);
  CheckpointTransaction transaction(directory / "run", 12, 0);
  fs::copy(from, transaction.directory(), fs::copy_options::recursive);
  const std::string run = transaction.commit();
  convert(run, to, {.dtype = DType::bf16});
  for (const Named& named : with_state()) {
    std::vector<float> expected = named.numbers();
    if (named.name.find('/') == std::string::npos)
      for (float& value : expected) value = static_cast<float>(bfloat16(value));
    EXPECT_EQ(numbers_in(to, named), expected) << named.name;
  }
  EXPECT_EQ(SafetensorsFile::open(to + "/model.safetensors")->entries()[0].dtype, "BF16");
  EXPECT_EQ(SafetensorsFile::open(to + "/optimizer.safetensors")->entries()[0].dtype, "F32");
  EXPECT_EQ(read_json_file(to + "/config.json").at("torch_dtype"), "bfloat16");
  EXPECT_EQ(inspect(to).kind, CheckpointKind::trainer);
  EXPECT_EQ(inspect(to).step, 12);

  const Conversion light = convert(run, directory / "weights", {.optimizer = false});
  EXPECT_EQ(light.states, 0);
  EXPECT_THAT(light.carried, Not(Contains("trainer_state.json")));
  EXPECT_FALSE(fs::exists(directory / "weights/optimizer.safetensors"));
  EXPECT_EQ(inspect(directory / "weights").kind, CheckpointKind::huggingface);
}

TEST(Convert, NumbersThatWouldBecomeInfiniteAreRefused) {
  const TemporaryDirectory directory;
  write_setup(directory / "model", false);
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> large{1e5f, 1, -7e4f, infinity}, fits{65504, -65504, infinity, 0};
  write_safetensors(directory / "model/model.safetensors",
                    {{"large", ConstView(large.data(), {4}, DType::f32)},
                     {"fits", ConstView(fits.data(), {4}, DType::f32)}});
  for (const int shards : {0, 3}) {
    EXPECT_THAT(error_text([&] {
                  convert(directory / "model", directory / "half",
                          {.shards = shards, .dtype = DType::f16});
                }),
                AllOf(HasSubstr("1 tensors of"),
                      HasSubstr("infinite in f16: large (2 of its "
                                "numbers, up to 1e+05)"),
                      HasSubstr("--dtype bf16")));
    EXPECT_FALSE(fs::exists(directory / "half"));
  }
  convert(directory / "model", directory / "bf16", {.dtype = DType::bf16});
  EXPECT_EQ(numbers_in(directory / "bf16", {"large", {4}})[3], infinity) << "it was before";
}

TEST(Convert, MoreShardsThanAnyRunNeedsAreRefused) {
  const TemporaryDirectory directory;
  write_setup(directory / "model", false);
  EXPECT_THAT(
      error_text([&] { convert(directory / "model", directory / "parts", {.shards = 99'999}); }),
      HasSubstr("shards is 99999; at most 4096 are written"));
  EXPECT_FALSE(fs::exists(directory / "parts"));
}

TEST(Convert, LargeModelsAreSeveralFiles) {
  const TemporaryDirectory directory;
  write_setup(directory / "parts", false);
  write_parts(directory / "parts", 3);
  convert(directory / "parts", directory / "whole", {.max_file_bytes = 200});
  EXPECT_TRUE(fs::exists(directory / "whole/model.safetensors.index.json"));
  EXPECT_TRUE(fs::exists(directory / "whole/model-00001-of-00002.safetensors"));
  for (const Named& named : with_state())
    EXPECT_EQ(numbers_in(directory / "whole", named), named.numbers());
  // Directories of several files can be read too.
  convert(directory / "whole", directory / "parts-2", {.shards = 2});
  for (const Named& named : with_state())
    EXPECT_EQ(numbers_in(directory / "parts-2", named), named.numbers());
}

TEST(Convert, NothingIsOverwrittenOrLeftHalfDone) {
  const TemporaryDirectory directory;
  const std::string from = directory / "parts", to = directory / "whole";
  write_parts((fs::create_directory(from), from), 2);
  fs::create_directory(to);
  write(to + "/mine", "x");
  EXPECT_THAT(error_text([&] { convert(from, to); }),
              AllOf(HasSubstr("exists already"), HasSubstr("nothing is overwritten")));
  EXPECT_EQ(text_of(to + "/mine"), "x");
  fs::remove(to + "/mine");
  EXPECT_THAT(convert(from, to).notes, ElementsAre(HasSubstr("has no config.json")));
  write_setup(directory / "setup", false);
  EXPECT_THAT(convert(from, directory / "more", {.setup = directory / "setup"}).carried,
              Contains("config.json"));

  fs::remove(from + "/" + shard_name(1, 2));
  EXPECT_THAT(error_text([&] { convert(from, directory / "half"); }),
              HasSubstr("lacks shard-00001-of-00002"));
  EXPECT_THAT(error_text([&] { convert(directory / "none", directory / "half"); }),
              HasSubstr("not a directory"));
  EXPECT_THAT(error_text([&] { convert(directory / "setup", directory / "half"); }),
              HasSubstr("neither model.safetensors"));
  EXPECT_THAT(error_text([&] { convert(to, directory / "half", {.dtype = DType::i32}); }),
              HasSubstr("not converted to i32"));
  // Change one byte on disk.
  const auto size = fs::file_size(to + "/model.safetensors");
  std::fstream(to + "/model.safetensors", std::ios::in | std::ios::out)
      .seekp(static_cast<std::streamoff>(size) - 2)
      .put('\x7f');
  EXPECT_THAT(error_text([&] { convert(to, directory / "half"); }), HasSubstr("checksum"));
  EXPECT_FALSE(fs::exists(directory / "half"));
  for (const auto& entry : fs::directory_iterator(directory.path()))
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("tmp-")));
}

TEST(Inspect, ListsTheContents) {
  const TemporaryDirectory directory;
  write_setup(directory / "model", false);
  write_whole(directory / "model", false);
  const CheckpointContents model = inspect_checkpoint(directory / "model", false);
  EXPECT_EQ(model.kind, CheckpointKind::huggingface);
  EXPECT_FALSE(model.step);
  EXPECT_THAT(model.problems, IsEmpty());
  ASSERT_EQ(model.tensors.size(), 3U);
  EXPECT_EQ(model.tensors[0].name, "transformer.h.0.attn.c_attn.weight");
  EXPECT_EQ(model.tensors[0].dtype, "F32");
  EXPECT_THAT(model.tensors[0].sizes, ElementsAre(4, 12));
  EXPECT_EQ(model.tensors[0].bytes, 192);
  EXPECT_THAT(inspect(directory / "model").notes, ElementsAre(HasSubstr("no checksums")));

  write_setup(directory / "parts", false);
  write_parts(directory / "parts", 2);
  const CheckpointContents parts = inspect_checkpoint(directory / "parts", false);
  EXPECT_EQ(parts.kind, CheckpointKind::sharded);
  EXPECT_EQ(parts.shards, 2);
  ASSERT_EQ(parts.tensors.size(), 6U);
  EXPECT_FALSE(parts.tensors[2].is_state);
  EXPECT_TRUE(parts.tensors[3].is_state);
  EXPECT_EQ(parts.tensors[0].parts, 2);
  const std::string text = describe(parts, false);
  EXPECT_THAT(text, AllOf(HasSubstr("a checkpoint in parts, 2 shards, complete"),
                          HasSubstr("[4, 12]"), HasSubstr("weights: 3 tensors, 80 elements, 320"),
                          HasSubstr("optimizer state exp_avg: 3 tensors, 80 elements"),
                          HasSubstr("shard-00000-of-00002.safetensors"), HasSubstr("6 tensors")));
  EXPECT_THAT(text, Not(HasSubstr("exp_avg/transformer")));
  EXPECT_THAT(describe(parts, true), HasSubstr("exp_avg/transformer.wte.weight"));
  const auto json = to_json(parts);
  EXPECT_EQ(json.at("kind"), "sharded");
  EXPECT_EQ(json.at("complete"), true);
  EXPECT_EQ(json.at("tensors").size(), 6U);
  EXPECT_EQ(json.at("tensors")[0].at("shape"), nlohmann::json({4, 12}));
}

TEST(Inspect, ListsMissingParts) {
  const TemporaryDirectory directory;
  const auto problems = [&](const std::string& name) {
    return inspect_checkpoint(directory / name, false).problems;
  };
  fs::create_directory(directory / "parts");
  write_parts(directory / "parts", 3);
  fs::remove(directory / "parts/" + shard_name(1, 3));
  EXPECT_THAT(
      problems("parts"),
      AllOf(Contains(HasSubstr("missing: shard-00001-of-00003.safetensors")),
            Contains(HasSubstr("transformer.wte.weight [7, 4]: elements [9, 18) are in no"))));
  EXPECT_THAT(describe(inspect_checkpoint(directory / "parts", false), false),
              AllOf(HasSubstr("NOT COMPLETE"), HasSubstr("incomplete")));
  fs::resize_file(directory / "parts/" + shard_name(2, 3), 20);
  EXPECT_THAT(problems("parts"), Contains(HasSubstr(shard_name(2, 3))));
  write(directory / "parts/" + shard_name(0, 2), "");
  EXPECT_THAT(problems("parts"), Contains(HasSubstr("two saves")));

  write_setup(directory / "model", false);
  write_whole(directory / "model", false, 200);
  fs::remove(directory / "model/model-00002-of-00003.safetensors");
  fs::remove(directory / "model/config.json");
  const CheckpointContents model = inspect_checkpoint(directory / "model", false);
  EXPECT_THAT(model.problems, AllOf(Contains(HasSubstr("model-00002-of-00003.safetensors")),
                                    Contains(HasSubstr("missing: config.json"))));
  EXPECT_FALSE(model.tensors.empty()) << "the existing parts are listed nevertheless";

  write_setup(directory / "run", true);  // interrupted before its marker
  write_whole(directory / "run", false);
  const CheckpointContents run = inspect_checkpoint(directory / "run", false);
  EXPECT_EQ(run.step, 12);
  EXPECT_THAT(run.problems, ElementsAre(HasSubstr("no COMPLETE marker")));
  EXPECT_THAT(run.notes, ElementsAre(HasSubstr("no optimizer state")));

  fs::create_directory(directory / "empty");
  EXPECT_THAT(error_text([&] { problems("empty"); }), HasSubstr("is no checkpoint"));
  EXPECT_THAT(error_text([&] { problems("nowhere"); }), HasSubstr("not a directory"));
}

}  // namespace
}  // namespace shoal
