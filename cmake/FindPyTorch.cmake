# The PyTorch of a Python interpreter as the target PyTorch::PyTorch.
#
# PyTorch's own package (TorchConfig.cmake) insists on a CUDA toolkit where the wheel was built with
# CUDA, as PyPI's is, and enables the language for everything here. A CPU build needs none of it.
# PyTorch_PYTHON: the interpreter; default: Python3_EXECUTABLE. It is asked with -I, so that it shows its own
# packages also where pip builds in an isolated environment.
if(SKBUILD)  # pip's interpreter, which may be another one than the last time
  set(PyTorch_PYTHON ${Python3_EXECUTABLE} CACHE FILEPATH "" FORCE)
elseif(NOT PyTorch_PYTHON)
  find_package(Python3 COMPONENTS Interpreter)
  set(PyTorch_PYTHON ${Python3_EXECUTABLE} CACHE FILEPATH "Python interpreter that has PyTorch")
endif()
execute_process(
  COMMAND ${PyTorch_PYTHON} -I -c [[
import sysconfig, torch
from torch.utils import cpp_extension
print(";".join([torch.__version__, str(int(torch._C._GLIBCXX_USE_CXX11_ABI)), cpp_extension.TORCH_LIB_PATH,
                sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX")]))
# The versions of pybind11 in PyTorch up to 2.8 or so tell libraries apart by these.
names = ("PYBIND11_COMPILER_TYPE", "PYBIND11_STDLIB", "PYBIND11_BUILD_ABI")
values = [(name, getattr(torch._C, "_" + name, None)) for name in names]
print(";".join(f'{name}="{value}"' for name, value in values if value is not None))
print(";".join(cpp_extension.include_paths()), end="")]]
  OUTPUT_VARIABLE said ERROR_VARIABLE PyTorch_PROBLEM RESULT_VARIABLE status)
if(status EQUAL 0)
  string(REGEX REPLACE "^([^\n]*)\n.*" "\\1" facts "${said}")
  string(REGEX REPLACE "^[^\n]*\n([^\n]*)\n.*" "\\1" PyTorch_PYBIND11_DEFINITIONS "${said}")
  string(REGEX REPLACE "^[^\n]*\n[^\n]*\n" "" PyTorch_INCLUDE_DIRS "${said}")
  list(POP_FRONT facts PyTorch_VERSION abi PyTorch_LIBRARY_DIR PyTorch_PYTHON_INCLUDE_DIR PyTorch_EXTENSION_SUFFIX)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(PyTorch REQUIRED_VARS PyTorch_LIBRARY_DIR VERSION_VAR PyTorch_VERSION
  REASON_FAILURE_MESSAGE "${PyTorch_PYTHON} cannot import torch: ${PyTorch_PROBLEM}")
if(PyTorch_FOUND AND NOT TARGET PyTorch::PyTorch)
  add_library(PyTorch::PyTorch INTERFACE IMPORTED)
  target_include_directories(PyTorch::PyTorch SYSTEM INTERFACE
    ${PyTorch_INCLUDE_DIRS} ${PyTorch_PYTHON_INCLUDE_DIR})
  target_compile_definitions(PyTorch::PyTorch INTERFACE
    USE_DISTRIBUTED USE_C10D_GLOO _GLIBCXX_USE_CXX11_ABI=${abi} ${PyTorch_PYBIND11_DEFINITIONS})
  # For clang-tidy: functions that only some versions of PyTorch have cannot be marked `override`.
  target_compile_options(PyTorch::PyTorch INTERFACE -Wno-inconsistent-missing-override)
  foreach(library IN ITEMS c10 torch torch_cpu torch_python)
    target_link_libraries(PyTorch::PyTorch INTERFACE ${PyTorch_LIBRARY_DIR}/lib${library}.so)
  endforeach()
endif()
