// Axes: from numbers to places, ticks at round numbers, numbers as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shoal/train/report/series.h"

namespace shoal::report {

// What a number is of. Bytes go by 1024 (KiB, MiB), seconds down to ns, shares are 0 to 1 and read
// in percent.
enum class Unit : std::uint8_t { number, count, seconds, bytes, share };

// "0.4312", "12,345", "5e-5", "3.2 ms", "1.46 GiB", "87.5 %"; "not finite" for NaN and infinities.
std::string format_number(double value, Unit unit = Unit::number);

struct Ticks {
  std::vector<double> at = {};           // rising, inside the axis
  std::vector<std::string> labels = {};  // of equal precision; their unit stands in `unit`
  std::string unit = {};                 // "ms", "GiB", "%"; empty: none
};

struct Axis {
  double low = 0, high = 1;  // low < high; both above 0 where logarithmic
  bool logarithmic = false;
  Unit unit = Unit::number;

  double place(double value) const;  // 0 at low, 1 at high; beyond where value is
  // At multiples of 1, 2 or 5 x 10^k (of bytes: x 2^k of a unit), about `wanted` of them and at
  // least 2; logarithmic: at powers of ten, with 2 and 5 between where there are few.
  Ticks ticks(int wanted) const;
};

struct AxisRules {
  Unit unit = Unit::number;
  bool from_zero = false;
  bool may_be_logarithmic = false;  // where all is above 0 and spans more than 3 powers of ten
  bool tight = false;               // else 4 % of air at both ends
};
// Around `range`, which may be empty or a single number.
Axis make_axis(const Range& range, const AxisRules& rules = {});

}  // namespace shoal::report
