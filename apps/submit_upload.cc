#include "submit_upload.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>

#include "commands.h"
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/terminal.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json_fields.h"
#include "shoal/runtime/memory/mebibytes.h"

namespace shoal::app {
namespace {

using sagemaker::Json;
using sagemaker::S3Name;

// Where the job reads the channel: s3://bucket/.../.
S3Name place_of(const sagemaker::TrainingJob& job, const std::string& channel) {
  for (const Json& input : job.request.at("InputDataConfig"))
    if (input.at("ChannelName") == channel)
      return sagemaker::parse_s3_name(
          input.at("DataSource").at("S3DataSource").at("S3Uri").get<std::string>());
  throw_error(ErrorCode::internal, "the job has no channel {}", channel);
}

class UploadProgress {
 public:
  UploadProgress(const LocalData& data, bool json) : json_(json) {
    for (const LocalChannel& channel : data.channels) {
      files_ += std::ssize(channel.files);
      bytes_ += channel.bytes();
    }
  }

  // Thread-safe.
  void sent(std::int64_t bytes) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    if (json_ || seconds_since(printed_) < 1) return;
    printed_ = Clock::now();
    terminal::print(
        "data: {:.0f} % of {} ({} of {} files)\n",
        100 * static_cast<double>(done_) / static_cast<double>(std::max<std::int64_t>(1, bytes_)),
        mebibytes(bytes_), finished_, files_);
    std::fflush(stdout);
  }
  void finish(const LocalFile& file, const S3Name& name, bool was_there) {
    if (was_there) sent(file.bytes);
    const std::lock_guard lock(mutex_);
    ++finished_;
    there_ += was_there ? 1 : 0;
    if (json_)
      print_json({{"event", "uploaded"},
                  {"file", file.path},
                  {"to", name.text()},
                  {"bytes", file.bytes},
                  {"was_there", was_there}},
                 -1);
  }
  void print_sum() const {
    if (json_) return;
    terminal::print("data: {} file{}, {}", files_, files_ == 1 ? "" : "s", mebibytes(bytes_));
    if (there_ > 0) terminal::print("; already there: {}", there_);
    terminal::print("\n");
  }

 private:
  std::mutex mutex_;
  bool json_;
  std::int64_t files_ = 0, bytes_ = 0, done_ = 0, finished_ = 0, there_ = 0;
  Clock::time_point printed_ = Clock::now();
};

}  // namespace

void upload_data(const LocalData& data, const sagemaker::TrainingJob& job,
                 const sagemaker::Session& session, bool json) {
  if (data.channels.empty()) return;
  const sagemaker::S3 s3 = session.s3();
  const std::string key = field_or(job.request.at("OutputDataConfig"), "KmsKeyId", std::string(),
                                   "the request");  // the data goes to the bucket of the output
  UploadProgress progress(data, json);
  for (const LocalChannel& channel : data.channels) {
    const S3Name place = place_of(job, channel.name);
    std::map<std::string, sagemaker::ListedObject> there;
    for (sagemaker::ListedObject& object : s3.list(place)) {
      const std::string name = object.key;
      there[name] = std::move(object);
    }
    for (const LocalFile& file : channel.files) {
      const S3Name name{place.bucket, place.key + file.name};
      const auto source = open_file(file.path);
      const auto found = there.find(name.key);
      const bool was_there =
          found != there.end() && s3.has_same(place.bucket, found->second, *source);
      if (!was_there)
        s3.upload(name, *source,
                  {.put = {.kms_key_id = key},
                   .sent = [&progress](std::int64_t bytes) { progress.sent(bytes); }});
      progress.finish(file, name, was_there);
    }
  }
  progress.print_sum();
}

}  // namespace shoal::app
