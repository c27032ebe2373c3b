#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "support/failing_path.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <sys/resource.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/io/files.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/checkpoint_writer.h"
#include "shoal/train/checkpoint/trainer_state.h"

namespace shoal {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TemporaryDirectory;

std::string save(const std::string& output, std::int64_t step, const std::string& text = "model") {
  CheckpointTransaction transaction(output, step, 0);
  write_file_atomically(transaction.directory() + "/model.bin", text);
  fs::create_directory(transaction.directory() + "/part");
  write_file_atomically(transaction.directory() + "/part/more.bin", "");
  return transaction.commit();
}

std::vector<std::string> names(const std::string& directory) {
  std::vector<std::string> all;
  for (const auto& entry : fs::directory_iterator(directory))
    all.push_back(entry.path().filename().string());
  std::sort(all.begin(), all.end());
  return all;
}

template <typename F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(CheckpointDirectory, IsCompleteOnceCommitted) {
  const TemporaryDirectory output;
  const std::string path = save(output.path(), 7);
  EXPECT_EQ(path, output / "checkpoint-7");
  EXPECT_EQ(checkpoint_problem(path, true), std::nullopt);
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-7"));
  EXPECT_THAT(names(path), ElementsAre("COMPLETE", "model.bin", "part"));
}

TEST(CheckpointDirectory, LeavesNothingWithoutCommit) {
  const TemporaryDirectory output;
  {
    const CheckpointTransaction transaction(output.path(), 3, 0);
    write_file_atomically(transaction.directory() + "/model.bin", "half");
  }
  EXPECT_THAT(names(output.path()), IsEmpty());
}

TEST(CheckpointDirectory, FindsTheNewestCompleteOneByNumber) {
  const TemporaryDirectory output;
  EXPECT_FALSE(newest_checkpoint(output / "missing", nullptr));
  for (const int step : {9, 10, 100, 20}) save(output.path(), step);
  fs::create_directory(output / "checkpoint-abc");
  fs::create_directory(output / "checkpoint-");
  EXPECT_EQ(newest_checkpoint(output.path(), nullptr)->step, 100);
  EXPECT_EQ(list_checkpoints(output.path()).size(), 4U);
}

// A dangling link, for example to a volume that is not mounted, is a checkpoint that cannot be
// read. It does not count as no checkpoint.
TEST(CheckpointDirectory, AFileOrADanglingLinkOfThatNameIsDamaged) {
  const TemporaryDirectory output;
  save(output.path(), 1);
  fs::create_symlink("/nonexistent/c2", output / "checkpoint-2");
  std::ofstream(output / "checkpoint-3") << "a file";
  std::vector<std::string> reasons;
  const auto found = newest_checkpoint(
      output.path(), [&](const std::string&, const std::string& why) { reasons.push_back(why); });
  EXPECT_EQ(found->step, 1);
  EXPECT_THAT(reasons, ElementsAre("it is not a directory",
                                   "it is a link to /nonexistent/c2, which is not there"));
  // Damaged entries occupy no space, and the volume may come back. So they are kept.
  rotate_checkpoints(output.path(), 1, {});
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
  for (const int step : {2, 3}) {
    save(output.path(), step);
    EXPECT_EQ(checkpoint_problem(checkpoint_path(output.path(), step), true), std::nullopt);
  }
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1", "checkpoint-2", "checkpoint-3"));
}

TEST(CheckpointDirectory, PassesOverDamagedOnesAndSaysWhy) {
  const TemporaryDirectory output;
  for (const int step : {1, 2, 3, 4, 5}) save(output.path(), step);
  fs::remove(output / "checkpoint-5/COMPLETE");
  fs::resize_file(output / "checkpoint-4/model.bin", 2);
  std::ofstream(output / "checkpoint-3/model.bin") << "MODEL";  // same size, other bytes
  fs::remove(output / "checkpoint-2/part/more.bin");
  std::vector<std::string> reasons;
  const auto found = newest_checkpoint(
      output.path(), [&](const std::string&, const std::string& why) { reasons.push_back(why); });
  EXPECT_EQ(found->step, 1);
  EXPECT_THAT(reasons, ElementsAre(HasSubstr("no COMPLETE marker"),
                                   HasSubstr("model.bin has 2 bytes instead of 5"),
                                   HasSubstr("model.bin does not match its checksum"),
                                   HasSubstr("part/more.bin is missing")));
  // A check of sizes alone does not detect changed bytes.
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-3", false), std::nullopt);
}

// A read error does not show that the checkpoint is damaged, so an older one must not replace it.
TEST(CheckpointDirectory, AnErrorIsNotDamage) {
  const TemporaryDirectory output;
  for (const int step : {1, 2}) save(output.path(), step);
  for (const int error : {EIO, EACCES, ESTALE})
    for (const char* name :
         {"", "/checkpoint-2", "/checkpoint-2/COMPLETE", "/checkpoint-2/model.bin"}) {
      const std::string path = output.path() + name;
      const test::FailingPath broken(path, error);
      EXPECT_THAT(error_of([&] { newest_checkpoint(output.path(), nullptr); }),
                  ::testing::AllOf(HasSubstr(path), HasSubstr(std::strerror(error))));
    }
  for (const auto& call :
       std::vector<std::function<void()>>{[&] { rotate_checkpoints(output.path(), 1, {}); },
                                          [&] { remove_unfinished_checkpoints(output.path()); },
                                          [&] { restore_replaced_checkpoints(output.path()); }}) {
    const test::FailingPath broken(output.path(), EIO);
    EXPECT_THAT(error_of(call), HasSubstr(std::strerror(EIO)));
  }
}

// A run continues if an old checkpoint cannot be removed, or if an entry is not a checkpoint.
TEST(CheckpointDirectory, UnremovableEntriesDoNotEndTheRun) {
  const TemporaryDirectory output;
  for (const int step : {1, 2}) save(output.path(), step);
  fs::create_directory_symlink(output / "loop", output / "loop");
  {
    const test::FailingPath marker(output / "checkpoint-1/COMPLETE", EIO);
    EXPECT_TRUE(rotate_checkpoints(output.path(), 1, {}).empty());
  }
  {
    save(output.path(), 3);
    const test::FailingPath file(output / "checkpoint-1/model.bin", EIO);
    EXPECT_THAT(rotate_checkpoints(output.path(), 1, {}), ElementsAre(output / "checkpoint-2"));
    EXPECT_GT(file.calls(), 0);
    EXPECT_EQ(newest_checkpoint(output.path(), nullptr)->step, 3);
  }
  EXPECT_EQ(list_checkpoints(output.path()).size(), 2U);
  EXPECT_EQ(rotate_checkpoints(output.path(), 1, {}).size(), 1U) << "the disk works again";
}

// The error is on one file (a bad disk sector) or on the whole directory.
TEST(CheckpointDirectory, AnUnfinishedOneThatCannotBeRemovedEndsNoRun) {
  for (const int error : {EIO, EACCES, ESTALE})
    for (const std::string broken_part : {"", "/deep", "/deep/file"}) {
      const TemporaryDirectory output;
      for (const std::string name : {"tmp-checkpoint-6.0", "tmp-checkpoint-7.0"}) {
        fs::create_directories(output / name + "/deep");
        std::ofstream(output / name + "/deep/file") << "half";
      }
      const test::FailingPath broken(output / "tmp-checkpoint-6.0" + broken_part, error);
      remove_unfinished_checkpoints(output.path());
      EXPECT_GT(broken.calls(), 0) << broken_part;
      EXPECT_THAT(names(output.path()), ElementsAre("tmp-checkpoint-6.0"));
      restore_replaced_checkpoints(output.path());
    }
}

// A failing clean-up neither discards a written checkpoint nor hides the error that prevented
// writing.
TEST(CheckpointDirectory, AFailedCleanUpHidesNothing) {
  const TemporaryDirectory output;
  save(output.path(), 1, "old");
  {
    const test::FailingPath broken(output / "tmp-checkpoint-1.0.replaced/model.bin", EIO);
    save(output.path(), 1, "new");
    EXPECT_GT(broken.calls(), 0);
  }
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-1", true), std::nullopt);
  std::optional<test::FailingPath> broken;
  EXPECT_THAT(error_of([&] {
                const CheckpointTransaction transaction(output.path(), 2, 0);
                std::ofstream(transaction.directory() + "/model.bin") << "model";
                broken.emplace(transaction.directory() + "/model.bin", EIO);
                throw_error(ErrorCode::io, "the first error");
              }),
              HasSubstr("the first error"));
  EXPECT_GT(broken->calls(), 0);
  EXPECT_THAT(names(output.path()),
              ElementsAre("checkpoint-1", "tmp-checkpoint-1.0.replaced", "tmp-checkpoint-2.0"));
}

// A writer that is killed at any moment never leaves a checkpoint-N without its marker.
TEST(CheckpointDirectory, IsMarkedBeforeItHasItsName) {
  const TemporaryDirectory output;
  std::string text;
  {
    CheckpointTransaction transaction(output.path(), 1, 0);
    write_file_atomically(transaction.directory() + "/model.bin", "model");
    const test::FailingPath broken(output / "checkpoint-1", EIO);  // the rename fails
    text = error_of([&] { transaction.commit(); });
    EXPECT_EQ(checkpoint_problem(transaction.directory(), true), std::nullopt);
  }
  EXPECT_THAT(text, HasSubstr(std::strerror(EIO)));
  EXPECT_THAT(names(output.path()), IsEmpty());
}

TEST(CheckpointDirectory, RefusesHostileMarkers) {
  const TemporaryDirectory output;
  const std::string path = save(output.path(), 1);
  const auto with_marker = [&](const std::string& text) {
    std::ofstream(path + "/COMPLETE") << text;
    return checkpoint_problem(path, true).value_or("complete");
  };
  EXPECT_THAT(with_marker(""), HasSubstr("COMPLETE"));
  EXPECT_THAT(with_marker("[]"), HasSubstr("COMPLETE marker is not a JSON object"));
  EXPECT_THAT(with_marker(R"({"format":"x","files":[]})"), HasSubstr("format is 'x'"));
  const auto with = [&](const std::string& step, const std::string& files) {
    return with_marker(R"({"format":"shoal-checkpoint-1","step":)" + step + R"(,"files":)" + files +
                       "}");
  };
  const std::string one = R"([{"name":"model.bin","bytes":5,"sha256":"x"}])";
  EXPECT_THAT(with("1", R"([{"name":"../../etc/passwd","bytes":1,"sha256":"x"}])"),
              HasSubstr("a file outside"));
  for (const char* files : {"null", "[]", "{}", "3"})
    EXPECT_THAT(with("1", files), HasSubstr("COMPLETE marker lists no files"));
  for (const char* step : {"null", "-1"})
    EXPECT_THAT(with(step, one), HasSubstr("COMPLETE marker has no step"));
  EXPECT_THAT(with("1.5", one), HasSubstr("has step: 1.5, where an integer is expected"));
  for (const char* files :
       {"[7]", "[{}]", R"([{"name":"model.bin","bytes":5}])", R"([{"name":"model.bin"}])",
        R"([{"name":["x"],"bytes":5,"sha256":"x"}])", R"([{"name":"a","bytes":"5","sha256":"x"}])",
        R"([{"name":"model.bin","bytes":5.5,"sha256":"x"}])"})
    EXPECT_THAT(with("1", files), ::testing::AllOf(HasSubstr("COMPLETE marker's entry of a file"),
                                                   ::testing::Not(HasSubstr("json.exception"))));
  const std::string huge = R"({"name":"model.bin","bytes":9007199254740993,"sha256":"x"})";
  EXPECT_THAT(with("1", "[" + huge + "," + huge + "]"), HasSubstr("has 5 bytes instead of"));
}

// The directory's name, its marker and its state must name the same step.
TEST(CheckpointDirectory, ADirectoryOfTwoStepsIsDamaged) {
  const TemporaryDirectory output;
  const auto saved = [&](std::int64_t step, std::int64_t in_state) {
    TrainerState state;
    state.global_step = in_state;
    CheckpointTransaction transaction(output.path(), step, 0);
    write_file_atomically(transaction.directory() + "/trainer_state.json", state.to_json().dump());
    return transaction.commit();
  };
  const std::string path = saved(2, 2);
  EXPECT_EQ(checkpoint_problem(path, true), std::nullopt);
  EXPECT_EQ(checkpoint_problem(path + "/", true), std::nullopt);
  EXPECT_THAT(checkpoint_problem(saved(3, std::int64_t{1} << 52), true).value_or(""),
              HasSubstr("trainer_state.json is of step 4503599627370496, its COMPLETE marker of "
                        "step 3"));
  fs::rename(path, output / "checkpoint-20");
  for (const bool checksums : {false, true})
    EXPECT_THAT(checkpoint_problem(output / "checkpoint-20", checksums).value_or(""),
                HasSubstr("COMPLETE marker is of step 2"));
  fs::rename(output / "checkpoint-20", output / "best");
  EXPECT_EQ(checkpoint_problem(output / "best", true), std::nullopt);
}

TEST(CheckpointDirectory, ReplacesOneOfTheSameStep) {
  const TemporaryDirectory output;
  save(output.path(), 1, "old");
  save(output.path(), 1, "new!");
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-1", true), std::nullopt);
  EXPECT_EQ(fs::file_size(output / "checkpoint-1/model.bin"), 4U);
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1"));
}

// One writer died between its renames, the other before it wrote the marker.
TEST(CheckpointDirectory, TheCheckpointThatADeadWriterReplacedComesBack) {
  const TemporaryDirectory output;
  for (const bool renamed : {false, true}) {
    save(output.path(), 1, "old");
    fs::rename(output / "checkpoint-1", output / "tmp-checkpoint-1.0.replaced");
    if (renamed) fs::create_directory(output / "checkpoint-1");
    restore_replaced_checkpoints(output.path());
    EXPECT_EQ(checkpoint_problem(output / "checkpoint-1", true), std::nullopt);
    EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1"));
  }
  // A set-aside checkpoint does not replace a complete one, and an incomplete one is not restored.
  save(output.path(), 1, "newer!");
  save(output / "other", 1, "old");
  fs::rename(output / "other/checkpoint-1", output / "tmp-checkpoint-1.0.replaced");
  fs::create_directory(output / "tmp-checkpoint-2.0.replaced");
  restore_replaced_checkpoints(output.path());
  EXPECT_EQ(fs::file_size(output / "checkpoint-1/model.bin"), 6U);
  EXPECT_FALSE(fs::exists(output / "checkpoint-2"));
}

// Several readers read each byte once between them, and each learns every file's size.
TEST(CheckpointDirectory, ReadersShareTheBytes) {
  const TemporaryDirectory output;
  CheckpointTransaction transaction(output.path(), 1, 0);
  for (int i = 0; i < 5; ++i)
    write_file_atomically(transaction.directory() + fmt::format("/part-{}", i),
                          std::string(static_cast<std::size_t>(10 + i), 'x'));
  const std::string path = transaction.commit();
  for (const int readers : {1, 2, 3, 7})
    for (int spoilt = 0; spoilt < 5; ++spoilt) {
      const std::string file = path + fmt::format("/part-{}", spoilt);
      std::ofstream(file) << std::string(static_cast<std::size_t>(10 + spoilt), 'y');
      int saw = 0;
      for (int reader = 0; reader < readers; ++reader)
        if (const auto problem = checkpoint_problem(path, true, {reader, readers})) {
          EXPECT_THAT(*problem, HasSubstr(fmt::format("part-{} does not match", spoilt)));
          ++saw;
        }
      EXPECT_EQ(saw, 1) << readers << " readers";
      std::ofstream(file) << std::string(static_cast<std::size_t>(10 + spoilt), 'x');
    }
  fs::resize_file(path + "/part-3", 1);
  for (int reader = 0; reader < 3; ++reader)
    EXPECT_TRUE(checkpoint_problem(path, true, {reader, 3}));
}

// The checksums of sealed files are not read again; only sizes and the like are checked.
TEST(CheckpointDirectory, SealedFilesAreNotReadAgain) {
  const TemporaryDirectory output;
  const auto commit = [&](const std::string& later) {
    CheckpointTransaction transaction(output.path(), 1, 0);
    write_file_atomically(transaction.directory() + "/part", "abc");
    const SealedFile sealed = seal_file(transaction.directory(), "part");
    EXPECT_EQ(sealed.bytes, 3);
    EXPECT_EQ(to_hex(sealed.sha256),
              "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    fs::remove(transaction.directory() + "/part");
    if (!later.empty()) write_file_atomically(transaction.directory() + "/part", later);
    return transaction.commit(std::vector{sealed});
  };
  EXPECT_THAT(error_of([&] { commit("ab"); }), HasSubstr("has 2 bytes, and 3 for the rank"));
  EXPECT_THAT(error_of([&] { commit(""); }), HasSubstr("part, which its rank has written, is not"));
  EXPECT_THAT(names(output.path()), IsEmpty());
  EXPECT_EQ(checkpoint_problem(commit("abc"), true), std::nullopt);
  EXPECT_THAT(checkpoint_problem(commit("abd"), true).value_or(""), HasSubstr("checksum"));
}

TEST(CheckpointDirectory, RotatesButKeepsTheBestAndTheNewest) {
  const TemporaryDirectory output;
  for (int step = 1; step <= 5; ++step) save(output.path(), step);
  rotate_checkpoints(output.path(), 2, {output / "checkpoint-1"});
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1", "checkpoint-5"));
  rotate_checkpoints(output.path(), 1, {});
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-5"));
}

TEST(CheckpointDirectory, FilesOfDeadWritersAreRemoved) {
  const TemporaryDirectory output;
  fs::create_directories(output / "tmp-checkpoint-6.0/deep");
  fs::create_directory(output / "tmp-other");
  fs::create_directory(output / "checkpoint-5");
  remove_unfinished_checkpoints(output.path());
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-5", "tmp-other"));
  remove_unfinished_checkpoints(output / "none");
}

// The kernel refuses bytes beyond RLIMIT_FSIZE as it refuses them on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &old_); }

 private:
  rlimit old_{};
};

TEST(CheckpointDirectory, AFullDiskLeavesEarlierOnesAlone) {
  const TemporaryDirectory output;
  save(output.path(), 1);
  std::string text;
  {
    const FileSizeLimit limit(1 << 16);
    text = error_of([&] { save(output.path(), 2, std::string(1 << 20, 'x')); });
  }
  EXPECT_THAT(text, HasSubstr("model.bin"));
  EXPECT_THAT(names(output.path()), ElementsAre("checkpoint-1"));
  EXPECT_EQ(checkpoint_problem(output / "checkpoint-1", true), std::nullopt);
}

TEST(CheckpointDirectory, AnUnusableDirectoryIsNamed) {
  const TemporaryDirectory output;
  std::ofstream(output / "file") << "x";
  EXPECT_THAT(error_of([&] { save(output / "file", 1); }),
              ::testing::AllOf(HasSubstr("cannot make the directory"), HasSubstr("output_dir")));
}

TEST(CheckpointWriter, WritesWhileTheCallerContinues) {
  CheckpointWriter writer;
  std::atomic<bool> release{false}, done{false};
  writer.submit([&] {
    while (!release) std::this_thread::yield();
    done = true;
  });
  EXPECT_TRUE(writer.busy());
  EXPECT_FALSE(done);
  release = true;
  writer.finish();
  EXPECT_TRUE(done);
  EXPECT_FALSE(writer.busy());
}

TEST(CheckpointWriter, HandsItsErrorOverOnce) {
  CheckpointWriter writer;
  writer.submit([] { throw_error(ErrorCode::io, "disk full"); });
  while (writer.busy()) std::this_thread::yield();
  EXPECT_EQ(error_of([&] { writer.check(); }), "disk full");
  writer.check();
  writer.finish();
  writer.submit([] { throw_error(ErrorCode::io, "again"); });
  EXPECT_EQ(error_of([&] { writer.submit([] {}); }), "again");
  writer.finish();
}

TEST(TrainerState, RoundTripsEveryField) {
  TrainerState state;
  state.global_step = 25;
  state.max_steps = 50;
  state.epoch = 1.0 / 3;
  state.num_train_epochs = 3;
  state.train_batch_size = 4;
  state.global_batch_size = 16;
  state.best_metric = 2.5;
  state.best_model_checkpoint = "out/checkpoint-20";
  state.log_history.push_back({{"loss", 0.1}, {"step", 20}});
  state.data_epoch = 2;
  state.data_position = 96;
  state.data = {{"samples", 120}, {"packing_strategy", "wrapped"}, {"max_train_samples", nullptr}};
  state.seed = 7;
  state.data_seed = 9;
  state.optimizer_steps = 24;
  state.window_loss = 0.1 + 0.2;  // not representable in few digits
  state.window_steps = 5;
  state.total_loss = 1e-17 + 77.7;
  state.tokens_seen = std::int64_t{1} << 40;
  state.loss_scale = 65536;
  state.loss_scale_dynamic = true;
  state.loss_scale_good_steps = 12;
  state.loss_scale_shift_left = 3;
  state.loss_scale_overflows_at_minimum = 4;
  state.layout = {4, 2, "avx512_bf16"};
  const std::string text = state.to_json().dump(2);
  const TrainerState again = TrainerState::from_json(nlohmann::json::parse(text), "x");
  EXPECT_EQ(again.to_json().dump(2), text);
  EXPECT_EQ(again.data, state.data);
  EXPECT_EQ(again.loss_scale_shift_left, 3);
  EXPECT_EQ(again.loss_scale_overflows_at_minimum, 4);
  EXPECT_TRUE(again.loss_scale_dynamic);
  EXPECT_EQ(again.window_loss, state.window_loss);
  EXPECT_EQ(again.total_loss, state.total_loss);
  state.total_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(std::isnan(
      TrainerState::from_json(nlohmann::json::parse(state.to_json().dump()), "x").total_loss));
}

TEST(TrainerState, NamesFileAndFieldOfWrongOnes) {
  const auto error = [](const char* text) {
    return error_of([&] { TrainerState::from_json(nlohmann::json::parse(text), "a/state.json"); });
  };
  EXPECT_THAT(error("[]"), HasSubstr("a/state.json"));
  EXPECT_THAT(error("{}"), HasSubstr("a/state.json lacks epoch"));
  TrainerState whole;
  whole.global_step = 3;
  const auto with = [&](const nlohmann::json::json_pointer& field, const char* value) {
    nlohmann::ordered_json json = whole.to_json();
    json[nlohmann::ordered_json::json_pointer(field.to_string())] = nlohmann::json::parse(value);
    return error(json.dump().c_str());
  };
  const auto refused = [](const std::string& name) {
    return ::testing::AllOf(::testing::ContainsRegex("^a/state.json (has|lacks) " + name),
                            ::testing::Not(HasSubstr("json.exception")));
  };
  for (const char* name :
       {"/global_step", "/max_steps", "/train_batch_size", "/shoal/global_batch_size",
        "/shoal/data_epoch", "/shoal/data_position", "/shoal/optimizer_steps",
        "/shoal/window_steps", "/shoal/tokens_seen", "/shoal/loss_scale_good_steps",
        "/shoal/layout/ranks", "/shoal/layout/threads"})
    for (const char* value : {"1.5", "1.0", "1e300", "-1", "9223372036854775808", "\"far\"", "[]",
                              "{}", "true", "null"})
      EXPECT_THAT(with(nlohmann::json::json_pointer(name), value),
                  refused(std::string(name).substr(std::string_view(name).rfind('/') + 1)))
          << value;
  EXPECT_THAT(with(nlohmann::json::json_pointer("/global_step"), "4611686018427387904"),
              refused("global_step"));
  for (const char* name : {"/epoch", "/num_train_epochs", "/shoal/loss_scale"})
    for (const char* value : {"-1", "1e300", "\"far\"", "null"})
      EXPECT_THAT(with(nlohmann::json::json_pointer(name), value),
                  refused(std::string(name).substr(std::string_view(name).rfind('/') + 1)))
          << value;
  for (const char* name : {"/shoal/seed", "/shoal/data_seed"})
    for (const char* value : {"1e300", "-1", "1.5"})
      EXPECT_THAT(with(nlohmann::json::json_pointer(name), value), HasSubstr("seed: ")) << value;
  for (const char* name : {"/shoal", "/shoal/layout", "/log_history", "/best_metric",
                           "/best_model_checkpoint", "/shoal/loss_scale_dynamic"})
    EXPECT_THAT(with(nlohmann::json::json_pointer(name), "7e5"),
                ::testing::AnyOf("no error", ::testing::Not(HasSubstr("json.exception"))));
  EXPECT_THAT(with(nlohmann::json::json_pointer("/shoal/optimizer_steps"), "4"),
              HasSubstr("has optimizer_steps: 4, where a whole number from 0 to 3 is expected"));
}

}  // namespace
}  // namespace shoal
