// What the units of a decoder keep while texts are generated token by token.
//
//   Decoding decoding{.capacity = 64};              // one for each microbatch
//   input.decoding = &decoding;                     // evaluation, without a tape
//   ...                                             // the units compute the first ids
//   decoding.encoded = true;                        // later calls bring only the newest ids
//   input.ids = input.decoder_ids = newest;         // i32 [rows, T]
//   decoding.position += 1;
//   decoding.select(context, rows, texts);          // between calls: other rows, as a search chose
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "shoal/nn/layers/kinds.h"

namespace shoal::nn {

// Each rank keeps what the blocks that it runs need, in the kernels' memory. Where a block computes
// the samples of several ranks (tensor parallelism by samples), it keeps rows of all of them, one
// rank's after another's.
struct Decoding {
  struct Block {
    KeyValueCache self;
    EncodedKeys cross;
  };
  std::int64_t capacity = 0;  // positions that a row has room for
  std::int64_t position = 0;  // of the first of ChainInput::decoder_ids
  bool encoded = false;       // the encoder has run: its units have no more to do
  std::map<int, Block> blocks{};

  // Makes `self` and `cross`, the inputs of a block's attentions, keep what later calls need. What
  // was kept from `position` on is replaced.
  void serve(int block, AttentionInput& self, AttentionInput& cross);
  // Row r becomes the present row rows[r], and text t (a row of the encoder's) the present text
  // texts[t]; each text has as many rows, side by side. Work on context.stream.
  void select(Context& context, std::span<const std::int64_t> rows,
              std::span<const std::int64_t> texts);
};

}  // namespace shoal::nn
