// Axes: positions of numbers, ticks at round numbers, and readable number formats.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/train/report/series.h"

namespace shoal::report {

// Kind of a number. Bytes use factors of 1024 (KiB, MiB), seconds go down to ns, shares are 0 to 1
// and shown in percent.
enum class Unit : std::uint8_t { number, count, seconds, bytes, share };

// "0.4312", "12,345", "5e-5", "3.2 ms", "1.46 GiB", "87.5 %"; "not finite" for NaN and infinities.
std::string format_number(double value, Unit unit = Unit::number);

struct Ticks {
  std::vector<double> at = {};           // rising, inside the axis
  std::vector<std::string> labels = {};  // of equal precision, without the unit
  std::string unit = {};                 // "ms", "GiB", "%"; empty: none
};

struct Axis {
  double low = 0, high = 1;  // low < high; both above 0 if logarithmic
  bool logarithmic = false;
  Unit unit = Unit::number;

  double place(double value) const;  // 0 at low, 1 at high; not clamped
  // About `wanted` ticks, at least 2, at multiples of 1, 2 or 5 x 10^k of a unit that suits the
  // axis (MiB, ms). On a logarithmic axis, at powers of ten, and at 2 and 5 times them if there are
  // few.
  Ticks ticks(int wanted) const;
};

struct AxisRules {
  Unit unit = Unit::number;
  bool from_zero = false;
  bool may_be_logarithmic = false;  // if all values are above 0 and span more than 3 powers of ten
  bool tight = false;               // otherwise 4 % margin at both ends
};
// An axis for `range`, which may be empty or a single number.
Axis make_axis(const Range& range, const AxisRules& rules = {});

}  // namespace shoal::report
