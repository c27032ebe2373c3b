// The entry point itself, on trees laid out like /opt/ml.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "sagemaker/container/greeter.h"
#include "sagemaker/container/opt_ml.h"
#include "sagemaker/container/train_fixture.h"
#include "support/free_port.h"
#include "support/pipe_writer.h"
#ifdef SHOAL_TEST_S3
#include "sagemaker/rest/fake_aws.h"
#endif
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "shoal/runtime/io/byte_source.h"

namespace shoal::sagemaker {
namespace {

namespace fs = std::filesystem;
using test::ProgramOptions;
using test::ProgramResult;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = OptMl::Json;

TEST_F(Train, LeavesTheModelAndLinesThatMetricsMatch) {
  OptMl ml;
  fill(ml, hyperparameters(3));
  const ProgramResult result = train(ml);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(fs::exists(ml.path("model/model.safetensors")));
  EXPECT_TRUE(fs::exists(ml.path("model/config.json")));
  EXPECT_TRUE(fs::exists(ml.path("model/tokenizer.json")));
  EXPECT_FALSE(fs::exists(ml.path("output/failure")));
  for (const char* name : {"loss", "learning_rate", "epoch", "train_runtime",
                           "train_samples_per_second", "train_steps_per_second", "train_loss"})
    EXPECT_TRUE(std::regex_search(result.out, std::regex(fmt::format("'{}': ([0-9.eE+-]+)", name))))
        << name << "\n"
        << result.out;
  EXPECT_THAT(result.out, HasSubstr("train: host algo-1 of 1, single process"));
}

TEST_F(Train, ContinuesAsIfItHadNotBeenStopped) { expect_resumed_as_unbroken(200, Json::object()); }

TEST_F(Train, ContinuesUnderMpirunToo) {
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "mpirun is not installed";
  expect_resumed_as_unbroken(
      80, {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "2"}});
}

// The stopped program could not save.
TEST_F(Train, DoesNotClaimASavedRunAfterAFailedStop) {
  const OptMl ml;
  script(ml.path("shoal"),
         "trap 'echo \"shoal train: no space is left\" >&2; exit 1' TERM\n"
         "echo ready\nwhile :; do sleep 0.02; done\n");
  ProgramOptions stop;
  stop.signal_when_out_has = "ready";
  const ProgramResult result = test::run_program(
      {SHOAL_SAGEMAKER_TRAIN, "--prefix", ml.root(), "--shoal", ml.path("shoal")}, stop);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("but not in order: shoal train: no space is left"));
  EXPECT_THAT(result.out, Not(HasSubstr("holds the run")));
  EXPECT_FALSE(fs::exists(ml.path("output/failure")));
}

// Damages the newest checkpoint as the loss of a host may: a file is missing or half of it. If no
// older one is whole, the run would fail, so one is left.
void damage_newest_checkpoint(const std::string& output_dir, std::mt19937& random) {
  std::map<long, fs::path> found;
  for (const auto& entry : fs::directory_iterator(output_dir))
    if (const std::string name = entry.path().filename(); name.starts_with("checkpoint-"))
      found[std::stol(name.substr(11))] = entry.path();
  if (found.size() < 2) return;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(found.rbegin()->second))
    if (entry.is_regular_file()) files.push_back(entry.path());
  if (files.empty()) return;
  std::ranges::sort(files);
  const fs::path& file = files[random() % files.size()];
  if (random() % 2 == 0)
    fs::remove(file);
  else
    fs::resize_file(file, random() % (fs::file_size(file) + 1));
}

// The command that `train` starts is killed at random moments, and its newest checkpoint
// is damaged each time.
TEST_F(Train, ResumesFromTheLastWholeCheckpointAfterKills) {
  const bool full = std::getenv("SHOAL_TEST_FULL") != nullptr;
  const Json run = hyperparameters(full ? 400 : 12, {{"save_strategy", "\"steps\""},
                                                     {"save_steps", full ? "5" : "3"},
                                                     {"save_total_limit", "4"}});
  const auto command_of = [](const OptMl& ml) {
    return Json::parse(train(ml, {"--dry-run"}).out).at("command").get<std::vector<std::string>>();
  };
  OptMl unbroken, broken;
  fill(unbroken, run);
  fill(broken, run);
  const ProgramOptions plain{.environment = {"SHOAL_THREADS=1"}};
  const ProgramResult whole = test::run_program(command_of(unbroken), plain);
  ASSERT_EQ(whole.status, 0) << whole.err;
  const auto words = command_of(broken);
  std::mt19937 random(11);
  std::uniform_real_distribution<double> moment(0.05, full ? 3.0 : 0.5);
  int killed = 0, damaged = 0;
  for (int i = 0; i < (full ? 20 : 2); ++i) {
    ProgramOptions kill = plain;
    kill.signal = SIGKILL;
    kill.signal_after = moment(random);
    const ProgramResult result = test::run_program(words, kill);
    ASSERT_TRUE(result.signal == SIGKILL || result.status == 0) << result.err;
    killed += result.signal == SIGKILL ? 1 : 0;
    damaged += result.out.find("is passed over: ") != std::string::npos ? 1 : 0;
    if (fs::exists(broken.path("checkpoints")))
      damage_newest_checkpoint(broken.path("checkpoints"), random);
  }
  const ProgramResult last = test::run_program(words, plain);
  ASSERT_EQ(last.status, 0) << last.out << last.err;
  damaged += last.out.find("is passed over: ") != std::string::npos ? 1 : 0;
  if (full) fmt::print("{} kills, {} damaged checkpoints passed over\n", killed, damaged);
  EXPECT_GT(killed, 0);
  EXPECT_EQ(read_text_file(broken.path("checkpoints/model.safetensors")),
            read_text_file(unbroken.path("checkpoints/model.safetensors")));
}

Json streaming() {
  return {{"streaming", "true"}, {"shuffle_buffer_size", "20"}, {"dataloader_num_workers", "1"}};
}

TEST_F(Train, ReadsPipesAsFiles) {
  Json more = streaming();
  if (std::system("command -v mpirun > /dev/null") == 0)
    more.update(
        {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "2"}});
  more["do_eval"] = "true";
  OptMl files({"localhost"}, "localhost"), pipes({"localhost"}, "localhost");
  fill(files, hyperparameters(120, more));
  fs::create_directories(files.path("input/data/validation"));
  fs::copy_file(*shared_ / "train.txt", files.path("input/data/validation/text.txt"));
  files.inputs({{"train", {{"TrainingInputMode", "FastFile"}}},
                {"validation", {{"TrainingInputMode", "FastFile"}}}});
  auto beside = std::async(std::launch::async, [&files] { return train(files); });
  pipes.hyperparameters(hyperparameters(120, more));
  pipes.inputs({{"train", {{"TrainingInputMode", "Pipe"}}},
                {"validation", {{"TrainingInputMode", "Pipe"}, {"ContentType", "text/plain"}}}});
  const std::string text = read_text_file(*shared_ / "train.txt");
  const testing::PipeWriter train_channel(pipes.path("input/data/train"), text);
  const testing::PipeWriter validation(pipes.path("input/data/validation"), text);
  const ProgramResult piped = train(pipes);
  ASSERT_EQ(piped.status, 0) << piped.out << piped.err;
  EXPECT_THAT(piped.out, HasSubstr("'eval_loss': "));
  EXPECT_GE(train_channel.epochs_begun(), 2);
  const ProgramResult filed = beside.get();
  ASSERT_EQ(filed.status, 0) << filed.out << filed.err;
  EXPECT_EQ(model_of(pipes), model_of(files));
}

// Ranks that wait for an unreadable channel are ended. If `train` is stopped meanwhile, the channel
// is not the reported reason.
TEST_F(Train, FailsIfAChannelFails) {
  for (const auto& [mpirun, status] :
       {std::pair{"exec sleep 600\n", 143},
        {"trap 'kill -TERM $PPID; exit 1' TERM\nwhile :; do sleep 0.02; done\n", 1}}) {
    OptMl ml({"localhost"}, "localhost");
    fill_with_no_pipe(ml);
    script(ml.path("mpirun"), mpirun);
    const ProgramResult result = train(ml, {"--mpirun", ml.path("mpirun")});
    EXPECT_EQ(result.status, status) << result.out << result.err;
    expect_no_pipe(ml);
  }
}

// The cases are a worker, and the first host before it has met the others.
TEST_F(Train, AStoppedHostStillReportsAFailedChannel) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the test counts threads, and ThreadSanitizer adds one";
#endif
  for (const char* host : {"localhost", "127.0.0.1"}) {
    SCOPED_TRACE(host);
    OptMl ml({"127.0.0.1", "localhost"}, host);
    fill_with_no_pipe(ml);
    const Greeter other("SSH-2.0-test\r\n");
    script(ml.path("ssh-keyscan"), "echo 127.0.0.1 ssh-ed25519 AAAA\n");
    // The channel's thread ends when the channel has failed. Then the script stops `train`.
    script(ml.path("sshd"),
           "until [ \"$(ls /proc/$PPID/task | wc -l)\" = 1 ]; do sleep 0.02; done\n"
           "kill -TERM $PPID\n");
    const ProgramResult result =
        train(ml, {"--sshd", ml.path("sshd"), "--ssh-port", std::to_string(other.port()), "--orted",
                   "no-such-program"});
    EXPECT_EQ(result.status, 4) << result.out << result.err;
    expect_no_pipe(ml);
  }
}

TEST_F(Train, ContinuesAPipeThatBeginsAnew) {
  const Json run = hyperparameters(300, streaming());
  OptMl files, pipes;
  fill(files, run);
  auto beside = std::async(std::launch::async, [&files] { return train(files); });
  pipes.hyperparameters(run);
  pipes.inputs({{"train", {{"TrainingInputMode", "Pipe"}}}});
  const std::string text = read_text_file(*shared_ / "train.txt");
  {
    const testing::PipeWriter channel(pipes.path("input/data/train"), text);
    ProgramOptions stop;
    stop.signal_when_out_has = "'epoch': 1.";
    EXPECT_EQ(train(pipes, {}, stop).status, 128 + SIGTERM);
  }
  const testing::PipeWriter channel(pipes.path("input/data/train"), text);
  const ProgramResult resumed = train(pipes);
  ASSERT_EQ(resumed.status, 0) << resumed.out << resumed.err;
  EXPECT_THAT(resumed.out, HasSubstr("resuming from "));
  const ProgramResult whole = beside.get();
  ASSERT_EQ(whole.status, 0) << whole.out << whole.err;
  EXPECT_EQ(model_of(pipes), model_of(files));
}

// mpirun would kill the ranks a second after SIGTERM.
TEST_F(Train, StopsMpirunByTheSignalThatItPassesOn) {
  OptMl ml;
  ml.hyperparameters(
      {{"sagemaker_mpi_enabled", "true"}, {"sagemaker_mpi_num_of_processes_per_host", "2"}});
  const std::string rank = ml.path("a-rank");  // a process with this name runs
  fs::copy_file("/bin/sleep", rank);
  script(ml.path("mpirun"),
         rank +
             " 30 &\nrank=$!\n"
             "trap 'kill $rank; exit 138' USR1\n"
             "trap 'kill $rank; exit 1' TERM\n"
             "until [ \"$(cat /proc/$rank/comm)\" = a-rank ]; do sleep 0.01; done\n"
             "echo ready\nwhile :; do sleep 0.02; done\n");
  ProgramOptions stop;
  stop.signal_when_out_has = "ready";
  const ProgramResult result = test::run_program({SHOAL_SAGEMAKER_TRAIN, "--prefix", ml.root(),
                                                  "--mpirun", ml.path("mpirun"), "--shoal", rank},
                                                 stop);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("stopped by signal 15; "));
}

TEST_F(Train, SaysWhyItFailed) {
  OptMl ml;
  fill(ml, hyperparameters(3, {{"learning_rat", "0.1"}}));
  const ProgramResult result = train(ml);
  EXPECT_EQ(result.status, 2);
  const std::string failure = read_text_file(ml.path("output/failure"));
  EXPECT_THAT(failure, HasSubstr("shoal train: "));
  EXPECT_THAT(failure, HasSubstr("learning_rat"));
  EXPECT_THAT(failure, HasSubstr("(exit status 2)"));
  EXPECT_FALSE(fs::exists(ml.path("model/model.safetensors")));
}

TEST_F(Train, SaysWhatIsWrongWithTheContract) {
  const OptMl ml;
  fs::remove(ml.path("input/config/resourceconfig.json"));
  const ProgramResult result = train(ml);
  EXPECT_EQ(result.status, 3);
  EXPECT_THAT(read_text_file(ml.path("output/failure")), HasSubstr("resourceconfig.json"));
  EXPECT_THAT(result.err, HasSubstr("train: "));
}

TEST_F(Train, RunsTheUploadedFile) {
  OptMl ml;
  fill_with_archive(ml);
  const ProgramResult result = train(ml);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("run: from the archive"));
}

#ifdef SHOAL_TEST_S3
TEST_F(Train, FetchesItsCodeFromS3) {
  OptMl ml;
  const testing::TemporaryDirectory code;
  std::ofstream(code / "run.json") << R"({"max_steps": 2, "run_name": "from S3"})";
  ASSERT_EQ(
      test::run_program({"tar", "-czf", code / "a.tar.gz", "-C", code.path(), "run.json"}).status,
      0);
  test::FakeAws aws;
  aws.put_object("bucket/job/source/sourcedir.tar.gz", read_text_file(code / "a.tar.gz"));
  Json all = hyperparameters(
      2, {{"sagemaker_program", "\"run.json\""},
          {"sagemaker_submit_directory", "\"s3://bucket/job/source/sourcedir.tar.gz\""}});
  all.erase("max_steps");
  fill(ml, all);
  ProgramOptions here;
  here.environment = aws.environment();
  here.environment.emplace_back("SHOAL_LOG=debug");
  const ProgramResult result = train(ml, {}, here);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("run: from S3"));
  all["sagemaker_submit_directory"] = "\"s3://bucket/nothing.tar.gz\"";
  fill(ml, all);
  const ProgramResult refused = train(ml, {}, here);
  EXPECT_EQ(refused.status, 3);
  const std::string failure = read_text_file(ml.path("output/failure"));
  EXPECT_THAT(failure, HasSubstr("nothing.tar.gz"));
  EXPECT_THAT(result.err, HasSubstr("GET " + aws.url() + "/bucket/job/source"));  // at debug level
  for (const std::string& text : {result.out, result.err, refused.out, refused.err, failure})
    EXPECT_THAT(text, Not(HasSubstr(test::FakeAws::kSecret)));
}

// SageMaker does not always set AWS_REGION. Then the job's own hyperparameter has the region.
TEST_F(Train, TakesTheJobsRegionForS3) {
  for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) ::unsetenv(name);
  OptMl ml;
  const testing::TemporaryDirectory code;
  std::ofstream(code / "run.json") << R"({"max_steps": 2, "streaming": true})";
  ASSERT_EQ(
      test::run_program({"tar", "-czf", code / "a.tar.gz", "-C", code.path(), "run.json"}).status,
      0);
  test::FakeAws aws;
  aws.put_object("bucket/source.tar.gz", read_text_file(code / "a.tar.gz"));
  aws.put_object("bucket/data/train.txt", read_text_file(*shared_ / "train.txt"));
  Json all = hyperparameters(2, {{"sagemaker_program", "\"run.json\""},
                                 {"sagemaker_submit_directory", "\"s3://bucket/source.tar.gz\""},
                                 {"train_file", "\"s3://bucket/data/train.txt\""}});
  all.erase("max_steps");
  ml.hyperparameters(all);
  ProgramOptions here;
  here.environment = aws.environment();
  std::erase_if(here.environment, [](const auto& one) { return one.starts_with("AWS_REGION="); });
  const ProgramResult result = train(ml, {}, here);
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  const ProgramResult shown = train(ml, {"--dry-run"}, here);
  EXPECT_EQ(Json::parse(shown.out).at("environment").at("AWS_REGION"), "us-east-1");
  all.erase("sagemaker_region");
  ml.hyperparameters(all);
  const ProgramResult refused = train(ml, {}, here);
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.err, HasSubstr("no AWS region is given, which S3 needs; set the variable"));
  EXPECT_THAT(refused.err, Not(HasSubstr("--region")));
}
#endif

// A fake nvidia-smi lists GPUs. `shoal` is a program that ends at once.
TEST_F(Train, RefusesAHostThatLacksGpus) {
  OptMl ml({"algo-1"}, "algo-1", "ml.p4d.24xlarge");
  fill(ml, {{"sagemaker_distributed_dataparallel_enabled", "true"}});
  script(ml.path("nvidia-smi"),
         "for n in 0 1 2 3 4 5 6; do echo \"GPU $n: NVIDIA A100-SXM4-40GB (UUID: GPU-$n)\"; done\n"
         "echo 'Unable to determine the device handle for GPU7: GPU is lost' >&2\nexit 15\n");
  script(ml.path("mpirun"), "echo \"started $*\"; exit 3\n");
  const auto run = [&ml](std::vector<std::string> words) {
    words.insert(words.end(), {"--mpirun", ml.path("mpirun")});
    return train(ml, words,
                 {.environment = {"PATH=" + ml.root() + ":" + std::getenv("PATH"),
                                  "CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6"}});
  };
  const ProgramResult refused = run({"--for-gpus", "true"});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.out, Not(HasSubstr("started")));
  EXPECT_THAT(read_text_file(ml.path("output/failure")),
              HasSubstr("host algo-1 shows 7 GPUs, but its type, ml.p4d.24xlarge, has 8 "
                        "(nvidia-smi ended with status 15, saying: Unable to determine"));
  const ProgramResult for_cpus = run({"--for-gpus", "false"});
  EXPECT_THAT(for_cpus.out, HasSubstr("started --host algo-1:7 -np 7"));
  ml.hyperparameters({{"sagemaker_distributed_dataparallel_enabled", "true"}, {"no_cuda", "true"}});
  EXPECT_THAT(run({"--for-gpus", "true"}).out, HasSubstr("started"));
}

// The environment has keys, which mpirun and the ranks inherit.
TEST_F(Train, LeavesNoCoreFile) {
  OptMl ml;
  fill(ml, hyperparameters(3));
  script(ml.path("shoal"), "ulimit -c\necho up\nexec sleep 1\n");
  ProgramOptions crash;
  crash.signal_when_out_has = "up\n";
  crash.signal = SIGABRT;
  crash.core_files = true;
  const ProgramResult result = train(ml, {"--shoal", ml.path("shoal")}, crash);
  EXPECT_EQ(result.signal, SIGABRT);
  EXPECT_FALSE(result.left_core);
  EXPECT_THAT(result.out, HasSubstr("\n0\nup"));  // in blocks: the limit is a byte
}

// mpirun is a script that starts a rank for each of two hosts on this machine.
TEST_F(Train, TrainsOnTwoHosts) {
  OptMl ml({"localhost", "127.0.0.1"}, "localhost");
  fill(ml, hyperparameters(3, {{"sagemaker_distributed_dataparallel_enabled", "true"}}));
  const Greeter ssh("SSH-2.0-test\r\n");
  script(ml.path("sshd"), "echo started > " + ml.path("sshd-started") + "\n");
  // The last argument is the command for the other host, which is this machine.
  script(ml.path("ssh"), "for command; do :; done\nexec sh -c \"$command\"\n");
  script(ml.path("mpirun"), "echo \"$*\" > " + ml.path("words") +
                                "\nwhile [ \"$1\" != \"" SHOAL_PROGRAM
                                "\" ]; do\n  case \"$1\" in -np) ranks=$2 ;; MASTER_ADDR=*) export "
                                "\"$1\" ;; esac\n  shift\ndone\n"
                                "export OMPI_COMM_WORLD_SIZE=$ranks OMPI_COMM_WORLD_LOCAL_RANK=0 "
                                "OMPI_COMM_WORLD_LOCAL_SIZE=1\n"
                                "for rank in 0 1; do\n"
                                "  OMPI_COMM_WORLD_RANK=$rank SHOAL_HOST_NAME=host$rank \"$@\" & "
                                "pids=\"$pids $!\"\ndone\n"
                                "for pid in $pids; do wait $pid || exit $?; done\n");
  ProgramOptions options;
  options.environment = {fmt::format("MASTER_PORT={}", testing::free_port())};
  const ProgramResult result =
      train(ml,
            {"--mpirun", ml.path("mpirun"), "--sshd", ml.path("sshd"), "--ssh", ml.path("ssh"),
             "--ssh-port", std::to_string(ssh.port())},
            options);
  ASSERT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_TRUE(fs::exists(ml.path("sshd-started")));
  EXPECT_EQ(fs::status(ml.path("ssh-keys/job-token")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(read_text_file(ml.path("ssh-keys/authorized_keys")), "");  // no key may log in here
  EXPECT_THAT(read_text_file(ml.path("words")),
              HasSubstr("plm_rsh_args -i " + ml.path("ssh-keys/key")));
  EXPECT_TRUE(fs::exists(ml.path("model/model.safetensors")));
  EXPECT_THAT(read_text_file(ml.path("words")), HasSubstr("--host localhost,127.0.0.1 -np 2"));
  EXPECT_THAT(read_text_file(ml.path("words")), HasSubstr("-x AWS_SECRET_ACCESS_KEY "));
  EXPECT_THAT(read_text_file(ml.path("words")), Not(HasSubstr("geheim")));
}

// mpirun exits with 0 if the signal came while it was starting ranks. Nothing has been trained
// then, even if an earlier job left a model among the checkpoints.
TEST_F(Train, FailsIfMpirunExitsWith0BeforeTraining) {
  OptMl ml({"localhost"}, "localhost");
  fill(ml, hyperparameters(3, {{"sagemaker_mpi_enabled", "true"},
                               {"sagemaker_mpi_num_of_processes_per_host", "2"}}));
  ml.write("checkpoints/model.safetensors", "of another job");
  const auto an_hour = std::chrono::hours(1);
  const std::string old = ml.path("checkpoints/model.safetensors");
  fs::last_write_time(old, fs::last_write_time(old) - an_hour);
  script(ml.path("mpirun"), "trap 'exit 0' USR1 TERM\necho begun\nwhile :; do sleep 0.05; done\n");
  ProgramOptions stop;
  stop.signal_when_out_has = "begun";
  const ProgramResult result = train(ml, {"--mpirun", ml.path("mpirun")}, stop);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.out << result.err;
  EXPECT_FALSE(fs::exists(ml.path("output/failure")));
  EXPECT_FALSE(fs::exists(ml.path("model/model.safetensors")));
}

// Without a distribution each host starts one process, and rank 0's model counts.
TEST_F(Train, OnlyTheFirstHostExports) {
  const OptMl second({"algo-1", "algo-2"}, "algo-2"), first({"algo-1", "algo-2"}, "algo-1");
  const auto run = [](const OptMl& ml) {
    script(ml.path("shoal"), "exit 0\n");
    return test::run_program(
        {SHOAL_SAGEMAKER_TRAIN, "--prefix", ml.root(), "--shoal", ml.path("shoal")});
  };
  EXPECT_EQ(run(second).status, 0);
  EXPECT_EQ(run(first).status, 3);
  EXPECT_THAT(read_text_file(first.path("output/failure")), HasSubstr("no finished model"));
}

TEST_F(Train, AWorkerThatIsStoppedSaysSo) {
  OptMl ml({"127.0.0.1", "localhost"}, "localhost");
  fill(ml, hyperparameters(3, {{"sagemaker_distributed_dataparallel_enabled", "true"}}));
  const Greeter master("SSH-2.0-test\r\n");
  script(ml.path("ssh-keyscan"), "echo 127.0.0.1 ssh-ed25519 AAAA\n");
  script(ml.path("sshd"), "exit 0\n");
  ProgramOptions stop;
  stop.signal_when_out_has = "worker of mpirun";
  const ProgramResult result = train(ml,
                                     {"--sshd", ml.path("sshd"), "--ssh-port",
                                      std::to_string(master.port()), "--orted", "no-such-program"},
                                     stop);
  EXPECT_EQ(result.status, 128 + SIGTERM) << result.out << result.err;
  EXPECT_FALSE(fs::exists(ml.path("output/failure")));
}

TEST_F(Train, ServesAsAWorkerUntilMpirunIsGone) {
  OptMl ml({"127.0.0.1", "localhost"}, "localhost");
  fill(ml, hyperparameters(3, {{"sagemaker_distributed_dataparallel_enabled", "true"}}));
  const Greeter master("SSH-2.0-test\r\n");
  const std::string orted = "orted" + std::to_string(::getpid());
  fs::copy_file("/bin/sleep", ml.path(orted));
  script(ml.path("ssh-keyscan"), "echo 127.0.0.1 ssh-ed25519 AAAA\n");
  // Instead of the file with which the first host announces the end, `train` finds a named pipe, a
  // new one each time it looks. When it looks a second time, it has seen that mpirun runs.
  const std::string ended = ml.path("output/first-host-ended");
  script(ml.path("sshd"), fmt::format("exec < /dev/null > /dev/null 2>&1\nmkfifo {0}\n{1} 1000 &\n"
                                      "runs=$!\n(exec 3> {0}; rm {0}; mkfifo {0}; exec 3>&-; exec "
                                      "3> {0}; kill $runs; rm {0}) &\n",
                                      ended, ml.path(orted)));
  const ProgramResult result = train(ml, {"--sshd", ml.path("sshd"), "--ssh-port",
                                          std::to_string(master.port()), "--orted", orted});
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  EXPECT_THAT(result.out, HasSubstr("worker of mpirun"));
  EXPECT_THAT(read_text_file(ml.path("ssh-keys/authorized_keys")), HasSubstr("ssh-ed25519 AAAA"));
  EXPECT_FALSE(fs::exists(ml.path("model/model.safetensors")));
}

}  // namespace
}  // namespace shoal::sagemaker
