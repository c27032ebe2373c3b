// The part of shoal._native that shoal.torch.parallel asks for its rules.
#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

void define_parallel(pybind11::module_& module);

}  // namespace shoal::python
