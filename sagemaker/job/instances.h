// The instance types that training jobs can have, and what is in them.
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
  std::string gpu;     // "A100"; empty: none
  int capability = 0;  // CUDA's compute capability times ten: 80; 0: no GPU, or not known
  int gpus = 0;        // -1: not known
  bool has_efa = false;
};

// Source: TrainingInstanceType of the service's model, of botocore 1.44; GPUs from EC2's
// tables; EFA of p5.4xlarge (without the GPU's memory) from the platforms of aws-ofi-nccl 1.21.
const std::vector<InstanceType>& instance_types();
std::optional<InstanceType> find_instance_type(std::string_view name);
std::vector<std::string> instance_type_names();

// Where EFA reads and writes the accelerators' memory (GPUDirect RDMA). Source: the platforms of
// aws-ofi-nccl 1.21 that require it, and the training toolkit 5.1's list.
bool has_device_rdma(std::string_view instance_type);

}  // namespace shoal::sagemaker
