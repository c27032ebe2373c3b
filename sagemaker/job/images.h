// URIs of Amazon's training images for Hugging Face by framework versions and region, as in version
// 2.257 of the SageMaker Python SDK. Also reads properties from an image's URI.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shoal/sagemaker/job/fields.h"
#include "shoal/sagemaker/job/instances.h"

namespace shoal::sagemaker {

struct FrameworkVersions {
  std::string transformers;           // "4.26.0", or shorter: "4.26"
  std::string framework = "pytorch";  // or "tensorflow"
  std::string framework_version;      // "1.13.1", or shorter: "1.13"
  std::string python;                 // "py39"; empty: the only available one
  bool compiler = false;              // the images of the Training Compiler
};

// If there is no such image, adds a problem at the responsible key and returns an empty URI.
std::string framework_image(const FrameworkVersions& versions, const std::string& region,
                            const InstanceType& instance, Problems& problems);

// "huggingface-pytorch-training" for ".../huggingface-pytorch-training:1.7-...". Base of the job's
// name.
std::string image_base_name(const std::string& uri);

// The tag of Shoal's own images names the build: shoal:0.1.0-cuda12, -cuda13, -cpu.
enum class ShoalBuild { cpu, cuda12, cuda13 };
std::optional<ShoalBuild> shoal_build(const std::string& image);

// Why an image of Shoal does not run this entry point, as words that can follow "but". Empty if it
// does run it, or if the image is not Shoal's. The name of an image with Python contains "pytorch":
// shoal-pytorch.
std::string why_not_run(const std::string& image, std::string_view entry_point);

// True for Amazon's deep learning containers, which run a job's Python code.
bool is_amazons_image(const std::string& image);

// Domain of a region's partition: "amazonaws.com", "amazonaws.com.cn" ...
std::string domain_of_region(std::string_view region);

}  // namespace shoal::sagemaker
