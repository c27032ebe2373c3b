#include "sagemaker/rest/fake_limits.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <regex>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace shoal::test {
namespace {

using nlohmann::json;

constexpr const char* kS3Uri = "(https|s3)://([^/]+)/?(.*)";
constexpr const char* kKmsKey = "[a-zA-Z0-9:/_-]*";

// The number of UTF-8 characters, which is what the service counts.
std::size_t length_of(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U; }));
}

// Checks one structure of a request. The first problem is kept.
class Shape {
 public:
  Shape(const json& value, std::string path, std::string& problem)
      : value_(value), path_(std::move(path)), problem_(problem) {
    if (!value.is_object()) say("", "is no structure");
  }
  Shape(const Shape&) = delete;
  Shape& operator=(const Shape&) = delete;
  // A member that no check has asked for does not belong to the structure.
  ~Shape() {
    if (value_.is_object())
      for (const auto& [name, unused] : value_.items())
        if (std::ranges::find(known_, name) == known_.end()) say(name, "is no member");
  }

  const json* get(const char* name, bool required = false) {
    known_.emplace_back(name);
    const auto found = value_.is_object() ? value_.find(name) : value_.end();
    if (value_.is_object() && found != value_.end()) return &*found;
    if (required) say(name, "is required");
    return nullptr;
  }
  void need(const char* name) { get(name, true); }
  void text(const char* name, std::size_t least, std::size_t most, const char* pattern = nullptr) {
    if (const json* text = get(name)) check(name, *text, least, most, pattern);
  }
  void choice(const char* name, const std::vector<std::string>& choices) {
    const json* text = get(name);
    if (text != nullptr &&
        !std::ranges::any_of(choices, [&](const std::string& one) { return *text == one; }))
      say(name, fmt::format("is {}, none of {}", text->dump(), fmt::join(choices, ", ")));
  }
  void integer(const char* name, std::int64_t least, std::int64_t most) {
    const json* number = get(name);
    if (number == nullptr) return;
    if (!number->is_number_integer() || number->get<std::int64_t>() < least ||
        number->get<std::int64_t>() > most)
      say(name, fmt::format("is {}; {} to {} are allowed", number->dump(), least, most));
  }
  void boolean(const char* name) {
    if (const json* flag = get(name); flag != nullptr && !flag->is_boolean())
      say(name, "is no boolean");
  }
  // Checks the number of entries, then each entry.
  void list(const char* name, std::size_t least, std::size_t most,
            const std::function<void(const json&, const std::string&)>& each) {
    const json* all = get(name);
    if (all == nullptr) return;
    if (!all->is_array()) return say(name, "is no list");
    if (all->size() < least || all->size() > most)
      say(name, fmt::format("has {}; {} to {} are allowed", all->size(), least, most));
    for (std::size_t i = 0; i < all->size(); ++i)
      each((*all)[i], fmt::format("{}/{}/{}", path_, name, i));
  }
  void texts(const char* name, std::size_t least, std::size_t most, std::size_t longest,
             const char* pattern = nullptr) {
    list(name, least, most, [&](const json& one, const std::string& path) {
      check(path.substr(path_.size() + 1), one, 0, longest, pattern);
    });
  }
  void map(const char* name, std::size_t longest_name, const char* pattern, std::size_t longest) {
    const json* all = get(name);
    if (all == nullptr) return;
    if (!all->is_object()) return say(name, "is no map");
    if (all->size() > 100) say(name, fmt::format("has {}; 0 to 100 are allowed", all->size()));
    for (const auto& [key, value] : all->items()) {
      check(fmt::format("{}/{}", name, key), json(key), 0, longest_name, pattern);
      check(fmt::format("{}/{}", name, key), value, 0, longest, nullptr);
    }
  }
  void structure(const char* name, const std::function<void(Shape&)>& members,
                 bool required = false) {
    if (const json* inner = get(name, required)) {
      Shape shape(*inner, path_ + "/" + name, problem_);
      members(shape);
    }
  }
  void check(const std::string& name, const json& text, std::size_t least, std::size_t most,
             const char* pattern) {
    if (!text.is_string()) return say(name, "is no text");
    const auto& it = text.get_ref<const std::string&>();
    if (const std::size_t length = length_of(it); length < least || length > most)
      return say(name, fmt::format("has {}; {} to {} are allowed", length, least, most));
    if (pattern != nullptr && !std::regex_match(it, std::regex(pattern)))
      say(name, fmt::format("does not match {}", pattern));
  }
  void say(const std::string& name, const std::string& what) {
    if (problem_.empty())
      problem_ = fmt::format("{}{}{} {}", path_, name.empty() ? "" : "/", name, what);
  }
  const std::string& path() const { return path_; }
  std::string& problem() { return problem_; }

 private:
  const json& value_;
  std::string path_;
  std::string& problem_;
  std::vector<std::string> known_;
};

void algorithm(Shape& shape) {
  if (!shape.get("TrainingImage")) shape.need("AlgorithmName");
  shape.text("TrainingImage", 0, 255, ".*");
  shape.text("AlgorithmName", 1, 170);
  shape.need("TrainingInputMode");
  shape.choice("TrainingInputMode", {"Pipe", "File", "FastFile"});
  shape.list("MetricDefinitions", 0, 40, [&](const json& one, const std::string& path) {
    Shape metric(one, path, shape.problem());
    metric.need("Name");
    metric.need("Regex");
    metric.text("Name", 1, 255, ".+");
    metric.text("Regex", 1, 500, ".+");
  });
  shape.boolean("EnableSageMakerMetricsTimeSeries");
  shape.texts("ContainerEntrypoint", 1, 100, 256);
  shape.texts("ContainerArguments", 1, 100, 256);
  shape.structure("TrainingImageConfig", [](Shape& config) {
    config.need("TrainingRepositoryAccessMode");
    config.choice("TrainingRepositoryAccessMode", {"Platform", "Vpc"});
    config.structure("TrainingRepositoryAuthConfig", [](Shape& auth) {
      auth.need("TrainingRepositoryCredentialsProviderArn");
      auth.text("TrainingRepositoryCredentialsProviderArn", 1, 2048,
                "arn:[A-Za-z0-9\\-]+:lambda:[A-Za-z0-9\\-]+:[0-9]{12}:function:.*");
    });
  });
}

void data_source(Shape& source) {
  source.structure("S3DataSource", [](Shape& s3) {
    s3.need("S3DataType");
    s3.need("S3Uri");
    s3.choice("S3DataType", {"ManifestFile", "S3Prefix", "AugmentedManifestFile"});
    s3.text("S3Uri", 0, 1024, kS3Uri);
    s3.choice("S3DataDistributionType", {"FullyReplicated", "ShardedByS3Key"});
    s3.texts("AttributeNames", 0, 16, 256);
    s3.texts("InstanceGroupNames", 0, 5, 64);
  });
  source.structure("FileSystemDataSource", [](Shape& files) {
    for (const char* name :
         {"FileSystemId", "FileSystemAccessMode", "FileSystemType", "DirectoryPath"})
      files.need(name);
    files.text("FileSystemId", 11, 21, "(fs-[0-9a-f]{8,})");
    files.choice("FileSystemAccessMode", {"rw", "ro"});
    files.choice("FileSystemType", {"EFS", "FSxLustre"});
    files.text("DirectoryPath", 0, 4096, ".*");
  });
}

void channel(Shape& channel) {
  channel.need("ChannelName");
  channel.text("ChannelName", 1, 64, "[A-Za-z0-9\\.\\-_]+");
  channel.structure("DataSource", data_source, true);
  channel.text("ContentType", 0, 256, ".*");
  channel.choice("CompressionType", {"None", "Gzip"});
  channel.choice("RecordWrapperType", {"None", "RecordIO"});
  channel.choice("InputMode", {"Pipe", "File", "FastFile"});
  channel.structure("ShuffleConfig", [](Shape& shuffle) {
    shuffle.need("Seed");
    shuffle.integer("Seed", INT64_MIN, INT64_MAX);
  });
}

void resources(Shape& shape) {
  shape.text("InstanceType", 1, 64, "ml\\.[a-z0-9-]+\\.[a-z0-9]+");
  shape.integer("InstanceCount", 0, INT32_MAX);
  shape.need("VolumeSizeInGB");
  shape.integer("VolumeSizeInGB", 0, INT32_MAX);
  shape.text("VolumeKmsKeyId", 0, 2048, kKmsKey);
  shape.integer("KeepAlivePeriodInSeconds", 0, 21600);
  shape.list("InstanceGroups", 0, 5, [&](const json& one, const std::string& path) {
    Shape group(one, path, shape.problem());
    for (const char* name : {"InstanceType", "InstanceCount", "InstanceGroupName"})
      group.need(name);
    group.text("InstanceType", 1, 64, "ml\\.[a-z0-9-]+\\.[a-z0-9]+");
    group.integer("InstanceCount", 0, INT32_MAX);
    group.text("InstanceGroupName", 1, 64, ".+");
  });
  shape.text("TrainingPlanArn", 50, 2048,
             "arn:aws[a-z\\-]*:sagemaker:[a-z0-9\\-]*:[0-9]{12}:training-plan/.*");
  shape.structure("InstancePlacementConfig", [](Shape& placement) {
    placement.boolean("EnableMultipleJobs");
    placement.list("PlacementSpecifications", 0, 10, [&](const json& one, const std::string& path) {
      Shape place(one, path, placement.problem());
      place.need("InstanceCount");
      place.text("UltraServerId", 0, 256);
      place.integer("InstanceCount", 0, INT32_MAX);
    });
  });
}

void stopping(Shape& request) {
  std::int64_t run = 86400, wait = -1;
  request.structure("StoppingCondition", [&](Shape& shape) {
    shape.integer("MaxRuntimeInSeconds", 1, 2419200);
    shape.integer("MaxWaitTimeInSeconds", 1, INT32_MAX);
    shape.integer("MaxPendingTimeInSeconds", 7200, 2419200);
    if (const json* given = shape.get("MaxRuntimeInSeconds"); given && given->is_number())
      run = given->get<std::int64_t>();
    if (const json* given = shape.get("MaxWaitTimeInSeconds"); given && given->is_number())
      wait = given->get<std::int64_t>();
  });
  request.boolean("EnableManagedSpotTraining");
  const json* flag = request.get("EnableManagedSpotTraining");
  const bool spot = flag != nullptr && *flag == true;
  const std::string name = "StoppingCondition/MaxWaitTimeInSeconds";
  if (spot && wait < 0) request.say(name, "is required for spot training");
  if (!spot && wait >= 0) request.say(name, "is of spot training");
  if (wait >= 0 && wait < run) request.say(name, "is below MaxRuntimeInSeconds");
}

void places(Shape& request) {
  request.structure(
      "OutputDataConfig",
      [](Shape& output) {
        output.need("S3OutputPath");
        output.text("S3OutputPath", 0, 1024, kS3Uri);
        output.text("KmsKeyId", 0, 2048, kKmsKey);
        output.choice("CompressionType", {"GZIP", "NONE"});
      },
      true);
  request.structure("CheckpointConfig", [](Shape& checkpoints) {
    checkpoints.need("S3Uri");
    checkpoints.text("S3Uri", 0, 1024, kS3Uri);
    checkpoints.text("LocalPath", 0, 4096, ".*");
  });
  request.structure("VpcConfig", [](Shape& vpc) {
    vpc.need("SecurityGroupIds");
    vpc.need("Subnets");
    vpc.texts("SecurityGroupIds", 1, 5, 32, "[-0-9a-zA-Z]+");
    vpc.texts("Subnets", 1, 16, 32, "[-0-9a-zA-Z]+");
  });
}

void check_request(const json& whole, std::string& problem) {
  Shape request(whole, "", problem);
  for (const char* name : {"TrainingJobName", "RoleArn"}) request.need(name);
  request.text("TrainingJobName", 1, 63, "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}");
  request.text("RoleArn", 20, 2048, "arn:aws[a-z\\-]*:iam::\\d{12}:role/?[a-zA-Z_0-9+=,.@\\-_/]+");
  request.map("HyperParameters", 256, nullptr, 2500);
  request.map("Environment", 512, "[a-zA-Z_][a-zA-Z0-9_]*", 512);
  request.structure("AlgorithmSpecification", algorithm, true);
  request.list("InputDataConfig", 1, 20, [&](const json& one, const std::string& path) {
    Shape shape(one, path, problem);
    channel(shape);
  });
  request.structure("ResourceConfig", resources);
  stopping(request);
  places(request);
  request.list("Tags", 0, 50, [&](const json& one, const std::string& path) {
    Shape tag(one, path, problem);
    tag.need("Key");
    tag.need("Value");
    tag.text("Key", 1, 128);
    tag.text("Value", 0, 256);
  });
  request.structure("RetryStrategy", [](Shape& retry) {
    retry.need("MaximumRetryAttempts");
    retry.integer("MaximumRetryAttempts", 1, 30);
  });
  request.structure("ExperimentConfig", [](Shape& experiment) {
    for (const char* name : {"ExperimentName", "TrialName", "TrialComponentDisplayName", "RunName"})
      experiment.text(name, 1, 120, "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,119}");
  });
  for (const char* name : {"EnableNetworkIsolation", "EnableInterContainerTrafficEncryption"})
    request.boolean(name);
  // The members of these are not checked.
  for (const char* name : {"DebugHookConfig", "DebugRuleConfigurations", "TensorBoardOutputConfig",
                           "ProfilerConfig", "ProfilerRuleConfigurations", "RemoteDebugConfig",
                           "InfraCheckConfig", "SessionChainingConfig"})
    request.get(name);
}

}  // namespace

std::string beyond_limits(const json& request) {
  std::string problem;
  check_request(request, problem);
  return problem;
}

}  // namespace shoal::test
