// URIs of Amazon's training images for Hugging Face, by framework versions and region, as version
// 2.257 of the SageMaker Python SDK finds them; and what can be read off the URI of an image.
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
  std::string python;                 // "py39"; empty: the only one there is
  bool compiler = false;              // the images of the Training Compiler
};

// What is not there is a problem (at the path of the key that is to blame), and the URI empty.
std::string framework_image(const FrameworkVersions& versions, const std::string& region,
                            const InstanceType& instance, Problems& problems);

// "huggingface-pytorch-training" of ".../huggingface-pytorch-training:1.7-...": the base of the
// job's name.
std::string image_base_name(const std::string& uri);

// Shoal's own images say in their tag what they were built for: shoal:0.1.0-cuda12, -cuda13, -cpu.
enum class ShoalBuild { cpu, cuda12, cuda13 };
std::optional<ShoalBuild> shoal_build(const std::string& image);

// Whether the image is one of Amazon's containers for deep learning, which run a job's Python.
bool is_amazons_image(const std::string& image);

// The domain of a region's partition: "amazonaws.com", "amazonaws.com.cn" ...
std::string domain_of_region(std::string_view region);

}  // namespace shoal::sagemaker
