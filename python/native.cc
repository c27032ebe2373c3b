// The Python module shoal._native: training and generation in this process.
#include "native.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>

#include <fmt/ranges.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/types.h>

#include "shoal/runtime/base/env.h"
#include "shoal/runtime/base/error.h"
#include "shoal/runtime/base/signal_thread.h"
#include "shoal/runtime/io/json.h"
#include "shoal/train/command/generate.h"
#include "shoal/train/command/stop_signals.h"
#include "shoal/train/command/train.h"

namespace py = pybind11;

namespace shoal::python {
namespace {

ssize_t write_to_python(void* stream, const char* bytes, std::size_t size) {
  const py::gil_scoped_acquire holds;
  try {
    py::handle(static_cast<PyObject*>(stream))
        .attr("write")(py::reinterpret_steal<py::str>(
            PyUnicode_DecodeUTF8(bytes, static_cast<Py_ssize_t>(size), "replace")));
    py::handle(static_cast<PyObject*>(stream)).attr("flush")();
  } catch (py::error_already_set& problem) {
    problem.discard_as_unraisable("shoal.train's output");
  }
  return static_cast<ssize_t>(size);
}

struct Closes {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closes>;

// Makes a C stream that writes to a Python stream, which must outlive it. Null for None.
File file_of(const py::object& stream) {
  if (stream.is_none()) return nullptr;
  File file(::fopencookie(
      stream.ptr(), "w",
      {.read = nullptr, .write = write_to_python, .seek = nullptr, .close = nullptr}));
  SHOAL_ASSERT(file != nullptr);
  std::setvbuf(file.get(), nullptr, _IOFBF, 1 << 16);  // written in whole lines, so never in parts
                                                       // of characters
  return file;
}

void check_environment() {
  if (const auto problems = env::problems(); !problems.empty())
    throw Error(ErrorCode::invalid_argument, fmt::format("{}", fmt::join(problems, "\n")));
}

py::tuple train(const std::string& options, const py::object& out, const py::object& bar,
                int columns) {
  command::Guest guest;
  guest.options = parse_json(options, "options");
  const File out_file = file_of(out), bar_file = file_of(bar);
  guest.console = {.out = out_file.get(), .bar = bar_file.get(), .columns = columns};
  int status = 0;
  {
    const py::gil_scoped_release runs;
    check_environment();
    status = command::train(guest);
  }
  return py::make_tuple(status, guest.metrics.dump(), guest.problem);
}

std::string generate(const command::GenerateOptions& options) {
  const py::gil_scoped_release runs;
  check_environment();
  const SignalThread takes_signals(command::StopSignals::kNumbers);
  std::string all;
  command::generate(options, {.on_text =
                                  [&](const std::string& text) {
                                    const py::gil_scoped_acquire holds;
                                    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
                                    all += text;
                                    return true;
                                  },
                              .on_message = [](const std::string&) {}});
  return all;
}

std::string generate_by_name(const std::string& model, const std::string& prompt,
                             const std::string& tokenizer, std::int64_t max_new_tokens,
                             double temperature, std::int64_t top_k, double top_p,
                             std::uint64_t seed, bool greedy, bool bf16, bool no_stop) {
  return generate({.model = model,
                   .tokenizer = tokenizer,
                   .prompt = prompt,
                   .logits_out = {},
                   .input_ids = {},
                   .greedy = greedy,
                   .bf16 = bf16,
                   .no_stop = no_stop,
                   .generation = {.max_new_tokens = max_new_tokens,
                                  .temperature = temperature,
                                  .top_k = top_k,
                                  .top_p = top_p,
                                  .seed = seed}});
}

void translate(std::exception_ptr caught) {
  try {
    if (caught) std::rethrow_exception(std::move(caught));
  } catch (const Error& error) {
    const bool wrong =
        error.code() == ErrorCode::invalid_argument || error.code() == ErrorCode::not_found;
    PyErr_SetString(wrong ? PyExc_ValueError : PyExc_RuntimeError, error.what());
  }
}

}  // namespace
}  // namespace shoal::python

PYBIND11_MODULE(_native, module) {
  py::register_local_exception_translator(shoal::python::translate);
  module.def("train", &shoal::python::train, py::arg("options"), py::arg("out"), py::arg("bar"),
             py::arg("columns"));
  const shoal::nn::GenerationOptions defaults;
  module.def("generate", &shoal::python::generate_by_name, py::arg("model"), py::arg("prompt"),
             py::kw_only(), py::arg("tokenizer") = "",
             py::arg("max_new_tokens") = defaults.max_new_tokens,
             py::arg("temperature") = defaults.temperature, py::arg("top_k") = defaults.top_k,
             py::arg("top_p") = defaults.top_p, py::arg("seed") = defaults.seed,
             py::arg("greedy") = false, py::arg("bf16") = false, py::arg("no_stop") = false);
  shoal::python::define_parallel(module);
  shoal::python::define_checkpoint(module);
}
