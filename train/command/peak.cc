#include "shoal/train/command/peak.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "shoal/parallel/predict/machine.h"
#include "shoal/runtime/base/clock.h"
#include "shoal/runtime/base/parallel_for.h"

namespace shoal::command {
namespace {

// GPUs by a word of their name, and a machine of parallel/predict that has them.
constexpr std::array<std::pair<const char*, const char*>, 7> kGpus = {{{"B200", "p6-b200.48xlarge"},
                                                                       {"H200", "p5en.48xlarge"},
                                                                       {"H100", "p5.48xlarge"},
                                                                       {"A100", "p4d.24xlarge"},
                                                                       {"V100", "p3.16xlarge"},
                                                                       {"A10G", "g5.48xlarge"},
                                                                       {"L4", "g6.48xlarge"}}};

std::optional<double> stated(const std::string& machine, DType dtype) {
  const auto rates = parallel::find_machine(machine).products.flops;
  const auto found = rates.find(dtype);
  return found == rates.end() ? std::nullopt : std::optional(found->second);
}

// Whether `word` is a word of a GPU's name. "L4" is none of "NVIDIA L40S". The PCIe and NVL forms
// of a GPU are slower than those of the machines.
bool is_named(std::string_view name, std::string_view word) {
  if (name.find("PCIe") != std::string_view::npos || name.find("NVL") != std::string_view::npos)
    return false;
  const auto is_part = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; };
  const std::size_t at = name.find(word);
  if (at == std::string_view::npos) return false;
  const std::size_t end = at + word.size();
  return (at == 0 || !is_part(name[at - 1])) && (end == name.size() || !is_part(name[end]));
}

// FLOP/s of the fastest product of two n x n matrices.
double measured(Compute& compute, DType dtype, std::int64_t n) {
  constexpr int kFewest = 3;
  constexpr double kLeastTime = 0.03;
  const auto memory = make_host_memory();  // not the run's, whose use is limited and recorded
  const auto matrix = [&] {
    Tensor made = Tensor::empty({n, n}, dtype, *memory, MemoryTag::workspace);
    std::memset(made.view().data, 0, made.bytes());
    return made;
  };
  const Tensor a = matrix(), b = matrix();
  Tensor c = matrix();
  kernels::MatmulArgs product;
  product.a = a.const_view();
  product.b = b.const_view();
  product.c = c.view();
  double least = 0;
  const auto begin = Clock::now();
  for (int run = 0; run <= kFewest || seconds_since(begin) < kLeastTime; ++run) {
    const auto start = Clock::now();
    compute.kernels->matmul().matmul(product, {});
    const double seconds = seconds_since(start);
    if (run > 0) least = run == 1 ? seconds : std::min(least, seconds);  // the first warms up
  }
  const auto size = static_cast<double>(n);
  return 2 * size * size * size / std::max(least, 1e-9);
}

}  // namespace

Peak peak_of(const PeakRequest& request, collectives::Communicator& ranks) {
  Peak own;
  if (!request.machine.empty()) {
    own = {stated(request.machine, request.dtype).value_or(0), "of " + request.machine};
  } else if (request.device.is_cpu()) {
    const std::int64_t size = available_cores() / std::max(ranks.size(), 1) > 4 ? 1024 : 512;
    own = {measured(request.compute, request.dtype, size),
           fmt::format("measured here in products of {0} x {0}", size)};
  } else {
    for (const auto& [name, machine] : kGpus)
      if (own.flops == 0 && is_named(request.description, name))
        own = {stated(machine, request.dtype).value_or(0), fmt::format("stated for {}", name)};
  }
  double least = own.flops;  // if one rank's is unknown, so is the sum
  collectives::Communicator& host = ranks.host();
  if (host.size() > 1) {
    host.all_reduce(&least, &least, 1, DType::f64, collectives::ReduceOp::min)->wait();
    host.all_reduce(&own.flops, &own.flops, 1, DType::f64, collectives::ReduceOp::sum)->wait();
  }
  if (least == 0) own.flops = 0;
  return own;
}

}  // namespace shoal::command
