// Parsers of train/checkpoint.
#include <memory>
#include <string>
#include <vector>

#include "fuzz/frame.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/file_system.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/inspect.h"
#include "shoal/train/checkpoint/model_record.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/tensor_shard.h"
#include "shoal/train/checkpoint/trainer_state.h"
#include "shoal/train/checkpoint/transformers_checkpoint.h"

namespace shoal::fuzz {
namespace {

FUZZ(trainer_state,
     "train/checkpoint/trainer_state.cc train/checkpoint/transformers_checkpoint.cc") {
  input.file(std::string(kTrainerStateFile), input.rest());
  (void)is_transformers_checkpoint(Input::folder());
  const std::string written = read_trainer_state(Input::folder()).to_json().dump();
  expect(TrainerState::from_json(parse_json(written, "f"), "f").to_json().dump() == written,
         "what is written reads the same");
}

// Descriptions of the parts of one tensor.
FUZZ(shard_description, "train/checkpoint/tensor_shard.cc") {
  std::vector<TensorShard> shards;
  const nlohmann::json all = parse_json(input.rest(), "f");
  for (const auto& one : all.is_array() ? all : nlohmann::json::array({all})) {
    shards.push_back(shard_from_json(one, "f"));
    const nlohmann::json written = parse_json(to_json(shards.back()).dump(), "f");
    expect(to_json(shard_from_json(written, "f")).dump() == to_json(shards.back()).dump(),
           "what is written reads the same");
    // Readers compare the count with the file first: runs take memory by the element.
    if (shards.back().count() > 4096) {
      shards.pop_back();
      continue;
    }
    std::int64_t count = 0;
    for (const TensorRun& run : runs_of(shards.back())) {
      expect(run.count > 0 && run.local >= 0 && run.whole >= 0, "a run has elements");
      count += run.count;
    }
    expect(count == shards.back().count(), "the runs are the part");
  }
  (void)tiling_problem(shards);
}

// Shards 0 and 1 of two, COMPLETE, trainer_state.json and config.json of a checkpoint.
FUZZ(checkpoint,
     "train/checkpoint/sharded_checkpoint.cc train/checkpoint/inspect.cc "
     "train/checkpoint/checkpoint_directory.cc train/checkpoint/model_record.cc") {
  for (const char* name : {"shard-00000-of-00002.safetensors", "shard-00001-of-00002.safetensors",
                           "COMPLETE", "trainer_state.json", "config.json"})
    input.optional_file(std::string("checkpoint-5/") + name);
  const std::string path = checkpoint_path(Input::folder(), 5);
  make_directories(path);
  for (const bool checksums : {false, true}) {
    const CheckpointContents contents = inspect_checkpoint(path, checksums);
    (void)describe(contents, true);
    (void)to_json(contents).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::strict);
    (void)checkpoint_problem(path, checksums);
  }
  (void)check_same_model(path, {{"model_type", "gpt2"}, {"n_layer", 1}, {"resid_pdrop", 0.1}},
                         [](const nlohmann::json& config, std::string_view) { return config; });
  const auto checkpoint = ShardedCheckpoint::open(path);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (tensor.shape.count() > 4096) continue;
    std::vector<std::byte> values(static_cast<std::size_t>(tensor.shape.count()) *
                                  size_of(tensor.dtype));
    checkpoint.read(whole_tensor(name, tensor.shape, tensor.dtype),
                    View(values.data(), tensor.shape, tensor.dtype));
  }
}

// The shard, whatever its tensors: elements that are nowhere are found.
FUZZ(shard_file, "train/checkpoint/sharded_checkpoint.cc") {
  const auto file =
      SafetensorsFile::open(input.file("shard-00000-of-00001.safetensors", input.rest()));
  for (const ShardEntry& entry : entries_of_shard(*file))
    expect(file->contains(entry.key), "a described entry is in the file");
  (void)save_problem(*file, *file);
  (void)ShardedCheckpoint::open(Input::folder());
}

// model.safetensors, COMPLETE.
FUZZ(whole_checkpoint, "train/checkpoint/inspect.cc train/checkpoint/checkpoint_directory.cc") {
  for (const char* name : {"model.safetensors", "COMPLETE"}) input.optional_file(name);
  const CheckpointContents contents = inspect_checkpoint(Input::folder(), true);
  (void)describe(contents, true);
  (void)to_json(contents).dump();
  const auto checkpoint = ShardedCheckpoint::open_full(Input::folder());
  expect(checkpoint.shards() <= 1, "one file is one shard");
}

}  // namespace
}  // namespace shoal::fuzz
