#include "shoal/nn/layers/chain.h"

#include <algorithm>
#include <utility>

#include "shoal/runtime/base/error.h"

namespace shoal::nn {

Value ResidualStream::collapse(Context& context) && {
  if (!branch) return std::move(residual);
  return dropout_add(context, *branch, residual, dropout);
}

Value ResidualStream::norm(Context& context, NormLike& norm) {
  ResidualNorm out =
      branch ? norm.forward(context, residual, *branch, dropout) : norm.fork(context, residual);
  *this = ResidualStream{std::move(out.sum), std::nullopt, {}};
  return std::move(out.normed);
}

std::vector<Parameter*> Chain::unit_parameters(int unit) const {
  std::vector<Parameter*> all;
  for (const Module* module : unit_modules(unit))
    for (Parameter* parameter : module->parameters())
      if (std::find(all.begin(), all.end(), parameter) == all.end()) all.push_back(parameter);
  return all;
}

ResidualStream forward_units(Context& context, Chain& chain, int first, int last,
                             ResidualStream stream, const ChainInput& input, int checkpoint_group) {
  SHOAL_CHECK(0 <= first && first <= last && last < chain.units(),
              "units [{}, {}) of a chain of {}, whose last is the head", first, last,
              chain.units());
  for (int unit = first; unit < last;) {
    if (unit == 0 || checkpoint_group <= 0 || !context.tape) {
      stream = chain.forward_unit(context, unit, std::move(stream), input);
      ++unit;
      continue;
    }
    const int end = std::min(unit + checkpoint_group, last);
    const Value x = std::move(stream).collapse(context);
    const auto run = [&chain, unit, end, input](Context& inner, const Value& value) {
      ResidualStream inside{value, std::nullopt, {}};
      for (int u = unit; u < end; ++u)
        inside = chain.forward_unit(inner, u, std::move(inside), input);
      return std::move(inside).collapse(inner);
    };
    stream = {checkpoint(context, run, x), std::nullopt, {}};
    unit = end;
  }
  return stream;
}

}  // namespace shoal::nn
