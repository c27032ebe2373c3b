// The Porter stemmer (M. Porter, "An algorithm for suffix stripping", 1980) with NLTK's changes, as
// ROUGE uses it.
#pragma once

#include <string>
#include <string_view>

namespace shoal {

// The stem of a word of ASCII lower-case letters and digits: "running" becomes "run". Equal to
// nltk.stem.PorterStemmer().stem(word).
std::string porter_stem(std::string_view word);

}  // namespace shoal
