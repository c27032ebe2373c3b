// Where programs read from besides this machine.
#pragma once

#include "machine.h"

#include "shoal/runtime/io/byte_source.h"

namespace shoal::app {

// Whether s3://, and SageMaker's calls, are in this build.
Finding s3_finding();

// s3://, with AWS's region, credentials and endpoints as every AWS tool finds them, at the first
// name that is used. Without SageMaker's clients in the build: unavailable, naming the flag.
void add_sources(SourceRegistry& registry);

}  // namespace shoal::app
