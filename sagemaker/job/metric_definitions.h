// The metrics that a job has unless its file says otherwise: what `shoal train` logs.
#pragma once

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// [{"Name": "loss", "Regex": "'loss': ([0-9.eE+-]+)"}, ...]. The expressions are not anchored:
// mpirun puts "[1,mpirank:5,algo-1]" in front of lines.
Json default_metric_definitions();

}  // namespace shoal::sagemaker
