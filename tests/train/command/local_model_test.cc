// Finding models on this machine as huggingface_hub does (tools/golden/make_hub_cache.py).
#include "shoal/train/command/local_model.h"

#include <filesystem>

#include "support/golden.h"
#include "support/temporary_directory.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/io/files.h"
#include "shoal/runtime/io/json.h"

namespace shoal::command {
namespace {

// Sets the environment variables of the test and clears all others that name model directories.
class HubCache : public ::testing::Test {
 protected:
  static constexpr const char* kNames[] = {
      "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME", "SCRATCH",
      "PLACE"};
  HubCache() {
    for (const char* name : kNames) {
      const char* value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::optional<std::string>() : value);
      ::unsetenv(name);
    }
  }
  ~HubCache() override {
    for (const auto& [name, value] : before_)
      if (value)
        ::setenv(name, value->c_str(), 1);
      else
        ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::optional<std::string>>> before_;
};

TEST_F(HubCache, IsWhereHuggingFaceHasIt) {
  for (const auto& row : read_json_file(testing::golden_path("hub_cache.json"))) {
    for (const char* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : row["environment"].items())
      ::setenv(name.c_str(), value.get<std::string>().c_str(), 1);
    EXPECT_EQ(hub_cache(), row["folder"].get<std::string>()) << row["environment"];
  }
}

TEST_F(HubCache, HasModelsByTheirNames) {
  const testing::TemporaryDirectory home;
  ::setenv("XDG_CACHE_HOME", home.path().c_str(), 1);
  const std::string folder = home / "huggingface/hub/models--ann--small";
  std::filesystem::create_directories(folder + "/refs");
  std::filesystem::create_directories(folder + "/snapshots/0a1b");
  EXPECT_EQ(local_model("ann/small"), "ann/small") << "without a revision, main is used";
  EXPECT_THAT(not_found_anywhere("ann/small"), ::testing::HasSubstr(folder));
  write_file_atomically(folder + "/refs/main", "0a1b\n");
  EXPECT_EQ(local_model("ann/small"), folder + "/snapshots/0a1b");
}

}  // namespace
}  // namespace shoal::command
