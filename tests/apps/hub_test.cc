// Downloads of models from a fake Hub on loopback.
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "apps/shoal_task_fixture.h"
#include "hub_download.h"
#include "support/http_server.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/error.h"
#include "shoal/sagemaker/rest/checksum.h"
#include "shoal/sagemaker/rest/encode.h"

namespace shoal::app {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::HttpServer;
using test::ServedReply;
using test::ServedRequest;

constexpr const char* kRevision = "0123456789abcdef0123456789abcdef01234567";

std::string hash_of(const std::string& text, bool is_large) {
  const auto sum = sagemaker::make_checksum(is_large ? "sha256" : "sha1");
  const std::string head = fmt::format("blob {}", text.size()) + '\0';
  if (!is_large) sum->add(std::as_bytes(std::span(head)));
  sum->add(std::as_bytes(std::span(text)));
  return sagemaker::hex(sum->finish());
}

// Serves the model org/tiny. Large files are redirected to a second server, as on the Hub.
class FakeHub {
 public:
  std::string url() const { return hub_.url(); }

  std::map<std::string, std::string> files = {
      {"config.json", "{\"a\": 1}"}, {"model.safetensors", weights()}, {"empty.json", ""}};
  std::vector<std::string> more = {"flax_model.msgpack", "onnx/model.onnx", "../evil.json",
                                   ".gitattributes",     "README.md",       "adapter.safetensors"};
  bool has_ranges = true;
  std::map<std::string, std::string> wrong;  // what is sent instead of a file
  std::vector<ServedReply> replies;  // of the next requests for large files; status 0: right
  std::vector<std::string> ranges;   // asked of the second server
  std::set<std::string> tokens_here, tokens_there;
  int lists = 0;

  static std::string weights() {
    std::string text;
    for (int i = 0; text.size() < 5500; ++i) text += fmt::format("{} ", i * 7919);
    return text;
  }

 private:
  static bool is_large(const std::string& name) { return name.ends_with(".safetensors"); }

  ServedReply answer(const ServedRequest& request) {
    const std::lock_guard lock(mutex_);
    tokens_here.insert(request.header("authorization"));
    if (request.path == "/api/models/org/tiny/revision/main" && request.query == "blobs=true") {
      ++lists;
      json siblings = json::array();
      for (const std::string& name : more)
        siblings.push_back({{"rfilename", name}, {"size", 1}, {"blobId", "00"}});
      for (const auto& [name, text] : files) {
        json file = {{"rfilename", name}, {"size", text.size()}, {"blobId", hash_of(text, false)}};
        if (is_large(name)) file["lfs"] = {{"sha256", hash_of(text, true)}, {"size", text.size()}};
        siblings.push_back(file);
      }
      return {.body = json{{"sha", kRevision}, {"siblings", siblings}}.dump()};
    }
    const std::string folder = fmt::format("/org/tiny/resolve/{}/", kRevision);
    if (!request.path.starts_with(folder)) return {.status = 404, .body = "no such model"};
    const std::string name = request.path.substr(folder.size());
    if (!is_large(name)) return part_of(name, request);
    return {.status = 302, .headers = {{"Location", store_.url() + "/" + name + "?signature=x"}}};
  }

  ServedReply stored(const ServedRequest& request) {
    const std::lock_guard lock(mutex_);
    tokens_there.insert(request.header("authorization"));
    ranges.push_back(request.header("range"));
    ServedReply right = part_of(request.path.substr(1), request);
    if (replies.empty()) return right;
    ServedReply next = replies.front();
    replies.erase(replies.begin());
    if (next.status != 0) return next;
    right.cut_after = next.cut_after;
    return right;
  }

  ServedReply part_of(const std::string& name, const ServedRequest& request) {
    if (!files.contains(name)) return {.status = 404};
    const std::string& text = wrong.contains(name) ? wrong.at(name) : files.at(name);
    if (!has_ranges) return {.body = text};
    std::size_t first = 0, last = 0;
    if (std::sscanf(request.header("range").c_str(), "bytes=%zu-%zu", &first, &last) != 2)
      return {.status = 400};
    return {.status = 206, .body = text.substr(first, last - first + 1)};
  }

  std::mutex mutex_;
  HttpServer store_{[this](const ServedRequest& request) { return stored(request); }};
  HttpServer hub_{[this](const ServedRequest& request) { return answer(request); }};
};

class HubDownload : public ::testing::Test {
 protected:
  std::string download(const std::string& token = "", const std::string& name = "org/tiny") {
    return download_model(name, {.endpoint = hub_.url(),
                                 .token = sagemaker::Secret(token),
                                 .folder = folder_,
                                 .piece_bytes = 1000,
                                 .retry = {.attempts = 3, .sleep = [](double) {}}});
  }
  // The error of a download, as one text.
  std::string refused(ErrorCode code, const std::string& name = "org/tiny") {
    try {
      download("", name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "it was downloaded";
    return {};
  }
  std::string incomplete() const {
    return folder_ + "/blobs/" + hash_of(FakeHub::weights(), true) + ".incomplete";
  }
  void expect_whole(const std::string& directory) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory)) {
      names.insert(entry.path().filename());
      EXPECT_EQ(text_of(entry.path()), hub_.files.at(entry.path().filename()));
    }
    EXPECT_EQ(names.size(), hub_.files.size());
    EXPECT_EQ(text_of(folder_ + "/refs/main"), kRevision);
  }

  FakeHub hub_;
  testing::TemporaryDirectory root_;
  const std::string folder_ = root_ / "models--org--tiny";
};

TEST_F(HubDownload, FillsTheCacheOnce) {
  const std::string directory = download();
  EXPECT_EQ(directory, folder_ + "/snapshots/" + kRevision);
  expect_whole(directory);
  EXPECT_EQ(hub_.ranges.size(), 6U) << "pieces of 1000 bytes";
  EXPECT_FALSE(fs::exists(root_ / "evil.json"));
  EXPECT_EQ(download(), directory);
  EXPECT_EQ(hub_.ranges.size(), 6U);
}

TEST_F(HubDownload, AsksAgainAfterFailuresThatMayPass) {
  hub_.replies = {{.status = 0},
                  {.status = 0, .cut_after = 500},
                  {.status = 503},
                  {.status = 0},
                  {.status = 403}};  // 403: the redirection has expired
  expect_whole(download());
  EXPECT_EQ(hub_.ranges.size(), 9U);
  EXPECT_EQ(hub_.ranges[3], "bytes=1000-1999");
}

TEST_F(HubDownload, ContinuesInALaterCall) {
  hub_.replies = {{.status = 0},   {.status = 0},   {.status = 0},
                  {.status = 500}, {.status = 500}, {.status = 500}};
  EXPECT_THAT(refused(ErrorCode::io), HasSubstr("start the same command again"));
  EXPECT_EQ(fs::file_size(incomplete()), 3000U);
  EXPECT_FALSE(fs::exists(folder_ + "/refs/main"));
  hub_.ranges.clear();
  expect_whole(download());
  EXPECT_EQ(hub_.ranges.front(), "bytes=3000-3999");
  EXPECT_EQ(hub_.ranges.size(), 3U);
}

TEST_F(HubDownload, RefusesOtherBytesThanTheHubStates) {
  for (const char* name : {"config.json", "model.safetensors"}) {
    std::string& other = hub_.wrong[name] = hub_.files.at(name);
    other.back() = static_cast<char>(other.back() ^ 1);
    EXPECT_THAT(refused(ErrorCode::corrupt_data),
                HasSubstr(std::string(name) + " does not have the hash"));
    EXPECT_FALSE(fs::exists(folder_ + "/snapshots/" + kRevision + "/" + name));
    EXPECT_FALSE(fs::exists(folder_ + "/refs/main"));
    hub_.wrong.clear();
  }
  // The rest of a file that was cut under another content.
  fs::create_directories(folder_ + "/blobs");
  std::ofstream(incomplete()) << std::string(2000, 'x');
  EXPECT_THAT(refused(ErrorCode::corrupt_data), HasSubstr("does not have the hash"));
  expect_whole(download());
}

TEST_F(HubDownload, TakesServersWithoutRanges) {
  hub_.has_ranges = false;
  expect_whole(download());
}

TEST_F(HubDownload, SendsTheTokenOnlyToTheHub) {
  expect_whole(download("hf_secret"));
  EXPECT_THAT(hub_.tokens_here, ::testing::ElementsAre("Bearer hf_secret"));
  EXPECT_THAT(hub_.tokens_there, ::testing::ElementsAre(""));
  try {
    download_model("org/tiny", {.endpoint = "http://mirror.example",
                                .token = sagemaker::Secret("hf_secret"),
                                .folder = folder_});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.what(), HasSubstr("HF_TOKEN would go to http://mirror.example unencrypted"));
  }
}

TEST_F(HubDownload, SaysWhatIsMissing) {
  EXPECT_THAT(refused(ErrorCode::not_found, "org/none"),
              ::testing::AllOf(HasSubstr("has no model org/none that may be read (HTTP 404)"),
                               HasSubstr("HF_TOKEN")));
}

// The program: only with --allow_download, and once for the ranks of a host.
class AllowDownload : public ShoalOnTasks {
 protected:
  FakeHub hub_;
};

TEST_F(AllowDownload, TrainsOnADownloadedModel) {
  const auto made =
      shoal(words_of(tiny_bert(), {"--task", "masked-lm", "--tokenizer_name", vocabulary(),
                                   "--train_file", *data_ / "validation.txt", "--block_size", "16",
                                   "--max_steps", "1", "--output_dir", mine_ / "tiny"}));
  ASSERT_EQ(made.status, 0) << made.err;
  hub_.files.clear();
  for (const auto& entry : fs::directory_iterator(mine_ / "tiny"))
    if (entry.is_regular_file()) hub_.files[entry.path().filename()] = text_of(entry.path());
  std::ofstream(mine_ / "rows.csv") << "text,label\nthe cold water,good\nno fish,bad\n";
  const std::vector<std::string> words = {"train",
                                          "--task",
                                          "text-classification",
                                          "--model",
                                          "org/tiny",
                                          "--train_file",
                                          mine_ / "rows.csv",
                                          "--max_steps",
                                          "1",
                                          "--output_dir",
                                          out(),
                                          "--save_strategy",
                                          "no"};
  const std::vector<std::string> environment = {"HF_ENDPOINT=" + hub_.url(),
                                                "HF_HUB_CACHE=" + (mine_ / "hub"), "HF_TOKEN="};
  const auto refused = shoal(words, {.environment = environment});
  EXPECT_EQ(refused.status, 3);
  EXPECT_THAT(refused.err, HasSubstr("`hf download org/tiny` puts it into that cache, as does"));
  EXPECT_THAT(refused.err, HasSubstr("--allow_download"));
  EXPECT_EQ(hub_.lists, 0);
  const auto allowed =
      shoal(overlaid(words, {"--allow_download", "true"}), {.environment = environment});
  ASSERT_EQ(allowed.status, 0) << allowed.err;
  EXPECT_THAT(allowed.err, HasSubstr("downloading org/tiny: "));
  EXPECT_EQ(hub_.lists, 1);
  // From now on it is there.
  const auto again = shoal(words, {.environment = environment});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(hub_.lists, 1);
  // Each of two ranks may be first.
  fs::remove_all(mine_ / "hub");
  std::vector<std::string> by = {"env"};
  by.insert(by.end(), environment.begin(), environment.end());
  for (const auto& rank : on_ranks(2, overlaid(words, {"--allow_download", "true"}), by))
    EXPECT_EQ(rank.status, 0) << rank.err;
  EXPECT_EQ(hub_.lists, 2);
}

}  // namespace
}  // namespace shoal::app
