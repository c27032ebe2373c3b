// The Python module shoal._native: training and generation in this process.
#include "native.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

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

using EarlyStopping = std::variant<bool, std::string>;

std::string generate_by_name(
    const std::string& model, const std::string& prompt, const std::string& tokenizer,
    std::optional<std::int64_t> max_new_tokens, std::optional<double> temperature,
    std::optional<std::int64_t> top_k, std::optional<double> top_p, std::optional<double> min_p,
    std::optional<std::int64_t> num_beams, std::optional<double> length_penalty,
    const std::optional<EarlyStopping>& early_stopping, std::optional<double> repetition_penalty,
    std::optional<std::int64_t> no_repeat_ngram_size, const std::vector<std::string>& stop,
    std::uint64_t seed, bool greedy, bool bf16, bool no_stop) {
  command::GenerateOptions options;
  options.model = model;
  options.tokenizer = tokenizer;
  options.prompt = prompt;
  options.greedy = greedy;
  options.bf16 = bf16;
  options.no_stop = no_stop;
  options.seed = seed;
  const auto set = [&](const char* name, const auto& value) {
    if (value) options.fields[name] = *value;
  };
  set("max_new_tokens", max_new_tokens);
  set("temperature", temperature);
  set("top_k", top_k);
  set("top_p", top_p);
  set("min_p", min_p);
  set("num_beams", num_beams);
  set("length_penalty", length_penalty);
  set("repetition_penalty", repetition_penalty);
  set("no_repeat_ngram_size", no_repeat_ngram_size);
  if (early_stopping)
    std::visit([&](const auto& value) { options.fields["early_stopping"] = value; },
               *early_stopping);
  if (!stop.empty()) options.fields["stop_strings"] = stop;
  return generate(options);
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
  const py::none model_s;  // generation_config.json's
  module.def("generate", &shoal::python::generate_by_name, py::arg("model"), py::arg("prompt"),
             py::kw_only(), py::arg("tokenizer") = "", py::arg("max_new_tokens") = model_s,
             py::arg("temperature") = model_s, py::arg("top_k") = model_s,
             py::arg("top_p") = model_s, py::arg("min_p") = model_s, py::arg("num_beams") = model_s,
             py::arg("length_penalty") = model_s, py::arg("early_stopping") = model_s,
             py::arg("repetition_penalty") = model_s, py::arg("no_repeat_ngram_size") = model_s,
             py::arg("stop") = std::vector<std::string>(), py::arg("seed") = 42,
             py::arg("greedy") = false, py::arg("bf16") = false, py::arg("no_stop") = false);
  shoal::python::define_parallel(module);
  shoal::python::define_checkpoint(module);
}
