// Small matrix products whose operands stay in a core's cache, used for attention's tiles. A call
// of oneDNN costs about as much as such a product; a bf16 tile of 64 x 256 x 64 takes 10 µs.
//
// c[m, n] (+)= sum over k of a(m, k) · b(k, n) in f32. Sizes along k are in 32-bit words: one f32,
// or a pair of bf16 (elements 2k and 2k + 1), which AVX512_BF16 multiplies and adds in one
// instruction. `b` is packed in panels of panel_width() columns: panel, then word, then column.
#pragma once

#include <cstdint>

#include "shoal/runtime/tensor/dtype.h"

namespace shoal::kernels {

enum class TileWord : std::uint8_t { f32, bf16_pair };

// True if this machine multiplies pairs of bf16.
bool has_bf16_pairs();

struct TileOperand {
  const void* data = nullptr;
  std::int64_t row_bytes = 0, word_bytes = 0;  // distances between rows and between words of k
};

class TileProduct {
 public:
  explicit TileProduct(TileWord word);

  TileWord word() const { return word_; }
  std::int64_t panel_width() const { return width_; }
  static constexpr std::int64_t kMaxPanelWidth = 32;
  std::int64_t words(std::int64_t elements) const {
    return word_ == TileWord::f32 ? elements : (elements + 1) / 2;
  }
  // Words of a packed operand of `k` elements by `columns` columns.
  std::int64_t packed_words(std::int64_t k, std::int64_t columns) const {
    return words(k) * ((columns + width_ - 1) / width_ * width_);
  }

  // Packs b(k, n) = source[n, k] (pack_transposed) or source[k, n] (pack). The source has `rows`
  // rows of `columns` elements of the word's type (f32 or bf16), `stride` elements apart. The last
  // panel and pair are padded with 0.
  void pack_transposed(const void* source, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride, void* packed) const;
  void pack(const void* source, std::int64_t rows, std::int64_t columns, std::int64_t stride,
            void* packed) const;

  // Multiplies words [first_word, first_word + k_words) of the packed operand, which has
  // `panel_words` words of k. Writes columns [0, n), n rounded up to whole panels, for which c must
  // have room. m, n, k_words >= 0.
  struct Call {
    TileOperand a;
    const void* packed = nullptr;
    std::int64_t panel_words = 0, first_word = 0;
    float* c = nullptr;
    std::int64_t c_stride = 0;  // elements
    std::int64_t m = 0, n = 0, k_words = 0;
    bool accumulate = false;
  };
  void multiply(const Call& call) const;

 private:
  TileWord word_;
  std::int64_t width_;
};

}  // namespace shoal::kernels
