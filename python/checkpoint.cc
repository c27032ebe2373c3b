// Checkpoints of Shoal's format for shoal.torch.parallel: tensors in parts, the marker, the state
// of a run.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "native.h"
#include <nlohmann/json.hpp>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/nearest.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/checkpoint/checkpoint_directory.h"
#include "shoal/train/checkpoint/sealed_file.h"
#include "shoal/train/checkpoint/sharded_checkpoint.h"
#include "shoal/train/checkpoint/trainer_state.h"

namespace py = pybind11;

namespace shoal::python {
namespace {

using Json = nlohmann::json;
using Sealed = std::tuple<std::string, std::int64_t, Sha256Sum>;  // name, bytes, checksum

Sealed seal(const std::string& directory, const std::string& name) {
  const SealedFile file = seal_file(directory, name);
  return {file.name, file.bytes, file.sha256};
}

std::vector<SealedFile> sealed_files(const std::vector<Sealed>& files) {
  std::vector<SealedFile> sealed;
  for (const auto& [name, bytes, sha256] : files) sealed.push_back({name, bytes, sha256});
  return sealed;
}

// `tensors`: a list of descriptions as in a shard's metadata (tensor_shard.h). `addresses`: the
// address of each tensor's elements in this process.
void write_shard_of(const std::string& directory, int rank, int ranks, const std::string& tensors,
                    const std::vector<std::uintptr_t>& addresses, const std::string& save) {
  std::vector<ShardData> data;
  for (const Json& one : parse_json(tensors, "tensors")) {
    TensorShard shard = shard_from_json(one, "tensors");
    SHOAL_CHECK(data.size() < addresses.size(), "{} has no address", shard.name);
    // NOLINTNEXTLINE(performance-no-int-to-ptr): Python passes integers
    const auto* const elements = reinterpret_cast<const void*>(addresses[data.size()]);
    const ConstView view(elements, {shard.count()}, shard.dtype);
    data.push_back({std::move(shard), view});
  }
  write_shard(directory, rank, ranks, data, save);
}

ShardedCheckpoint open_checkpoint(const std::string& directory) {
  return find_shards(directory).ranks > 0 ? ShardedCheckpoint::open(directory)
                                          : ShardedCheckpoint::open_full(directory);
}

using Tensors = std::vector<std::tuple<std::string, std::vector<std::int64_t>, std::string>>;

Tensors tensors_of(const ShardedCheckpoint& checkpoint) {
  Tensors tensors;
  for (const auto& [name, about] : checkpoint.tensors()) {
    const auto sizes = about.shape.sizes();
    tensors.emplace_back(name, std::vector(sizes.begin(), sizes.end()), to_string(about.dtype));
  }
  return tensors;
}

void read_part(const ShardedCheckpoint& checkpoint, const std::string& description,
               std::uintptr_t address) {
  const TensorShard shard = shard_from_json(parse_json(description, "description"), "description");
  // NOLINTNEXTLINE(performance-no-int-to-ptr): Python passes integers
  auto* const elements = reinterpret_cast<void*>(address);
  checkpoint.read(shard, View{elements, {shard.count()}, shard.dtype});
}

// trainer_state.json with the given fields of a TrainerState, whether they belong under "shoal" or
// not, and its defaults.
std::string trainer_state(const std::string& fields) {
  nlohmann::ordered_json state = TrainerState{}.to_json();
  nlohmann::ordered_json& own = state["shoal"];
  own.update({{"compute_dtype", ""},
              {"data", Json::object()},
              {"stream", nullptr},
              {"evaluation_due", false},
              {"evaluations_without_gain", 0}});
  const Json given = parse_json(fields, "trainer_state");
  for (const auto& [name, value] : given.items()) {
    if (name != "shoal" && state.contains(name)) {
      state[name] = value;
    } else if (own.contains(name)) {
      own[name] = value;
    } else {
      std::vector<std::string> names;
      for (const auto& object : {state, own})
        for (const auto& [known, is] : object.items()) names.push_back(known);
      throw Error(ErrorCode::invalid_argument, fmt::format("trainer_state has no field {}", name),
                  names_there_are(name, names));
    }
  }
  return TrainerState::from_json(state, "trainer_state").to_json().dump(2) + "\n";
}

}  // namespace

void define_checkpoint(py::module_& module) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<CheckpointTransaction>(module, "CheckpointTransaction")
      .def(py::init<const std::string&, std::int64_t>(), py::arg("path"), py::arg("step"))
      .def_property_readonly("directory", &CheckpointTransaction::directory)
      .def(
          "commit",
          [](CheckpointTransaction& self, const std::vector<Sealed>& sealed,
             const std::vector<Sealed>& elsewhere) {
            return self.commit(sealed_files(sealed), sealed_files(elsewhere));
          },
          py::arg("sealed"), py::arg("elsewhere"), Released())
      .def("commit_part", &CheckpointTransaction::commit_part, Released());
  py::class_<ShardedCheckpoint>(module, "ShardedCheckpoint")
      .def(py::init(&open_checkpoint), py::arg("directory"))
      .def("tensors", &tensors_of)
      .def("read", &read_part, py::arg("description"), py::arg("address"), Released());
  module.def("seal_file", &seal, py::arg("directory"), py::arg("name"), Released());
  module.def("shard_name", &shard_name, py::arg("rank"), py::arg("ranks"));
  module.def("write_shard", &write_shard_of, py::arg("directory"), py::arg("rank"),
             py::arg("ranks"), py::arg("tensors"), py::arg("addresses"), py::arg("save"),
             Released());
  module.def(
      "checkpoint_problem",
      [](const std::string& path, bool checksums, int index, int readers) {
        return checkpoint_problem(path, checksums, {.index = index, .readers = readers});
      },
      py::arg("path"), py::arg("checksums"), py::arg("index") = 0, py::arg("readers") = 1,
      Released());
  module.def(
      "list_checkpoints",
      [](const std::string& output_dir) {
        std::vector<std::string> paths;
        for (const CheckpointInfo& one : list_checkpoints(output_dir)) paths.push_back(one.path);
        return paths;
      },
      py::arg("output_dir"));
  module.def("trainer_state", &trainer_state, py::arg("fields"));
  module.def(
      "read_trainer_state",
      [](const std::string& directory) { return read_trainer_state(directory).to_json().dump(); },
      py::arg("directory"));
}

}  // namespace shoal::python
