// InputDataConfig.
#include <set>

#include <fmt/format.h>

#include "shoal/runtime/io/json_fields.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/parts.h"

namespace shoal::sagemaker {
namespace {

const TextRules kChannelName = {.min = 1,
                                .max = 64,
                                .pattern = "[A-Za-z0-9\\.\\-_]+",
                                .looks = "letters, digits, dots, dashes and underscores"};
const TextRules kInputMode = {.choices = {"File", "FastFile", "Pipe"}};

Json s3_channel(const std::string& uri) {
  return {{"DataSource",
           {{"S3DataSource",
             {{"S3DataType", "S3Prefix"},
              {"S3Uri", uri},
              {"S3DataDistributionType", "FullyReplicated"}}}}}};
}

// Equivalent of the SDK's FileSystemInput.
Json file_system_channel(Fields& fields) {
  Json source = Json::object();
  source["FileSystemId"] = fields
                               .text("file_system_id", {.min = 11,
                                                        .max = 21,
                                                        .pattern = "(fs-[0-9a-f]{8,})",
                                                        .looks = "fs-0123456789abcdef0"})
                               .value_or("");
  source["FileSystemType"] =
      fields.text("file_system_type", {.choices = {"EFS", "FSxLustre"}}).value_or("");
  source["DirectoryPath"] = fields.text("directory_path", {.min = 1, .max = 4096}).value_or("");
  source["FileSystemAccessMode"] =
      fields.text("file_system_access_mode", {.choices = {"ro", "rw"}}).value_or("ro");
  for (const char* name : {"file_system_id", "file_system_type", "directory_path"})
    if (!fields.has(name)) fields.problem(name, "is needed");
  Json channel = {{"DataSource", {{"FileSystemDataSource", source}}}};
  if (const auto type = fields.text("content_type", {.max = 256})) channel["ContentType"] = *type;
  return channel;
}

// Equivalent of the SDK's TrainingInput.
Json described_channel(Fields& fields) {
  Json channel = s3_channel(fields.text("s3_data", s3_rules()).value_or(""));
  Json& source = channel["DataSource"]["S3DataSource"];
  if (!fields.has("s3_data")) fields.problem("s3_data", "is needed: s3://bucket/prefix");
  const auto set = [&fields](Json& into, const char* key, const char* name,
                             const TextRules& rules) {
    if (const auto text = fields.text(name, rules)) into[key] = *text;
  };
  set(source, "S3DataType", "s3_data_type",
      {.choices = {"S3Prefix", "ManifestFile", "AugmentedManifestFile"}});
  set(source, "S3DataDistributionType", "distribution",
      {.choices = {"FullyReplicated", "ShardedByS3Key"}});
  set(channel, "CompressionType", "compression", {.choices = {"None", "Gzip"}});
  set(channel, "ContentType", "content_type", {.max = 256});
  set(channel, "RecordWrapperType", "record_wrapping", {.choices = {"None", "RecordIO"}});
  set(channel, "InputMode", "input_mode", kInputMode);
  if (const auto groups = fields.texts("instance_groups", 1, 5, {.min = 1, .max = 64}))
    source["InstanceGroupNames"] = *groups;
  if (const auto names = fields.texts("attribute_names", 1, 16, {.min = 1, .max = 256}))
    source["AttributeNames"] = *names;
  if (auto shuffle = fields.object("shuffle_config")) {
    channel["ShuffleConfig"] = {
        {"Seed", shuffle
                     ->integer("seed", std::numeric_limits<std::int64_t>::min(),
                               std::numeric_limits<std::int64_t>::max())
                     .value_or(0)}};
    shuffle->finish();
  }
  if (fields.has("attribute_names") && source["S3DataType"] != "AugmentedManifestFile")
    fields.problem("attribute_names", "are of s3_data_type AugmentedManifestFile");
  return channel;
}

// A script reads its channels itself.
bool runs_script(Draft& draft) {
  const Json* const entry = draft.job.value("entry_point");
  return entry != nullptr && entry->is_string() &&
         entry->get_ref<const std::string&>().ends_with(".py");
}

// Warns early about sharding that Shoal's `train` refuses. This is only a notice, since another
// entry point may support it.
void check_sharding(Draft& draft, const Json& channel, const std::string& path) {
  const Json& source = channel.at("DataSource");
  const Json* const s3 = find_field(source, "S3DataSource");
  std::int64_t hosts = draft.machines.instance_count;
  for (const InstanceGroup& group : draft.machines.groups) hosts += group.count;
  if (hosts > 1 && s3 != nullptr &&
      field_or(*s3, "S3DataDistributionType", std::string(), path) == "ShardedByS3Key" &&
      shoal_build(draft.machines.image_uri) && !runs_script(draft))
    draft.notices.push_back(fmt::format(
        "{}/distribution: ShardedByS3Key gives each host other files, but all ranks of "
        "`shoal train` read the same: the job will end with that; use FullyReplicated, or no "
        "channel and in hyperparameters streaming, train_file s3://... and shard_by_rank",
        path));
}

bool is_one_input(const Json& value) {
  return value.is_string() ||
         (value.is_object() && (value.contains("s3_data") || value.contains("file_system_id")));
}

Json read_channel(Draft& draft, const Json& value, const std::string& path,
                  const std::string& name) {
  Json channel;
  if (value.is_string()) {
    const auto uri = value.get<std::string>();
    if (uri.starts_with("file://"))
      draft.problems().add(path, "file:// is of local mode; upload it, and give s3://");
    else
      check_text(draft.problems(), path, uri, s3_rules());
    channel = s3_channel(uri);
  } else {
    Fields fields(value, path, draft.problems());
    channel =
        fields.has("file_system_id") ? file_system_channel(fields) : described_channel(fields);
    fields.finish();
    check_sharding(draft, channel, path);
  }
  channel["ChannelName"] = name;
  return channel;
}

}  // namespace

void add_inputs(Draft& draft) {
  Fields& job = draft.job;
  Json& algorithm = draft.request["AlgorithmSpecification"];
  algorithm["TrainingInputMode"] = job.text("input_mode", kInputMode).value_or("File");
  Json channels = Json::array();
  if (const Json* inputs = job.value("inputs"); inputs != nullptr && is_one_input(*inputs)) {
    channels.push_back(read_channel(draft, *inputs, "/inputs", "training"));
    if (channels.back().contains("InputMode"))
      algorithm["TrainingInputMode"] = channels.back()["InputMode"];
  } else if (inputs != nullptr) {
    const Fields named(*inputs, "/inputs", draft.problems());
    if (inputs->is_object())
      for (const auto& [name, value] : inputs->items()) {
        check_text(draft.problems(), named.path(name), name, kChannelName);
        channels.push_back(read_channel(draft, value, named.path(name), name));
      }
  }
  for (const UploadedChannel& upload : draft.uploads) {
    check_text(draft.problems(), "--upload", upload.name, kChannelName);
    channels.push_back(
        s3_channel(fmt::format("s3://{}/{}", split_s3(draft.output_path).first, upload.key)));
    channels.back()["ChannelName"] = upload.name;
  }
  const auto model_name = job.text("model_channel_name", kChannelName);
  if (const auto model = job.text("model_uri", s3_rules())) {
    Json channel = s3_channel(*model);
    channel["ContentType"] = "application/x-sagemaker-model";
    channel["InputMode"] = "File";
    channel["ChannelName"] = model_name.value_or("model");
    channels.push_back(channel);
  }
  if (channels.empty()) return;
  std::set<std::string> names;
  for (const Json& channel : channels)
    if (const auto name = channel["ChannelName"].get<std::string>(); !names.insert(name).second)
      draft.problems().add("/inputs", fmt::format("there are two channels {}", name));
  if (channels.size() > 20)
    job.problem("inputs", fmt::format("has {} channels; at most 20 are allowed", channels.size()));
  draft.request["InputDataConfig"] = channels;
}

}  // namespace shoal::sagemaker
