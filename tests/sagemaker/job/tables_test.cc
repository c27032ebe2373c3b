#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shoal/sagemaker/job/images.h"
#include "shoal/sagemaker/job/instances.h"

namespace shoal::sagemaker {
namespace {

TEST(Instances, HaveTheirGpus) {
  EXPECT_EQ(find_instance_type("ml.p4d.24xlarge")->gpus, 8);
  EXPECT_EQ(find_instance_type("ml.g4dn.12xlarge")->gpus, 4);
  EXPECT_EQ(find_instance_type("ml.g7.48xlarge")->gpus, -1);  // not known
  EXPECT_EQ(find_instance_type("ml.c5n.18xlarge")->gpus, 0);
  EXPECT_TRUE(find_instance_type("ml.c5n.18xlarge")->has_efa);
  EXPECT_FALSE(find_instance_type("ml.p3.16xlarge")->has_efa);
  EXPECT_TRUE(find_instance_type("ml.p5.4xlarge")->has_efa);
  EXPECT_EQ(find_instance_type("ml.p3dn.24xlarge")->capability, 70);
  EXPECT_FALSE(find_instance_type("ml.p4d.23xlarge"));
  EXPECT_TRUE(find_instance_type("ml.c8i.96xlarge")->has_efa);
  EXPECT_TRUE(find_instance_type("ml.r8i-flex.large"));
  EXPECT_FALSE(find_instance_type("ml.c7i-flex.large"));
  EXPECT_EQ(instance_types().size(), 225U);
}

TEST(Instances, InstancesWithEfaForGpuMemoryAreKnown) {
  int count = 0;
  for (const InstanceType& type : instance_types())
    if (has_device_rdma(type.name)) {
      EXPECT_TRUE(type.has_efa && type.accelerator != Accelerator::none) << type.name;
      ++count;
    }
  EXPECT_EQ(count, 12);  // otherwise a name is misspelt
  EXPECT_FALSE(has_device_rdma("ml.p5.4xlarge"));
  EXPECT_FALSE(has_device_rdma("ml.p3dn.24xlarge"));
}

TEST(Images, AreRecognisedByName) {
  EXPECT_EQ(image_base_name("1.dkr.ecr.us-east-1.amazonaws.com/a/huggingface-pytorch-training:1.7"),
            "huggingface-pytorch-training");
  EXPECT_EQ(shoal_build("1.dkr.ecr.us-east-1.amazonaws.com/shoal:0.1.0-cuda12"),
            ShoalBuild::cuda12);
  EXPECT_EQ(shoal_build("me/shoal-training:0.1.0-cpu"), ShoalBuild::cpu);
  EXPECT_FALSE(shoal_build("other:1-cuda12"));
  EXPECT_EQ(why_not_run("me/shoal-pytorch:0.1.0-cpu@sha256:00", "run_qa.py"), "");
  EXPECT_EQ(why_not_run("me/shoal:0.1.0-cpu", "run.json"), "");
  EXPECT_EQ(why_not_run("other:1", "run_qa.py"), "");
  EXPECT_NE(why_not_run("me/shoal:0.1.0-cpu", "run_qa.py"), "");
  EXPECT_NE(why_not_run("me/shoal-pytorch:0.1.0-cpu", "run.sh"), "");
  EXPECT_EQ(domain_of_region("cn-north-1"), "amazonaws.com.cn");
}

TEST(Images, ErrorsListTheExistingImages) {
  const auto refused = [](const FrameworkVersions& versions, const char* region) {
    Problems problems;
    framework_image(versions, region, *find_instance_type("ml.p4d.24xlarge"), problems);
    try {
      problems.check();
    } catch (const std::exception& problem) {
      return std::string(problem.what());
    }
    return std::string("accepted");
  };
  const FrameworkVersions right{.transformers = "4.26", .framework_version = "1.13", .python = {}};
  EXPECT_EQ(refused(right, "us-east-1"), "accepted");
  EXPECT_THAT(refused(right, "eu-south-2"), ::testing::HasSubstr("/region: Amazon has no image"));
  EXPECT_THAT(
      refused({.transformers = "4.27", .framework_version = "1.13", .python = {}}, "us-east-1"),
      ::testing::HasSubstr("/transformers_version: there is no image for 4.27; there are 4.4.2"));
  EXPECT_THAT(
      refused({.transformers = "4.26", .framework_version = "1.12", .python = {}}, "us-east-1"),
      ::testing::HasSubstr("/pytorch_version: there is no image for 1.12; there are 1.13.1"));
  EXPECT_THAT(
      refused({.transformers = "4.26", .framework_version = "1.13", .python = "py38"}, "us-east-1"),
      ::testing::HasSubstr("/py_version: there is no image for py38; there are py39"));
}

}  // namespace
}  // namespace shoal::sagemaker
