#include "shoal/kernels/attention.h"

#include <cmath>
#include <limits>
#include <vector>

#include "shoal/kernels/attention_checks.h"
#include "shoal/kernels/reference/access.h"
#include "shoal/kernels/reference/families.h"

namespace shoal::kernels {
namespace {

struct Heads {
  const void* data;
  std::int64_t batch_stride, row_stride;
  const AttentionShape& s;
  std::int64_t at(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return b * batch_stride + t * row_stride + h * s.head_dim + d;
  }
  double operator()(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d) const {
    return reference::load(data, s.dtype, at(b, t, h, d));
  }
  void put(std::int64_t b, std::int64_t t, std::int64_t h, std::int64_t d, double value) const {
    reference::store(const_cast<void*>(data), s.dtype, at(b, t, h, d), value);
  }
};
Heads heads(HeadsView v, const AttentionShape& s) {
  return {v.data, v.batch_stride, v.row_stride, s};
}
Heads heads(MutableHeadsView v, const AttentionShape& s) {
  return {v.data, v.batch_stride, v.row_stride, s};
}

// Probabilities of one query before dropout. For each of them: dropout's factor, and the derivative
// of the score by q·k.
struct Row {
  std::vector<double> probability, keep, slope;
  double log_sum_exp = 0;
};

Row attend(const AttentionShape& s, const Heads& q, const Heads& k, std::int64_t b, std::int64_t h,
           std::int64_t i) {
  const auto keys = static_cast<std::size_t>(s.key_length);
  Row row{std::vector<double>(keys, 0), std::vector<double>(keys, 1),
          std::vector<double>(keys, static_cast<double>(s.scale)), 0};
  std::vector<double> score(keys, -std::numeric_limits<double>::infinity());
  double largest = -std::numeric_limits<double>::infinity();
  const std::uint8_t* shown = shown_keys_of(s);
  const std::int32_t* lengths = key_lengths_of(s);
  const TokenRange sequence =
      s.sequences.defined() ? sequence_of(s, b, i) : TokenRange{0, s.key_length};
  for (std::int64_t j = std::max(sequence.begin, hidden_keys(s, i));
       j < std::min(sequence.end, visible_keys(s, i)); ++j) {
    if ((shown && !shown[b * s.key_length + j]) || (lengths && j >= lengths[b])) continue;
    double dot = 0;
    for (std::int64_t d = 0; d < s.head_dim; ++d)
      dot += q(b, i, h, d) * k(b, j, h / heads_per_key_head(s), d);
    score[static_cast<std::size_t>(j)] = dot * static_cast<double>(s.scale);
    if (const auto cap = static_cast<double>(s.soft_cap); cap > 0) {
      const double bent = std::tanh(score[static_cast<std::size_t>(j)] / cap);
      score[static_cast<std::size_t>(j)] = cap * bent;
      row.slope[static_cast<std::size_t>(j)] *= 1 - bent * bent;
    }
    if (s.relative_bias.defined())
      score[static_cast<std::size_t>(j)] +=
          static_cast<double>(s.relative_bias.as<float>()[relative_row(s, h, i) + j]);
    largest = std::max(largest, score[static_cast<std::size_t>(j)]);
  }
  double sum = 0;
  if (std::isfinite(largest))
    for (std::size_t j = 0; j < keys; ++j) sum += row.probability[j] = std::exp(score[j] - largest);
  for (std::size_t j = 0; j < keys && sum > 0; ++j) row.probability[j] /= sum;
  row.log_sum_exp = sum > 0 ? largest + std::log(sum) : -std::numeric_limits<double>::infinity();
  if (s.dropout > 0) {
    const std::uint32_t threshold = dropout_threshold(s.dropout);
    const std::uint32_t sample =
        s.site.sample_first + static_cast<std::uint32_t>(b) * s.site.sample_stride;
    for (std::size_t j = 0; j < keys; ++j)
      row.keep[j] = random_bits(s.site, sample, dropout_row(s, h, i) + j) >= threshold
                        ? 1 / (1 - static_cast<double>(s.dropout))
                        : 0;
  }
  return row;
}

class ReferenceAttention final : public AttentionKernels {
 public:
  void attention(const AttentionShape& s, HeadsView q_view, HeadsView k_view, HeadsView v_view,
                 MutableHeadsView out_view, View log_sum_exp, Stream) override {
    check_attention(s);
    const std::int64_t group = heads_per_key_head(s);
    const Heads q = heads(q_view, s), k = heads(k_view, s), v = heads(v_view, s),
                out = heads(out_view, s);
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h)
        for (std::int64_t i = 0; i < s.query_length; ++i) {
          const Row row = attend(s, q, k, b, h, i);
          if (log_sum_exp.defined())
            reference::store(log_sum_exp, (b * s.heads + h) * s.query_length + i, row.log_sum_exp);
          for (std::int64_t d = 0; d < s.head_dim; ++d) {
            double sum = 0;
            for (std::int64_t j = 0; j < s.key_length; ++j) {
              const auto at = static_cast<std::size_t>(j);
              if (row.probability[at] > 0)
                sum += row.probability[at] * row.keep[at] * v(b, j, h / group, d);
            }
            out.put(b, i, h, d, sum);
          }
        }
  }

  void attention_backward(const AttentionShape& s, HeadsView q_view, HeadsView k_view,
                          HeadsView v_view, HeadsView, ConstView, HeadsView dout_view,
                          MutableHeadsView dq_view, MutableHeadsView dk_view,
                          MutableHeadsView dv_view, Stream) override {
    check_attention(s);
    const Heads q = heads(q_view, s), k = heads(k_view, s), v = heads(v_view, s),
                dout = heads(dout_view, s), dq = heads(dq_view, s), dk = heads(dk_view, s),
                dv = heads(dv_view, s);
    const std::int64_t dim = s.head_dim, group = heads_per_key_head(s);
    const auto per_head = [&](std::int64_t length) {
      return std::vector<double>(static_cast<std::size_t>(length * dim), 0.0);
    };
    std::vector<double> sum_k, sum_v;  // summed over the heads that read one key head
    std::vector<double> sum_bias(static_cast<std::size_t>(
        s.relative_bias_gradient.defined() ? s.heads * relative_positions(s) : 0));
    for (std::int64_t b = 0; b < s.batch; ++b)
      for (std::int64_t h = 0; h < s.heads; ++h) {
        std::vector<double> sum_q = per_head(s.query_length);
        if (h % group == 0) sum_k = per_head(s.key_length), sum_v = per_head(s.key_length);
        for (std::int64_t i = 0; i < s.query_length; ++i) {
          const Row row = attend(s, q, k, b, h, i);
          std::vector<double> dp(static_cast<std::size_t>(s.key_length), 0);
          double dot = 0;  // sum of dp * p over keys
          for (std::int64_t j = 0; j < s.key_length; ++j) {
            const auto at = static_cast<std::size_t>(j);
            if (row.probability[at] == 0) continue;
            for (std::int64_t d = 0; d < dim; ++d) {
              dp[at] += dout(b, i, h, d) * v(b, j, h / group, d) * row.keep[at];
              sum_v[static_cast<std::size_t>(j * dim + d)] +=
                  row.probability[at] * row.keep[at] * dout(b, i, h, d);
            }
            dot += dp[at] * row.probability[at];
          }
          for (std::int64_t j = 0; j < s.key_length; ++j) {
            const auto at = static_cast<std::size_t>(j);
            if (row.probability[at] == 0) continue;
            const double dscore = row.probability[at] * (dp[at] - dot);
            if (!sum_bias.empty())
              sum_bias[static_cast<std::size_t>(relative_row(s, h, i) + j)] += dscore;
            const double ds = dscore * row.slope[at];
            for (std::int64_t d = 0; d < dim; ++d) {
              sum_q[static_cast<std::size_t>(i * dim + d)] += ds * k(b, j, h / group, d);
              sum_k[static_cast<std::size_t>(j * dim + d)] += ds * q(b, i, h, d);
            }
          }
        }
        for (std::int64_t t = 0; t < s.query_length * dim; ++t)
          dq.put(b, t / dim, h, t % dim, sum_q[static_cast<std::size_t>(t)]);
        for (std::int64_t t = 0; h % group == group - 1 && t < s.key_length * dim; ++t) {
          dk.put(b, t / dim, h / group, t % dim, sum_k[static_cast<std::size_t>(t)]);
          dv.put(b, t / dim, h / group, t % dim, sum_v[static_cast<std::size_t>(t)]);
        }
      }
    for (std::size_t i = 0; i < sum_bias.size(); ++i)
      reference::store(s.relative_bias_gradient, static_cast<std::int64_t>(i), sum_bias[i]);
  }
};

}  // namespace

std::unique_ptr<AttentionKernels> make_reference_attention() {
  return std::make_unique<ReferenceAttention>();
}

}  // namespace shoal::kernels
