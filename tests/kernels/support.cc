#include "support.h"

#include <cmath>
#include <random>

#include <hwy/highway.h>

#include "shoal/kernels/cpu/instruction_set.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/runtime/base/error.h"

namespace shoal::kernels::testing {
namespace {

constexpr std::size_t kGuard = 64;

// True if tensors begin at an aligned address (OnEachTarget).
bool tensors_are_aligned = false;

// A whole unit, because both sides are rounded and may be on different sides of a tie.
double unit(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    default:
      return 0x1p-23;
  }
}

}  // namespace

Host::Host(const Shape& shape, DType dtype)
    : shape_(shape),
      dtype_(dtype),
      offset_(kGuard + (tensors_are_aligned ? 0 : size_of(dtype))),
      bytes_(offset_ + static_cast<std::size_t>(shape.count()) * size_of(dtype) +
                 (shoal::testing::sanitizing() ? 0 : kGuard),
             std::byte{0xff}) {}

Host Host::random(const Shape& shape, DType dtype, unsigned seed, double low, double high) {
  Host host(shape, dtype);
  std::mt19937 engine(seed);
  std::uniform_real_distribution<double> value(low, high);
  for (std::int64_t i = 0; i < host.count(); ++i) host.set(i, value(engine));
  return host;
}

Host Host::filled(const Shape& shape, DType dtype, double value) {
  Host host(shape, dtype);
  for (std::int64_t i = 0; i < host.count(); ++i) host.set(i, value);
  return host;
}

double Host::at(std::int64_t i) const { return reference::load(host_data(), dtype_, i); }
void Host::set(std::int64_t i, double value) { reference::store(host_data(), dtype_, i, value); }

bool Host::guards_intact() const {
  const std::size_t end = offset_ + static_cast<std::size_t>(count()) * size_of(dtype_);
  const std::byte* bytes = bytes_.host();
  for (std::size_t i = 0; i < bytes_.size(); ++i)
    if ((i < offset_ || i >= end) && bytes[i] != std::byte{0xff}) return false;
  return true;
}

::testing::AssertionResult close(const Host& actual, const Host& expected, Tolerance tolerance) {
  if (!actual.guards_intact())
    return ::testing::AssertionFailure() << "the kernel wrote outside the tensor";
  for (std::int64_t i = 0; i < expected.count(); ++i) {
    const double a = actual.at(i), e = expected.at(i);
    if (std::isnan(e) ? std::isnan(a) : a == e) continue;
    const double allowed = tolerance.relative < 0
                               ? 0
                               : (unit(actual.dtype()) + tolerance.relative) * std::abs(e) +
                                     tolerance.absolute +
                                     (actual.dtype() == DType::f16 ? 0x1p-24 : 0);
    if (!(std::abs(a - e) <= allowed))
      return ::testing::AssertionFailure()
             << "element " << i << " of " << to_string(expected.shape()) << " "
             << to_string(expected.dtype()) << ": " << a << ", expected " << e << " within "
             << allowed;
  }
  return ::testing::AssertionSuccess();
}

void verify(const std::string& what, const std::function<Hosts()>& make,
            const std::function<void(Kernels&, Hosts&)>& run, Tolerance tolerance) {
  SCOPED_TRACE(what);
  // Hosts have different addresses, so their bits are compared element by element.
  const auto bits = [](const Hosts& hosts) {
    std::string text;
    for (const Host& host : hosts)
      text.append(static_cast<const char*>(host.host_data()),
                  static_cast<std::size_t>(host.count()) * size_of(host.dtype()));
    return text;
  };
  if (shoal::testing::sanitizing()) {
    Hosts outputs = make();
    run(*make_test_kernels(), outputs);
    for (const Host& output : outputs) EXPECT_TRUE(output.guards_intact());
    return;
  }
  Hosts expected = make();
  {
    const At host(Device::cpu());
    run(*make_reference_kernels(), expected);
  }
  std::string first;
  for (const int threads : on_cuda() ? std::vector<int>{1, 1} : std::vector<int>{2, 2, 1, 3}) {
    const auto kernels = make_test_kernels(threads);
    Hosts actual = make();
    run(*kernels, actual);
    if (first.empty()) {
      first = bits(actual);
      for (std::size_t i = 0; i < actual.size(); ++i)
        EXPECT_TRUE(close(actual[i], expected[i], tolerance)) << "output " << i;
    } else {
      EXPECT_TRUE(bits(actual) == first)
          << (on_cuda() ? std::string("other bits in a second run")
                        : fmt::format("other bits with {} threads", threads));
    }
  }
}

void OnEachTarget::SetUp() {
  if (on_cuda()) {
    tensors_are_aligned = GetParam() == 1;
    return;
  }
  hwy::SetSupportedTargetsForTest(GetParam());
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void OnEachTarget::TearDown() {
  tensors_are_aligned = false;
  if (on_cuda()) return;
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<std::int64_t> runnable_targets() {
  if (on_cuda()) return {0, 1};
  limit_instruction_set();
  std::vector<std::int64_t> targets;
  const std::int64_t able = hwy::SupportedTargets() & HWY_TARGETS;
  for (int bit = 0; bit < 63; ++bit)
    if (able >> bit & 1) targets.push_back(std::int64_t{1} << bit);
  return targets;
}

std::string target_name(const ::testing::TestParamInfo<std::int64_t>& info) {
  if (on_cuda()) return info.param == 1 ? "CUDAAligned" : "CUDA";
  return hwy::TargetName(info.param);
}

std::string error_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace shoal::kernels::testing
