// Default metrics of a job: the values that `shoal train` logs.
#pragma once

#include "shoal/sagemaker/job/fields.h"

namespace shoal::sagemaker {

// [{"Name": "loss", "Regex": "'loss': ([0-9.eE+-]+)"}, ...]. The expressions are not anchored,
// since mpirun prefixes lines with "[1,mpirank:5,algo-1]".
Json default_metric_definitions();

}  // namespace shoal::sagemaker
