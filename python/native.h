// The parts of shoal._native that shoal.torch.parallel uses.
#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

void define_parallel(pybind11::module_& module);    // the rules of model parallelism
void define_checkpoint(pybind11::module_& module);  // checkpoints of Shoal's format

}  // namespace shoal::python
