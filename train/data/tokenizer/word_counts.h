// Counts the words of text files, for the trainers of vocabularies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "shoal/train/data/tokenizer/bpe_model.h"

namespace shoal {

using WordCounts = std::unordered_map<std::string, std::int64_t, StringHash, std::equal_to<>>;
void count_word(WordCounts& counts, std::string_view word);

// Called from the training thread about every 1 %: the stage, done, total. May throw to cancel.
using TrainingProgress =
    std::function<void(std::string_view stage, std::int64_t done, std::int64_t total)>;

// Calls count(counts, line) for each line of a UTF-8 file, including its end, on at most `threads`
// threads, and adds what they counted to `counts`. invalid_argument for ill-formed text.
void count_file(const std::string& path, int threads,
                const std::function<void(WordCounts& counts, std::string_view line)>& count,
                const TrainingProgress& progress, WordCounts& counts);

}  // namespace shoal
