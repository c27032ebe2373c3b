// The bindings in shoal._native through which shoal.torch.parallel uses the rules of C++.
#pragma once

#include <pybind11/pybind11.h>

namespace shoal::python {

void define_parallel(pybind11::module_& module);

}  // namespace shoal::python
