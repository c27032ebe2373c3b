// Caches the ids of words, since a few thousand words make up most of a text. Bounded and
// single-threaded; each encoding thread borrows one (byte_level_bpe.cc). Internal to this folder.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "shoal/train/data/tokenizer/tokenizer.h"

namespace shoal {

class WordCache {
 public:
  WordCache() : small_(kSmall), large_(kLarge) { arena_.reserve(kArena); }

  static constexpr std::size_t kReadAhead = 16;  // bytes; see key_of

  // A word's cache key. `readable`: number of readable bytes at word.data(). If there are enough, a
  // short word takes one 16-byte load and a mask.
  struct Key {
    std::uint64_t low = 0, high = 0;  // a short word's bytes, with its length in the top byte
    std::uint64_t hash = 0;
    bool is_small = false;
  };
  static Key key_of(std::string_view word, std::size_t readable) {
    Key key;
    if (word.size() <= kSmallBytes) {
      key.is_small = true;
      if (readable >= kReadAhead) {
        std::memcpy(&key.low, word.data(), 8);
        std::memcpy(&key.high, word.data() + 8, 8);
        const auto bits = static_cast<unsigned>(word.size()) * 8;
        if (bits < 64) {
          key.low &= (std::uint64_t{1} << bits) - 1;
          key.high = 0;
        } else {
          key.high &= (std::uint64_t{1} << (bits - 64)) - 1;
        }
      } else {
        std::memcpy(&key.low, word.data(), word.size() < 8 ? word.size() : 8);
        if (word.size() > 8) std::memcpy(&key.high, word.data() + 8, word.size() - 8);
      }
      key.high |= std::uint64_t{word.size()} << 56;
      key.hash = mix(key.low ^ 0x9E3779B97F4A7C15u, key.high ^ 0xD1B54A32D192ED03u);
    } else {
      key.hash = hash_of(word);
    }
    return key;
  }

  // The word's ids, from the cache or from make(made), which are then cached. Valid until the next
  // call.
  template <typename Make>
  std::span<const TokenId> ids_of(std::string_view word, std::size_t readable,
                                  std::vector<TokenId>& made, const Make& make) {
    const Key key = key_of(word, readable);
    const std::span<const TokenId> found = find(word, key);
    if (found.data() != nullptr) [[likely]]
      return found;
    made.clear();
    make(made);
    insert(word, key, made);
    return made;
  }

  // The ids, valid until the next insert; null data if the word is not cached.
  std::span<const TokenId> find(std::string_view word, const Key& key) const {
    if (key.is_small) {
      const Small& entry = small_[key.hash & (kSmall - 1)];
      if (entry.low == key.low && entry.high == key.high) return {entry.ids.data(), entry.count()};
    }
    return find_large(word, key);
  }

  void insert(std::string_view word, const Key& key, std::span<const TokenId> ids) {
    if (key.is_small && !ids.empty() && ids.size() <= kSmallIds) {
      Small& entry = small_[key.hash & (kSmall - 1)];
      entry.low = key.low;
      entry.high = key.high;
      entry.ids.fill(-1);
      std::copy(ids.begin(), ids.end(), entry.ids.begin());
      return;
    }
    if (word.size() > kLongestWord) return;
    const std::size_t words = (word.size() + 3) / 4;
    if (arena_.size() + ids.size() + words > kArena) {  // full: clear the cache
      arena_.clear();
      std::fill(large_.begin(), large_.end(), Large{});
    }
    Large& entry = large_[key.hash & (kLarge - 1)];
    entry = {key.hash, static_cast<std::uint32_t>(arena_.size()),
             static_cast<std::uint16_t>(word.size()), static_cast<std::uint16_t>(ids.size())};
    arena_.insert(arena_.end(), ids.begin(), ids.end());
    const std::size_t at = arena_.size();
    arena_.resize(at + words);
    std::memcpy(arena_.data() + at, word.data(), word.size());
  }

 private:
  static constexpr std::size_t kSmall = 1 << 15, kSmallBytes = 15, kSmallIds = 4;       // 1 MiB
  static constexpr std::size_t kLarge = 1 << 14, kArena = 1 << 19, kLongestWord = 512;  // 2.25 MiB

  struct Small {
    std::uint64_t low = 0, high = 0;  // high 0: empty, since every word has a length
    std::array<TokenId, kSmallIds> ids{};
    std::size_t count() const {
      std::size_t n = 1;
      while (n < kSmallIds && ids[n] >= 0) ++n;
      return n;
    }
  };
  struct Large {
    std::uint64_t hash = 0;
    std::uint32_t offset = 0;  // in the arena: the ids, then the word's bytes
    std::uint16_t bytes = 0, ids = 0;
  };

  static std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  }
  static std::uint64_t hash_of(std::string_view word) {
    std::uint64_t hash = word.size() * 0x9E3779B97F4A7C15u;
    std::size_t at = 0;
    for (; at + 8 <= word.size(); at += 8) {
      std::uint64_t eight;
      std::memcpy(&eight, word.data() + at, 8);
      hash = mix(hash ^ eight, 0xD1B54A32D192ED03u);
    }
    std::uint64_t rest = 0;
    if (at < word.size()) std::memcpy(&rest, word.data() + at, word.size() - at);
    return mix(hash ^ rest, 0x2545F4914F6CDD1Du);
  }

  std::span<const TokenId> find_large(std::string_view word, const Key& key) const {
    const Large& entry = large_[key.hash & (kLarge - 1)];
    if (entry.bytes != word.size() || entry.hash != key.hash) return {};
    const TokenId* ids = arena_.data() + entry.offset;
    if (std::memcmp(ids + entry.ids, word.data(), word.size()) != 0) return {};
    return {ids, entry.ids};
  }

  std::vector<Small> small_;
  std::vector<Large> large_;
  std::vector<TokenId> arena_;
};

}  // namespace shoal
