// Remote sources that programs can read.
#pragma once

#include "shoal/runtime/io/byte_source.h"
#include "shoal/train/command/machine.h"

namespace shoal::app {

// Reports whether this build has s3:// and SageMaker's calls.
command::Finding s3_finding();

// Registers s3://. On first use it finds region, credentials and endpoints like other AWS tools. In
// builds without SageMaker's clients, opening an s3:// source throws unavailable, naming the build
// flag.
void add_sources(SourceRegistry& registry);

}  // namespace shoal::app
