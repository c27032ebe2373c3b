#include "shoal/sagemaker/job/instances.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

namespace shoal::sagemaker {
namespace {

// sizes: "xlarge:1 12xlarge:4*" gives GPUs after the colon ("?": unknown) and a star for EFA.
struct Family {
  const char* name;
  Accelerator accelerator;
  const char* gpu;
  int capability;
  const char* sizes;
};

using enum Accelerator;

constexpr const char* kOneToEight =
    "xlarge:1 2xlarge:1 4xlarge:1 8xlarge:1* 12xlarge:4* 16xlarge:1* 24xlarge:4* 48xlarge:8*";
constexpr const char* kSeventhGeneration =
    "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 48xlarge*";
constexpr const char* kEighthGeneration =
    "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge 48xlarge* 96xlarge*";
constexpr const char* kFlex = "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge";
constexpr const char* kFlexWithoutLarge = "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge";

constexpr std::array kFamilies = {
    Family{"p2", cuda, "K80", 37, "xlarge:1 8xlarge:8 16xlarge:16"},
    Family{"p3", cuda, "V100", 70, "2xlarge:1 8xlarge:4 16xlarge:8"},
    Family{"p3dn", cuda, "V100", 70, "24xlarge:8*"},
    Family{"p4d", cuda, "A100", 80, "24xlarge:8*"},
    Family{"p4de", cuda, "A100", 80, "24xlarge:8*"},
    Family{"p5", cuda, "H100", 90, "4xlarge:1* 48xlarge:8*"},
    Family{"p5e", cuda, "H200", 90, "48xlarge:8*"},
    Family{"p5en", cuda, "H200", 90, "48xlarge:8*"},
    Family{"p6-b200", cuda, "B200", 100, "48xlarge:8*"},
    Family{"p6-b300", cuda, "B300", 103, "48xlarge:8*"},
    Family{"p6e-gb200", cuda, "GB200", 100, "36xlarge:4*"},
    Family{"g4dn", cuda, "T4", 75,
           "xlarge:1 2xlarge:1 4xlarge:1 8xlarge:1* 12xlarge:4* 16xlarge:1*"},
    Family{"g5", cuda, "A10G", 86, kOneToEight},
    Family{"g6", cuda, "L4", 89, kOneToEight},
    Family{"g6e", cuda, "L40S", 89, kOneToEight},
    Family{"g7", cuda, "GPU", 0, "2xlarge:? 4xlarge:? 8xlarge:? 12xlarge:? 24xlarge:? 48xlarge:?"},
    Family{"g7e", cuda, "RTX PRO 6000", 120,
           "2xlarge:1 4xlarge:1 8xlarge:1* 12xlarge:2* 24xlarge:4* 48xlarge:8*"},
    Family{"trn1", trainium, "", 0, "2xlarge 32xlarge*"},
    Family{"trn1n", trainium, "", 0, "32xlarge*"},
    Family{"trn2", trainium, "", 0, "48xlarge*"},
    Family{"m4", none, "", 0, "xlarge 2xlarge 4xlarge 10xlarge 16xlarge"},
    Family{"m5", none, "", 0, "large xlarge 2xlarge 4xlarge 12xlarge 24xlarge"},
    Family{"m6i", none, "", 0,
           "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge*"},
    Family{"m7i", none, "", 0, kSeventhGeneration},
    Family{"m7i-flex", none, "", 0, kFlex},
    Family{"m8i", none, "", 0, kEighthGeneration},
    Family{"m8i-flex", none, "", 0, kFlex},
    Family{"c4", none, "", 0, "xlarge 2xlarge 4xlarge 8xlarge"},
    Family{"c5", none, "", 0, "xlarge 2xlarge 4xlarge 9xlarge 18xlarge"},
    Family{"c5n", none, "", 0, "xlarge 2xlarge 4xlarge 9xlarge* 18xlarge*"},
    Family{"c6i", none, "", 0,
           "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge*"},
    Family{"c7i", none, "", 0, kSeventhGeneration},
    Family{"c7i-flex", none, "", 0, kFlexWithoutLarge},
    Family{
        "c8i", none, "", 0,
        "xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge 48xlarge* 96xlarge*"},
    Family{"c8i-flex", none, "", 0, kFlexWithoutLarge},
    Family{"r5", none, "", 0, "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge"},
    Family{"r5d", none, "", 0, "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge"},
    Family{"r6i", none, "", 0,
           "large xlarge 2xlarge 4xlarge 8xlarge 12xlarge 16xlarge 24xlarge 32xlarge*"},
    Family{"r7i", none, "", 0, kSeventhGeneration},
    Family{"r8i", none, "", 0, kEighthGeneration},
    Family{"r8i-flex", none, "", 0, kFlex},
    Family{"t3", none, "", 0, "medium large xlarge 2xlarge"},
};

InstanceType make(const Family& family, std::string size) {
  InstanceType made;
  if (size.ends_with('*')) {
    made.has_efa = true;
    size.pop_back();
  }
  if (const auto colon = size.find(':'); colon != std::string::npos) {
    made.gpus = -1;
    std::from_chars(size.data() + colon + 1, size.data() + size.size(), made.gpus);
    size.resize(colon);
  }
  made.name = std::string("ml.") + family.name + "." + size;
  made.family = family.name;
  made.accelerator = family.accelerator;
  made.gpu = family.gpu;
  made.capability = family.capability;
  return made;
}

}  // namespace

const std::vector<InstanceType>& instance_types() {
  static const std::vector<InstanceType> all = [] {
    std::vector<InstanceType> made;
    for (const Family& family : kFamilies) {
      std::istringstream sizes(family.sizes);
      for (std::string size; sizes >> size;) made.push_back(make(family, size));
    }
    return made;
  }();
  return all;
}

std::optional<InstanceType> find_instance_type(std::string_view name) {
  const auto& all = instance_types();
  const auto found = std::ranges::find(all, name, &InstanceType::name);
  return found == all.end() ? std::nullopt : std::optional(*found);
}

std::vector<std::string> instance_type_names() {
  std::vector<std::string> names;
  for (const InstanceType& type : instance_types()) names.push_back(type.name);
  return names;
}

bool has_device_rdma(std::string_view instance_type) {
  constexpr std::array<std::string_view, 12> kNames = {
      "ml.p4d.24xlarge",  "ml.p4de.24xlarge",    "ml.p5.48xlarge",      "ml.p5e.48xlarge",
      "ml.p5en.48xlarge", "ml.p6-b200.48xlarge", "ml.p6-b300.48xlarge", "ml.p6e-gb200.36xlarge",
      "ml.g7e.12xlarge",  "ml.g7e.24xlarge",     "ml.g7e.48xlarge",     "ml.trn1.32xlarge"};
  return std::ranges::find(kNames, instance_type) != kNames.end();
}

}  // namespace shoal::sagemaker
