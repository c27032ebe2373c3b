// The Python module shoal._torch: makes process groups and closes them at exit.
#include <torch/csrc/utils/pybind.h>

#include "shoal/torch/process_group.h"

namespace py = pybind11;

namespace shoal::pytorch {
namespace {

// PyTorch 2.8's Options do not name the group.
template <typename Options>
void set_members(Options& options, const c10d::DistributedBackendOptions& group) {
  if constexpr (requires { options.global_ranks_in_group; }) {
    options.group_name = group.group_id;
    options.global_ranks_in_group.assign(group.global_ranks_in_group.begin(),
                                         group.global_ranks_in_group.end());
  }
}

template <typename Options, typename Group>
void set_reconfigured(Options& options, const Group& group) {
  if constexpr (requires { group.enable_reconfigure; })
    options.enable_reconfigure = group.enable_reconfigure;
}

c10::intrusive_ptr<ProcessGroupShoal> create(const c10d::DistributedBackendOptions& group) {
  const auto timeout = std::chrono::duration_cast<std::chrono::milliseconds>(group.timeout);
  auto options = c10::make_intrusive<c10d::Backend::Options>("shoal", timeout);
  set_members(*options, group);
  set_reconfigured(*options, group);
  return c10::make_intrusive<ProcessGroupShoal>(
      group.store, group.group_rank, group.group_size, std::move(options),
      std::vector<int>(group.global_ranks_in_group.begin(), group.global_ranks_in_group.end()));
}

}  // namespace
}  // namespace shoal::pytorch

PYBIND11_MODULE(_torch, module) {
  using shoal::pytorch::ProcessGroupShoal;
  const py::object backend = py::module_::import("torch._C._distributed_c10d").attr("Backend");
  py::class_<ProcessGroupShoal, c10::intrusive_ptr<ProcessGroupShoal>>(module, "ProcessGroupShoal",
                                                                       backend)
      // Up to 2.13 PyTorch lacks this property, but split_group() reads it.
      .def_property_readonly("options", &ProcessGroupShoal::getBackendOptions)
      .def_property_readonly("deadline_seconds", &ProcessGroupShoal::deadline_seconds)
      .def("lose", &ProcessGroupShoal::lose, py::call_guard<py::gil_scoped_release>(),
           "Raises the error of a group that has lost this rank of its own.")
      .def(
          "perform_nocolor_split", [](ProcessGroupShoal&, const py::object&) {},
          "Nothing: a group is split by its new members only.");
  module.def("create", &shoal::pytorch::create, py::call_guard<py::gil_scoped_release>());
  module.def("close_all_groups", &shoal::pytorch::close_all_groups,
             py::call_guard<py::gil_scoped_release>());
}
