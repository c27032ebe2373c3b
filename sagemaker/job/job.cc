#include "shoal/sagemaker/job/job.h"

#include <algorithm>
#include <cctype>
#include <ctime>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/shortened.h"
#include "shoal/runtime/io/byte_source.h"
#include "shoal/runtime/io/json.h"
#include "shoal/runtime/io/ordered_fields.h"
#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/metric_definitions.h"
#include "shoal/sagemaker/job/parts.h"
#include "shoal/sagemaker/job/python_text.h"
#include "shoal/sagemaker/job/secrets.h"

namespace shoal::sagemaker {
namespace {

const TextRules kJobName = {.min = 1,
                            .max = 63,
                            .pattern = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}",
                            .looks = "letters, digits and dashes between them"};

void read_place(Draft& draft, const JobContext& context) {
  Fields& job = draft.job;
  const auto region = job.text(
      "region", {.max = 32, .pattern = "[a-z]{2,4}(-[a-z]+)+-[0-9]+", .looks = "us-east-1"});
  draft.region = region.value_or(context.region);
  if (region && context.is_region_asked && *region != context.region)
    job.problem("region",
                fmt::format("is {}, but --region says {}", shortened(*region), context.region));
  if (!region && !job.has("region") && context.region.empty())
    job.problem(
        "region",
        "is needed, here or as AWS_REGION (or --region, or the profile's in ~/.aws/config)");
  if (!job.has("role"))
    job.problem("role", "is needed: the ARN of the role that the job runs under");
  else if (const Json* role = job.value("role");
           role->is_string() && !role->get<std::string>().starts_with("arn:"))
    job.problem("role",
                "is a name; give the role's ARN (IAM is not asked): "
                "arn:aws:iam::ACCOUNT:role/NAME");
  else if (const auto arn = job.text(
               "role", {.min = 20,
                        .max = 2048,
                        .pattern = "arn:aws[a-z\\-]*:iam::\\d{12}:role/?[a-zA-Z_0-9+=,.@\\-_/]+",
                        .looks = "arn:aws:iam::123456789012:role/NAME"})) {
    draft.request["RoleArn"] = *arn;
    draft.account = arn->substr(arn->find(":iam::") + 6, 12);
  }
}

// Reads the versions of Amazon's image, or image_uri.
std::string read_image(Draft& draft) {
  Fields& job = draft.job;
  Machines& machines = draft.machines;
  FrameworkVersions versions;
  versions.transformers = job.text("transformers_version").value_or("");
  const auto pytorch = job.text("pytorch_version"), tensorflow = job.text("tensorflow_version");
  versions.python = job.text("py_version").value_or("");
  versions.framework = tensorflow ? "tensorflow" : "pytorch";
  versions.framework_version = tensorflow ? *tensorflow : pytorch.value_or("");
  versions.compiler = machines.compiler;
  machines.framework = versions.framework;
  if (!machines.image_uri.empty()) return machines.image_uri;
  if (job.has("image_uri")) return {};  // invalid, which was reported
  machines.framework_version = versions.framework_version;
  if (versions.transformers.empty() || (!pytorch && !tensorflow)) {
    job.problem("image_uri",
                "is needed (or transformers_version and pytorch_version, for an image of "
                "Amazon's)");
    return {};
  }
  if (pytorch && tensorflow) {
    job.problem("tensorflow_version", "pytorch_version and tensorflow_version exclude each other");
    return {};
  }
  if (std::ranges::count(versions.transformers, '.') !=
      std::ranges::count(versions.framework_version, '.')) {
    job.problem("transformers_version",
                fmt::format("is {} beside {} {}; give both in full, or both short",
                            versions.transformers, versions.framework, versions.framework_version));
    return {};
  }
  InstanceType instance;
  for (const InstanceGroup& group : machines.groups)
    if (const auto type = find_instance_type(group.type)) instance = *type;
  if (const auto type = find_instance_type(machines.instance_type)) instance = *type;
  if (instance.name.empty() || draft.region.empty()) return {};  // reported elsewhere
  return framework_image(versions, draft.region, instance, draft.problems());
}

void read_name(Draft& draft, const std::string& image, const JobContext& context) {
  Fields& job = draft.job;
  const auto name = job.text("job_name", kJobName);
  // A base that is too long is cut, as in the SDK; otherwise it must be valid.
  const auto base = job.text("base_job_name", {.min = 1,
                                               .max = 1024,
                                               .pattern = "[a-zA-Z0-9][a-zA-Z0-9-]*",
                                               .looks = "letters, digits and dashes"});
  if (name) {
    draft.name = *name;
    return;
  }
  std::string made = base ? *base : image_base_name(image);
  for (char& c : made)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  draft.name = job_name_from(made.empty() ? "shoal" : made, context.now);
}

void read_output_path(Draft& draft) {
  const auto path = draft.job.text("output_path", s3_rules());
  draft.is_default_output = !path;
  draft.output_path =
      path ? *path : fmt::format("s3://sagemaker-{}-{}/", draft.region, draft.account);
}

void add_output(Draft& draft) {
  Fields& job = draft.job;
  Json output = {{"S3OutputPath", draft.output_path}};
  if (const auto key = job.text("output_kms_key", kms_key_rules())) output["KmsKeyId"] = *key;
  if (job.flag("disable_output_compression", false)) output["CompressionType"] = "NONE";
  draft.request["OutputDataConfig"] = output;
}

void add_metrics(Draft& draft, Json& algorithm) {
  Fields& job = draft.job;
  const Json* list = job.value("metric_definitions");
  algorithm["EnableSageMakerMetricsTimeSeries"] = job.flag("enable_sagemaker_metrics", true);
  if (list == nullptr) {
    algorithm["MetricDefinitions"] = default_metric_definitions();
    return;
  }
  if (!list->is_array() || list->size() > 40) {
    job.problem("metric_definitions", "is not a list of at most 40 metrics");
    return;
  }
  for (std::size_t i = 0; i < list->size(); ++i) {
    Fields metric((*list)[i], fmt::format("/metric_definitions/{}", i), draft.problems());
    static_cast<void>(metric.text("Name", {.min = 1, .max = 255}));
    static_cast<void>(metric.text("Regex", {.min = 1, .max = 500}));
    for (const char* name : {"Name", "Regex"})
      if (!metric.has(name)) metric.problem(name, "is needed");
    metric.finish();
  }
  algorithm["MetricDefinitions"] = *list;
}

void add_algorithm(Draft& draft, const std::string& image) {
  Fields& job = draft.job;
  Json& algorithm = draft.request["AlgorithmSpecification"];
  algorithm["TrainingImage"] = image;
  add_metrics(draft, algorithm);
  if (const auto words = job.texts("container_entry_point", 1, 100, {.max = 256}))
    algorithm["ContainerEntrypoint"] = *words;
  if (const auto words = job.texts("container_arguments", 1, 100, {.max = 256}))
    algorithm["ContainerArguments"] = *words;
  const auto mode = job.text("training_repository_access_mode", {.choices = {"Platform", "Vpc"}});
  const auto provider =
      job.text("training_repository_credentials_provider_arn",
               {.min = 1,
                .max = 2048,
                .pattern = "arn:[A-Za-z0-9\\-]+:lambda:[A-Za-z0-9\\-]+:[0-9]{12}:function:.*",
                .looks = "arn:aws:lambda:REGION:ACCOUNT:function:NAME"});
  if (mode) {
    algorithm["TrainingImageConfig"] = {{"TrainingRepositoryAccessMode", *mode}};
    if (provider)
      algorithm["TrainingImageConfig"]["TrainingRepositoryAuthConfig"] = {
          {"TrainingRepositoryCredentialsProviderArn", *provider}};
  } else if (provider) {
    job.problem("training_repository_credentials_provider_arn",
                "needs training_repository_access_mode Vpc beside it");
  }
}

// The user's hyperparameters in order, then those for the code's location and the launcher.
Json gather_hyperparameters(Draft& draft, std::optional<SourceCode>& code) {
  Fields& job = draft.job;
  OrderedFields all;
  Json made = Json::object();
  if (const Json* given = job.value("hyperparameters")) {
    // A list such as ["--api-key", "..."] in place of the object must not be shown.
    const bool has_text = given->dump().find('"') != std::string::npos;
    const Fields fields(*given, "/hyperparameters", draft.problems(), /*secret=*/has_text);
    if (given->is_object()) all = OrderedFields(*given);
  }
  code = add_code(draft, made);
  made.update(distribution_hyperparameters(job, draft.machines));
  if (draft.machines.compiler) {
    made["sagemaker_training_compiler_enabled"] = true;
    made["sagemaker_training_compiler_debug_mode"] = draft.machines.compiler_debug;
  }
  for (const auto& [name, value] : made.items()) {
    if (all.contains(name))
      draft.problems().add("/hyperparameters/" + name,
                           "is made of other keys of this file; leave it out");
    all[name] = value;
  }
  OrderedFields texts;
  for (const auto& [name, value] : all.fields()) {
    const std::string path = made.contains(name) && name == "mp_parameters"
                                 ? "/distribution/smdistributed/modelparallel/parameters"
                                 : "/hyperparameters/" + name;
    check_text(draft.problems(), path, name, {.max = 256});
    std::string text = python_json(value);
    const std::size_t length = characters(text);
    texts[name] = std::move(text);
    if (length > 2500)
      draft.problems().add(path, fmt::format("has {} characters as JSON; at most 2500 are allowed "
                                             "(put long ones into the run's file, entry_point)",
                                             length));
  }
  Json encoded = std::move(texts).json();
  if (encoded.size() > 100)
    job.problem("hyperparameters",
                fmt::format("are {}, with those that start the ranks; at most 100 "
                            "are allowed",
                            encoded.size()));
  return encoded;
}

void read_compiler(Draft& draft) {
  const Json* given = draft.job.value("compiler_config");
  if (given == nullptr) return;
  if (given->is_boolean()) {
    draft.machines.compiler = given->get<bool>();
    return;
  }
  Fields fields(*given, "/compiler_config", draft.problems());
  draft.machines.compiler = fields.flag("enabled", true);
  draft.machines.compiler_debug = fields.flag("debug", false);
  fields.finish();
}

void check_compiler(Draft& draft) {
  const Machines& machines = draft.machines;
  if (!machines.compiler || !machines.image_uri.empty()) return;
  const auto type = find_instance_type(machines.instance_type);
  const std::vector<std::string> families = {"p3", "p3dn", "g4dn", "p4d", "g5"};
  if (!machines.groups.empty())
    draft.job.problem("compiler_config", "Amazon's compiler does not go with instance_groups");
  if (type && std::ranges::find(families, type->family) == families.end())
    draft.job.problem(
        "compiler_config",
        fmt::format("Amazon's compiler does not run on {}; it runs on p3, p3dn, g4dn, "
                    "p4d, g5 (Shoal's image, as image_uri, on any)",
                    type->name));
}

// True for bytes that a tag may contain: any non-ASCII one, and the ASCII characters below.
bool is_of_tag(char c) {
  return static_cast<unsigned char>(c) >= 0x80 ||
         std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view(" _.:/=+-@").find(c) != std::string_view::npos;
}

void add_tags(Draft& draft) {
  const Json* given = draft.job.value("tags");
  if (given == nullptr) return;
  Json tags = Json::array();
  const auto add = [&](const std::string& path, const std::string& key, const std::string& value) {
    check_text(draft.problems(), path, key, {.min = 1, .max = 128});
    check_text(draft.problems(), path, value, {.max = 256});
    if (!std::ranges::all_of(key, is_of_tag) || !std::ranges::all_of(value, is_of_tag))
      draft.problems().add(path, "letters, digits, spaces and _ . : / = + - @ are allowed");
    std::string begin = key.substr(0, 4);
    for (char& c : begin) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (begin == "aws:") draft.problems().add(path, "keys that begin with aws: are Amazon's own");
    for (const Json& other : tags)
      if (other["Key"] == key)
        draft.problems().add(path, fmt::format("the key {} stands twice", key));
    tags.push_back({{"Key", key}, {"Value", value}});
  };
  if (given->is_array()) {
    for (std::size_t i = 0; i < given->size(); ++i) {
      const Json& one = (*given)[i];
      const auto key = one.is_object() ? one.find("Key") : one.end();
      const bool secret = one.is_object() && key != one.end() && key->is_string() &&
                          is_name_of_secret(key->get_ref<const std::string&>());
      Fields tag(one, fmt::format("/tags/{}", i), draft.problems(), secret);
      add(tag.path(""), tag.text("Key").value_or(""), tag.text("Value").value_or(""));
      tag.finish();
    }
  } else if (const auto pairs = draft.job.dictionary("tags", 50, {}, {})) {
    for (const auto& [key, value] : *pairs) add("/tags/" + key, key, value);
  }
  if (tags.size() > 50)
    draft.job.problem("tags", fmt::format("are {}; at most 50 are allowed", tags.size()));
  draft.request["Tags"] = tags;
}

void add_network(Draft& draft) {
  Fields& job = draft.job;
  const TextRules id = {.max = 32, .pattern = "[-0-9a-zA-Z]+", .looks = "subnet-0123 or sg-0123"};
  const auto subnets = job.texts("subnets", 1, 16, id);
  const auto groups = job.texts("security_group_ids", 1, 5, id);
  if (subnets && groups)
    draft.request["VpcConfig"] = {{"Subnets", *subnets}, {"SecurityGroupIds", *groups}};
  if (job.has("subnets") != job.has("security_group_ids"))
    job.problem(job.has("subnets") ? "security_group_ids" : "subnets",
                "is needed: a VPC takes both subnets and security_group_ids");
  if (draft.network_isolation) draft.request["EnableNetworkIsolation"] = true;
  if (job.flag("encrypt_inter_container_traffic", false))
    draft.request["EnableInterContainerTrafficEncryption"] = true;
}

void add_environment(Draft& draft) {
  if (const auto pairs = draft.job.dictionary(
          "environment", 100,
          {.max = 512, .pattern = "[a-zA-Z_][a-zA-Z0-9_]*", .looks = "a variable's name"},
          {.max = 512, .secret = true})) {
    OrderedFields environment;
    for (const auto& [name, value] : *pairs) {
      environment[name] = value;
      if (is_aws_key(name))
        draft.problems().add("/environment/" + name,
                             "is a key of yours, which all who may describe the job would read; "
                             "leave it out: the job has its role");
    }
    draft.request["Environment"] = std::move(environment).json();
  }
  if (auto experiment = draft.job.object("experiment_config")) {
    Json out = Json::object();
    for (const char* name : {"ExperimentName", "TrialName", "TrialComponentDisplayName", "RunName"})
      if (const auto text =
              experiment->text(name, {.min = 1,
                                      .max = 120,
                                      .pattern = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,119}",
                                      .looks = "letters, digits and dashes between them"}))
        out[name] = *text;
    experiment->finish();
    if (!out.empty()) draft.request["ExperimentConfig"] = out;
  }
  for (const auto& [name, group, key] :
       {std::tuple{"enable_infra_check", "InfraCheckConfig", "EnableInfraCheck"},
        {"enable_remote_debug", "RemoteDebugConfig", "EnableRemoteDebug"},
        {"enable_session_tag_chaining", "SessionChainingConfig", "EnableSessionTagChaining"}})
    if (const auto on = draft.job.boolean(name)) draft.request[group] = {{key, *on}};
}

}  // namespace

std::string job_name_from(std::string_view base, std::chrono::system_clock::time_point now) {
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc{};
  ::gmtime_r(&seconds, &utc);
  const std::string stamp =
      fmt::format("-{:04}-{:02}-{:02}-{:02}-{:02}-{:02}-{:03}", utc.tm_year + 1900, utc.tm_mon + 1,
                  utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, milliseconds % 1000);
  return std::string(base.substr(0, 63 - stamp.size())) + stamp;
}

TrainingJob make_training_job(const Json& json, const JobContext& context) {
  Problems problems;
  TrainingJob made = make_training_job(json, context, problems);
  problems.check();
  return made;
}

TrainingJob make_training_job(const Json& json, const JobContext& context, Problems& problems) {
  TrainingJob made;
  Fields job(json, "", problems);
  made.request = Json::object();
  Draft draft{.job = job,
              .request = made.request,
              .name = {},
              .region = {},
              .account = {},
              .output_path = {},
              .uploads = context.uploads,
              .machines = {},
              .notices = made.notices};
  made.request["TrainingJobName"] = "";
  draft.machines.image_uri = job.text("image_uri", {.min = 1, .max = 255}).value_or("");
  draft.network_isolation = job.flag("enable_network_isolation", false);
  read_place(draft, context);
  read_output_path(draft);
  read_compiler(draft);
  add_machines(draft);
  const std::string image = read_image(draft);
  check_compiler(draft);
  read_name(draft, image, context);
  made.request["TrainingJobName"] = draft.name;
  made.request["AlgorithmSpecification"] = Json::object();
  add_inputs(draft);
  add_algorithm(draft, image);
  add_output(draft);
  add_stopping(draft);
  const Json hyperparameters = gather_hyperparameters(draft, made.code);
  if (!hyperparameters.empty()) made.request["HyperParameters"] = hyperparameters;
  add_environment(draft);
  add_network(draft);
  add_tags(draft);
  add_debugger(draft);
  job.finish();
  made.name = draft.name;
  made.region = draft.region;
  return made;
}

namespace {

// The service allows at most 100 entries in any object or list. The limit here is ten times
// higher; it keeps linear key lookups cheap.
void check_size(const Json& value, const std::string& path, const std::string& place) {
  constexpr std::size_t kMost = 1'000;
  if (!value.is_structured()) return;
  if (value.size() > kMost)
    throw_error(ErrorCode::corrupt_data, "{}: {} has {} entries; at most {} are read", path,
                place.empty() ? "it" : place, value.size(), kMost);
  for (const auto& [name, inner] : value.items())
    check_size(inner, path, place + "/" + name.substr(0, 80));
}

}  // namespace

Json read_job_file(const std::string& path) {
  constexpr std::int64_t kMostBytes = 1 << 20;
  const std::string text = read_text_file(path, kMostBytes);
  try {
    Json job = parse_ordered_json(text, path);
    check_size(job, path, "");
    return job;
  } catch (const Error& error) {
    // Keep the position, but not the text read last, which may be a password without quotes.
    throw Error(error.code(), error.message().substr(0, error.message().find("; last read")),
                error.remedy());
  }
}

}  // namespace shoal::sagemaker
