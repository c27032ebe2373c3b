#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>
#include <vector>

#include "apps/shoal_fixture.h"
#include "support/source_tree.h"
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/byte_source.h"

namespace shoal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The row of `shoal doctor`, and its exit status if that row is required.
struct Answer {
  bool present = false;
  std::string value = {}, matter = {}, said = {};
  int status = 0;
};

Answer ask(const std::vector<std::string>& environment) {
  test::ProgramOptions options;
  options.environment = environment;
  const auto all =
      test::run_program({SHOAL_PROGRAM, "doctor", "--json", "--need", "NCCL network"}, options);
  Answer answer{.said = all.err, .status = all.status};
  for (const auto& row : nlohmann::json::parse(all.out))
    if (row.at("name") == "NCCL network") {
      row.at("present").get_to(answer.present);
      row.at("value").get_to(answer.value);
      row.at("for").get_to(answer.matter);
    }
  return answer;
}

const std::string kPlugin = SHOAL_NCCL_PLUGIN;

TEST(DoctorNcclNetwork, IsThePluginThatNcclWouldOpen) {
  const Answer by_path = ask({"NCCL_NET_PLUGIN=" + kPlugin});
  EXPECT_TRUE(by_path.present);
  EXPECT_EQ(by_path.value, "a network, interface 8 (" + kPlugin + ")");
  EXPECT_EQ(by_path.status, 0) << by_path.said;
  // A short name, second in a list.
  const std::string folder = std::filesystem::path(kPlugin).parent_path();
  const Answer by_name = ask({"LD_LIBRARY_PATH=" + folder, "NCCL_NET_PLUGIN=no-such,shoaltest"});
  EXPECT_TRUE(by_name.present);
  EXPECT_THAT(by_name.value, HasSubstr("(libnccl-net-shoaltest.so)"));
}

TEST(DoctorNcclNetwork, IsMissedByName) {
  const testing::TemporaryDirectory root;
  std::ofstream(root / "libnccl-net.so") << "no library";
  const Answer broken = ask({"LD_LIBRARY_PATH=" + root.path(), "NCCL_NET_PLUGIN="});
  EXPECT_FALSE(broken.present);
  EXPECT_EQ(broken.status, 1);
  EXPECT_THAT(broken.said, HasSubstr("NCCL network: none; between hosts NCCL would use sockets"));
  EXPECT_THAT(broken.said, HasSubstr("libnccl-net.so: "));
  EXPECT_THAT(broken.said, Not(HasSubstr("libnccl-net.so: libnccl-net.so: ")));
  // Each of several plugins is named once.
  EXPECT_THAT(
      ask({"NCCL_NET_PLUGIN=no-such"}).matter,
      AllOf(HasSubstr(": no-such: cannot open"), HasSubstr("; libnccl-net-no-such.so: cannot")));
  const Answer other = ask({"NCCL_NET_PLUGIN=libm.so.6"});
  EXPECT_FALSE(other.present);
  EXPECT_THAT(other.matter, HasSubstr("libm.so.6: it has no ncclNetPlugin_v..."));
  EXPECT_THAT(ask({"NCCL_NET_PLUGIN=none"}).value, HasSubstr("is none"));
  const Answer kept = ask({"NCCL_NET_PLUGIN=" + kPlugin, "NCCL_NET=Socket"});
  EXPECT_FALSE(kept.present);
  EXPECT_THAT(kept.matter, HasSubstr("NCCL_NET=Socket keeps NCCL from it"));
  EXPECT_TRUE(ask({"NCCL_NET_PLUGIN=" + kPlugin, "NCCL_NET=A Network"}).present);
}

// The names of the lines that a Dockerfile's health check requires.
std::vector<std::string> needed_by(const std::string& dockerfile) {
  const std::string text = read_text_file(testing::source_path("docker/") + dockerfile);
  const auto start = text.find("\nHEALTHCHECK ");
  const std::string check = text.substr(start, text.find('\n', start + 1) - start);
  std::vector<std::string> names;
  const std::regex need("\"--need\", \"([^\"]+)\"");
  for (std::sregex_iterator it(check.begin(), check.end(), need), end; it != end; ++it)
    names.push_back((*it)[1]);
  return names;
}

TEST(DoctorImages, NeedLinesThatThereAre) {
  const auto doctor = test::run_program({SHOAL_PROGRAM, "doctor", "--json"});
  std::vector<std::string> lines;
  for (const auto& row : nlohmann::json::parse(doctor.out)) lines.push_back(row.at("name"));
  for (const char* dockerfile : {"Dockerfile.cpu", "Dockerfile.cuda"}) {
    const auto needed = needed_by(dockerfile);
    EXPECT_THAT(needed, ::testing::IsSupersetOf({"MPI", "libfabric", "S3"})) << dockerfile;
    EXPECT_THAT(lines, ::testing::IsSupersetOf(needed)) << dockerfile;
  }
}

// A fake cmake prints its arguments.
TEST(DoctorImages, AreBuiltWithTheLibrariesOfJobs) {
  const testing::TemporaryDirectory root;
  std::ofstream(root / "cmake") << "#!/bin/sh\necho \"$@\"\n";
  std::filesystem::permissions(root / "cmake", std::filesystem::perms::owner_all);
  const auto steps = test::run_program(
      {testing::source_path("docker/steps"), "compile", "/usr/local", "-DSHOAL_CUDA=ON"},
      {.environment = {"PATH=" + root.path() + ":" + std::getenv("PATH")}});
  EXPECT_EQ(steps.status, 0) << steps.err;
  for (const char* flag : {"SHOAL_SAGEMAKER", "SHOAL_MPI", "SHOAL_LIBFABRIC", "SHOAL_CUDA"})
    EXPECT_THAT(steps.out, HasSubstr(std::string("-D") + flag + "=ON"));
}

TEST_F(Shoal, DoctorListsTheBuildAndTheMachine) {
  EXPECT_THAT(shoal({"version"}).out, HasSubstr("shoal "));
  const auto doctor = shoal({"doctor", "--json"});
  ASSERT_EQ(doctor.status, 0) << doctor.err;
  EXPECT_GT(nlohmann::json::parse(doctor.out).size(), 10U);
  EXPECT_THAT(shoal({"doctor"}).out, AllOf(HasSubstr("oneDNN"), HasSubstr("/dev/shm")));
  EXPECT_EQ(shoal({"doctor", "--need", "oneDNN", "--need", "memory"}).status, 0);
  expect_refused(shoal({"doctor", "--need", "oneDN"}), "did you mean oneDNN?");
  expect_refused(shoal({"doctor", "--need", "gpu"}), "did you mean GPU?");
  for (const auto& row : nlohmann::json::parse(doctor.out)) {
    if (row["name"] == "CUDA kernels" && row["present"] == false)
      expect_refused(shoal({"doctor", "--need", "CUDA kernels"}), "-DSHOAL_CUDA=ON");
    if (row.at("name") == "S3") {
      const auto asked = shoal({"doctor", "--need", "S3"});
      if (row.at("present").get<bool>())
        EXPECT_EQ(asked.status, 0) << asked.err;
      else
        expect_refused(asked, "-DSHOAL_SAGEMAKER=ON");
    }
    if (row.at("name") == "GPU" && !row.at("present").get<bool>())
      expect_refused(shoal({"doctor", "--need", "GPU"}), "GPU: none");
  }
  EXPECT_THAT(shoal({"env"}).out, HasSubstr("SHOAL_THREADS=1   [set]"));
  ProgramOptions options;
  options.environment = {"SHOAL_THREDS=2"};
  EXPECT_THAT(shoal({"env"}, options).err, HasSubstr("SHOAL_THREDS"));
  for (const auto& [variable, words] :
       {std::pair{"SHOAL_DEADLINE_S=inf", "SHOAL_DEADLINE_S='inf' is outside 0.1 to 100000000"},
        {"SHOAL_COLLECTIVES=abc", "SHOAL_COLLECTIVES"}}) {
    options.environment = {variable};
    for (const std::vector<std::string>& command :
         {std::vector<std::string>{"env"}, {"doctor"}, train_words()})
      expect_refused(shoal(command, options), words);
  }
  EXPECT_THAT(shoal({"train", "--help-all"}).out,
              AllOf(HasSubstr("per_device_train_batch_size"), HasSubstr("lr_scheduler_type")));
}

}  // namespace
}  // namespace shoal
