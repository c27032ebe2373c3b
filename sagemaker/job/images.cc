#include "shoal/sagemaker/job/images.h"

#include <algorithm>
#include <array>
#include <regex>
#include <set>

#include <fmt/format.h>

#include "shoal/runtime/base/shortened.h"

namespace shoal::sagemaker {
namespace {

// Sets of regions: those with images up to transformers 4.17, with images since 4.26, and with
// images of the Training Compiler.
enum : unsigned { kOld = 1, kNew = 2, kCompiler = 4, kFirstCompiler = 8 };

struct Region {
  const char* name;
  const char* account;
  unsigned sets;
};

constexpr const char* kUsual = "763104351884";

constexpr std::array kRegions = {
    Region{"af-south-1", "626614931356", kOld | kNew | kCompiler},
    Region{"ap-east-1", "871362719292", kOld | kNew | kCompiler},
    Region{"ap-east-2", "975050140332", kCompiler},
    Region{"ap-northeast-1", kUsual, kOld | kNew | kCompiler},
    Region{"ap-northeast-2", kUsual, kOld | kNew | kCompiler},
    Region{"ap-northeast-3", "364406365360", kOld | kNew | kCompiler},
    Region{"ap-south-1", kUsual, kOld | kNew | kCompiler},
    Region{"ap-south-2", "772153158452", kOld | kCompiler},
    Region{"ap-southeast-1", kUsual, kOld | kNew | kCompiler},
    Region{"ap-southeast-2", kUsual, kOld | kNew | kCompiler},
    Region{"ap-southeast-3", "907027046896", kOld | kNew | kCompiler},
    Region{"ap-southeast-4", "457447274322", kOld | kCompiler},
    Region{"ap-southeast-5", "550225433462", kCompiler},
    Region{"ap-southeast-7", "590183813437", kCompiler},
    Region{"ca-central-1", kUsual, kOld | kNew | kCompiler},
    Region{"ca-west-1", "204538143572", kOld | kNew | kCompiler | kFirstCompiler},
    Region{"cn-north-1", "727897471807", kOld | kNew},
    Region{"cn-northwest-1", "727897471807", kOld | kNew},
    Region{"eu-central-1", kUsual, kOld | kNew | kCompiler},
    Region{"eu-central-2", "380420809688", kOld | kCompiler},
    Region{"eu-north-1", kUsual, kOld | kNew | kCompiler},
    Region{"eu-south-1", "692866216735", kOld | kNew | kCompiler},
    Region{"eu-south-2", "503227376785", kOld | kCompiler},
    Region{"eu-west-1", kUsual, kOld | kNew | kCompiler | kFirstCompiler},
    Region{"eu-west-2", kUsual, kOld | kNew | kCompiler},
    Region{"eu-west-3", kUsual, kOld | kNew | kCompiler},
    Region{"il-central-1", "780543022126", kOld | kNew | kCompiler},
    Region{"me-central-1", "914824155844", kOld | kNew | kCompiler},
    Region{"me-south-1", "217643126080", kOld | kNew | kCompiler},
    Region{"mx-central-1", "637423239942", kCompiler},
    Region{"sa-east-1", kUsual, kOld | kNew | kCompiler},
    Region{"us-east-1", kUsual, kOld | kNew | kCompiler | kFirstCompiler},
    Region{"us-east-2", kUsual, kOld | kNew | kCompiler | kFirstCompiler},
    Region{"us-gov-east-1", "446045086412", kOld | kNew},
    Region{"us-gov-west-1", "442386744353", kOld | kNew},
    Region{"us-iso-east-1", "886529160074", kOld | kNew},
    Region{"us-isob-east-1", "094389454867", kOld | kNew},
    Region{"us-west-1", kUsual, kOld | kNew | kCompiler},
    Region{"us-west-2", kUsual, kOld | kNew | kCompiler | kFirstCompiler},
};

struct Image {
  const char* transformers;
  const char* framework;
  const char* version;
  const char* python;
  const char* container;  // CUDA and Ubuntu: the end of the tag
  unsigned regions;
};

constexpr std::array kImages = {
    Image{"4.4.2", "pytorch", "1.6.0", "py36", "cu110-ubuntu18.04", kOld},
    Image{"4.4.2", "tensorflow", "2.4.1", "py37", "cu110-ubuntu18.04", kOld},
    Image{"4.5.0", "pytorch", "1.6.0", "py36", "cu110-ubuntu18.04", kOld},
    Image{"4.5.0", "tensorflow", "2.4.1", "py37", "cu110-ubuntu18.04", kOld},
    Image{"4.6.1", "pytorch", "1.6.0", "py36", "cu110-ubuntu18.04", kOld},
    Image{"4.6.1", "pytorch", "1.7.1", "py36", "cu110-ubuntu18.04", kOld},
    Image{"4.6.1", "pytorch", "1.8.1", "py36", "cu111-ubuntu18.04", kOld},
    Image{"4.6.1", "tensorflow", "2.4.1", "py37", "cu110-ubuntu18.04", kOld},
    Image{"4.10.2", "pytorch", "1.8.1", "py36", "cu110-ubuntu18.04", kOld},
    Image{"4.10.2", "pytorch", "1.9.0", "py38", "cu111-ubuntu20.04", kOld},
    Image{"4.10.2", "tensorflow", "2.4.1", "py37", "cu110-ubuntu18.04", kOld},
    Image{"4.10.2", "tensorflow", "2.5.1", "py37", "cu112-ubuntu18.04", kOld},
    Image{"4.11.0", "pytorch", "1.9.0", "py38", "cu111-ubuntu20.04", kOld},
    Image{"4.11.0", "tensorflow", "2.5.1", "py37", "cu112-ubuntu18.04", kOld},
    Image{"4.12.3", "pytorch", "1.9.1", "py38", "cu111-ubuntu20.04", kOld},
    Image{"4.12.3", "tensorflow", "2.5.1", "py37", "cu112-ubuntu18.04", kOld},
    Image{"4.17.0", "pytorch", "1.10.2", "py38", "cu113-ubuntu20.04", kOld},
    Image{"4.17.0", "tensorflow", "2.6.3", "py38", "cu112-ubuntu20.04", kOld},
    Image{"4.26.0", "pytorch", "1.13.1", "py39", "cu117-ubuntu20.04", kNew},
    Image{"4.28.1", "pytorch", "2.0.0", "py310", "cu118-ubuntu20.04", kNew},
    Image{"4.36.0", "pytorch", "2.1.0", "py310", "cu121-ubuntu20.04", kNew},
    Image{"4.46.1", "pytorch", "2.3.0", "py311", "cu121-ubuntu20.04", kNew},
    Image{"4.48.0", "pytorch", "2.3.0", "py311", "cu121-ubuntu20.04", kNew},
    Image{"4.49.0", "pytorch", "2.5.1", "py311", "cu124-ubuntu22.04", kNew},
    Image{"4.55.0", "pytorch", "2.7.1", "py312", "cu128-ubuntu22.04", kNew},
    Image{"4.56.2", "pytorch", "2.8.0", "py312", "cu129-ubuntu22.04", kNew},
};

constexpr std::array kCompilerImages = {
    Image{"4.11.0", "pytorch", "1.9.0", "py38", "cu111-ubuntu20.04", kFirstCompiler},
    Image{"4.11.0", "tensorflow", "2.5.1", "py37", "cu112-ubuntu18.04", kFirstCompiler},
    Image{"4.17.0", "pytorch", "1.10.2", "py38", "cu113-ubuntu20.04", kCompiler},
    Image{"4.17.0", "tensorflow", "2.6.3", "py38", "cu112-ubuntu20.04", kCompiler},
    Image{"4.21.1", "pytorch", "1.11.0", "py38", "cu113-ubuntu20.04", kCompiler},
};

// "4.26" matches "4.26.0".
bool matches(std::string_view full, std::string_view given) {
  return full == given || (full.starts_with(given) && full.substr(given.size()).starts_with('.') &&
                           std::ranges::count(given, '.') == 1);
}

template <typename Get>
std::string listed(const std::vector<Image>& images, const Get& get) {
  std::string text;
  std::set<std::string> seen;
  for (const Image& image : images)
    if (seen.insert(get(image)).second)
      text += (text.empty() ? "" : ", ") + std::string(get(image));
  return text;
}

}  // namespace

std::string domain_of_region(std::string_view region) {
  if (region.starts_with("cn-")) return "amazonaws.com.cn";
  if (region.starts_with("us-isob-")) return "sc2s.sgov.gov";
  if (region.starts_with("us-iso-")) return "c2s.ic.gov";
  return "amazonaws.com";
}

std::string framework_image(const FrameworkVersions& versions, const std::string& region,
                            const InstanceType& instance, Problems& problems) {
  std::vector<Image> images;
  if (versions.compiler)
    images.assign(kCompilerImages.begin(), kCompilerImages.end());
  else
    images.assign(kImages.begin(), kImages.end());
  const auto narrow = [&](const char* path, const std::string& given, const auto& get) {
    std::vector<Image> left;
    for (const Image& image : images)
      if (matches(get(image), given)) left.push_back(image);
    if (left.empty())
      problems.add(path, fmt::format("there is no image for {}; there are {}", shortened(given),
                                     listed(images, get)));
    images = std::move(left);
    return !images.empty();
  };
  const std::string framework_path = "/" + versions.framework + "_version";
  std::erase_if(images, [&](const Image& image) { return image.framework != versions.framework; });
  if (!narrow("/transformers_version", versions.transformers,
              [](const Image& image) { return image.transformers; }) ||
      !narrow(framework_path.c_str(), versions.framework_version,
              [](const Image& image) { return image.version; }))
    return {};
  if (!versions.python.empty() &&
      !narrow("/py_version", versions.python, [](const Image& image) { return image.python; }))
    return {};
  const Image& image = images.front();
  if (instance.accelerator != Accelerator::cuda) {
    problems.add("/instance_type",
                 fmt::format("{} has no GPU, and the images of transformers are for GPUs; give a "
                             "GPU instance, or an image_uri",
                             instance.name));
    return {};
  }
  const auto place =
      std::ranges::find(kRegions, region, [](const Region& r) { return std::string_view(r.name); });
  if (place == kRegions.end() || (place->sets & image.regions) == 0) {
    problems.add("/region", fmt::format("Amazon has no image of transformers {} in {}; give an "
                                        "image_uri",
                                        image.transformers, region));
    return {};
  }
  // The tag contains the versions as given; for compiler images, the full transformers version.
  return fmt::format("{}.dkr.ecr.{}.{}/huggingface-{}-{}training:{}-transformers{}-gpu-{}-{}",
                     place->account, region, domain_of_region(region), versions.framework,
                     versions.compiler ? "trcomp-" : "", versions.framework_version,
                     versions.compiler ? image.transformers : versions.transformers, image.python,
                     image.container);
}

std::string image_base_name(const std::string& uri) {
  static const std::regex pattern("^(.+/)?([^:/]+)(:[^:]+)?$");
  std::smatch match;
  return std::regex_match(uri, match, pattern) ? match[2].str() : uri;
}

bool is_amazons_image(const std::string& image) {
  if (image.starts_with("public.ecr.aws/deep-learning-containers/")) return true;
  const std::string_view registry = std::string_view(image).substr(0, image.find('/'));
  const std::string_view account = registry.substr(0, registry.find('.'));
  return registry.substr(account.size()).starts_with(".dkr.ecr.") &&
         std::ranges::any_of(kRegions,
                             [&](const Region& region) { return account == region.account; });
}

std::optional<ShoalBuild> shoal_build(const std::string& image) {
  const std::string uri = image.substr(0, image.find('@'));  // remove the digest
  if (image_base_name(uri).find("shoal") == std::string::npos) return std::nullopt;
  if (uri.ends_with("cuda12")) return ShoalBuild::cuda12;
  if (uri.ends_with("cuda13")) return ShoalBuild::cuda13;
  if (uri.ends_with("cpu")) return ShoalBuild::cpu;
  return std::nullopt;
}

std::string why_not_run(const std::string& image, std::string_view entry_point) {
  if (!shoal_build(image) || entry_point.ends_with(".json")) return {};
  if (!entry_point.ends_with(".py"))
    return "Shoal's image runs a JSON file with options of `shoal train`, or a Python script";
  const std::string uri = image.substr(0, image.find('@'));
  if (image_base_name(uri).find("pytorch") != std::string::npos) return {};
  return fmt::format(
      "the image {} has no Python; use Shoal's image of the target pytorch, shoal-pytorch "
      "(docker/)",
      shortened(image));
}

}  // namespace shoal::sagemaker
