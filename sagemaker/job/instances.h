// The instance types of training jobs and their hardware.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::sagemaker {

enum class Accelerator { none, cuda, trainium };

struct InstanceType {
  std::string name;    // "ml.p4d.24xlarge"
  std::string family;  // "p4d"
  Accelerator accelerator = Accelerator::none;
  std::string gpu;     // "A100"; empty: no GPU
  int capability = 0;  // CUDA compute capability times ten: 80; 0: no GPU, or unknown
  int gpus = 0;        // -1: unknown
  bool has_efa = false;
};

// Sources: TrainingInstanceType in the service model of botocore 1.44, and EC2's tables for GPUs.
// EFA of p5.4xlarge (without GPU memory) is from the platforms of aws-ofi-nccl 1.21.
const std::vector<InstanceType>& instance_types();
std::optional<InstanceType> find_instance_type(std::string_view name);
std::vector<std::string> instance_type_names();

// True if EFA accesses the accelerators' memory directly (GPUDirect RDMA). Sources: the platforms
// that require it in aws-ofi-nccl 1.21, and the list of training toolkit 5.1.
bool has_device_rdma(std::string_view instance_type);

}  // namespace shoal::sagemaker
